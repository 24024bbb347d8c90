//! Shared parts of all tests of the program: the program, the fake engine, a folder for each test, a bound on every wait.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod baselines;
pub mod driver;
pub mod hub;
pub mod models;
pub mod record;
pub mod run;
pub mod snapshot;
pub mod tree;
pub mod workspace;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Far longer than any wait on a slow machine. A longer one is a hang.
pub const BOUND: Duration = Duration::from_secs(300);

/// In the environment of every process of a test, so that remaining ones are found.
const MARK: &str = "ORCHESTRATE_TEST";

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    #[expect(
        clippy::disallowed_methods,
        reason = "these tests are about processes; each ends what it starts"
    )]
    Command::new(program)
}

/// Writes an executable, in another process. A program that a parallel test starts meanwhile would inherit the file open
/// for writing, and such a file cannot be started.
pub fn write_program(path: &Path, text: &str) {
    let script = "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"";
    let status = command("sh").args(["-c", script, "sh"]).arg(path).arg(text).status().unwrap();
    assert!(status.success(), "no program at `{}`", path.display());
}

/// Copies an executable in the same way.
pub fn copy_program(from: &Path, to: &Path) {
    let status = command("cp").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "no copy of `{}`", from.display());
}

/// Copies the files of a folder.
pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// The fake engine. Built once for each test process, because it is a package of its own.
pub fn fake_engine() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_BIN_EXE_orchestrate")).parent().unwrap();
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = command(cargo);
        build.args(["build", "-p", "fake-engine", "--quiet"]).current_dir(root());
        if folder.ends_with("release") {
            build.arg("--release");
        }
        let status = build.status().unwrap();
        assert!(status.success(), "the fake engine does not build: cargo build -p fake-engine");
        folder.join("fake-engine")
    })
}

/// The folder of one test, removed with it; and the mark of its processes, which are killed with it.
pub struct Scratch {
    pub path: PathBuf,
    mark: String,
}

impl Scratch {
    /// A folder inside the checkout, with any target directory: a program finds the tree from its working directory.
    pub fn new() -> Self {
        Self::under(&root().join("target/tmp"))
    }

    /// A folder outside the checkout, as for an installed program.
    pub fn outside() -> Self {
        Self::under(&std::env::temp_dir())
    }

    fn under(folder: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = folder.join(format!("orchestrate-test-{mark}"));
        // An earlier test with the same number was killed.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self { path, mark }
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The orchestrator: with this folder for its results and its data, and without the caller's environment.
    pub fn orchestrate(&self) -> Command {
        self.marked(env!("CARGO_BIN_EXE_orchestrate"))
    }

    /// Writes a tree with these engines, their manifests as TOML; it is the checkout of `orchestrate_alone`.
    pub fn plant(&self, engines: &[(&str, &str)]) {
        for (name, manifest) in engines {
            let folder = self.join("engines").join(name);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("engine.toml"), format!("name = \"{name}\"\n{manifest}")).unwrap();
            std::fs::write(folder.join("requirements.txt"), "no-such-package==1.0\n").unwrap();
        }
        for folder in ["engines/paths", "protocol"] {
            std::fs::create_dir_all(self.join(folder)).unwrap();
        }
        std::fs::write(self.join("Cargo.toml"), "[workspace]\n").unwrap();
    }

    /// A copy of the orchestrator without a checkout or built engines, and only the system's programs on PATH.
    pub fn orchestrate_alone(&self) -> Command {
        let copy = self.join("bin/orchestrate");
        if !copy.exists() {
            std::fs::create_dir_all(self.join("bin")).unwrap();
            copy_program(Path::new(env!("CARGO_BIN_EXE_orchestrate")), &copy);
        }
        let mut command = self.marked(copy);
        command
            .env("PATH", "/usr/bin:/bin")
            .env("CARGO_TARGET_DIR", self.join("target"))
            .current_dir(&self.path);
        command
    }

    /// Any program, in the environment of the orchestrator.
    pub fn marked(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = command(program);
        for name in ["MODEL", "DEVICE", "DTYPE", "THREADS", "RUN", "LAUNCH", "PYTHON"] {
            command.env_remove(format!("ORCHESTRATE_{name}"));
        }
        command.env_remove("FAKE_ENGINE").env_remove("CARGO_TARGET_DIR").env_remove("RUST_BACKTRACE");
        command.env("ORCHESTRATE_HOME", self.join("home")).env(MARK, &self.mark);
        // PyTorch on this machine must not change a test. Tests of output checks name their own reference engine.
        command.env("ORCHESTRATE_VERIFIER", "none");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn results(&self) -> PathBuf {
        self.join("results")
    }

    /// The fake engine under another name, with settings as a shell reads them.
    pub fn engine(&self, name: &str, settings: &str) -> PathBuf {
        self.script(name, &format!("exec '{}' {settings}", fake_engine().display()))
    }

    /// The fake engine with a fault, as a program with the fault's name.
    pub fn faulty(&self, fault: &str, settings: &[&str]) -> PathBuf {
        self.engine(fault, &format!("--fault {fault} {}", quoted(settings)))
    }

    /// An executable shell script.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.join(name);
        write_program(&path, &format!("#!/bin/sh\n{text}\n"));
        path
    }

    /// The living processes of this test, with their command lines.
    pub fn living(&self) -> Vec<(u32, String)> {
        let entry = format!("{MARK}={}", self.mark);
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        pids.filter_map(|folder| {
            let pid = folder.file_name().to_str()?.parse().ok()?;
            // A process of another user, or one that has just ended, is none of ours.
            let environment = std::fs::read(folder.path().join("environ")).ok()?;
            environment.split(|&byte| byte == 0).find(|it| *it == entry.as_bytes())?;
            let command = std::fs::read(folder.path().join("cmdline")).unwrap_or_default();
            Some((pid, String::from_utf8_lossy(&command).replace('\0', " ")))
        })
        .collect()
    }

    pub fn assert_nothing_lives(&self) {
        let living = self.living();
        assert!(living.is_empty(), "left running: {living:?}");
    }

    /// Waits for processes that end a moment later than the orchestrator.
    pub fn wait_until_nothing_lives(&self) {
        wait_until("no process is left running", || self.living().is_empty());
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for (pid, _) in self.living() {
            let _ = command("kill").args(["-KILL", &pid.to_string()]).status();
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The command of a manifest that builds this program: a link to the fake engine.
pub fn builds(program: &str) -> String {
    let fake = fake_engine().display();
    let script = format!("mkdir -p target/release; ln -sf {fake} target/release/{program}");
    format!("command = [\"sh\", \"-c\", \"{script}\"]\n")
}

/// A text without its line breaks.
pub fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Words of a command line for a shell.
pub fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ")
}

/// Waits for a condition that holds a moment later.
#[track_caller]
pub fn wait_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < BOUND, "it never happened that {condition}");
        std::thread::yield_now();
    }
}

/// The full result of a program.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    #[track_caller]
    pub fn exits_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    /// Checks that stdout contains each of these texts.
    #[track_caller]
    pub fn assert_stdout(&self, texts: &[&str]) -> &Self {
        let missing: Vec<_> = texts.iter().filter(|text| !self.stdout.contains(**text)).collect();
        assert!(missing.is_empty(), "no {missing:?} in stdout: {self:?}");
        self
    }

    /// Checks that stderr contains each of these texts.
    #[track_caller]
    pub fn assert_stderr(&self, texts: &[&str]) -> &Self {
        let missing: Vec<_> = texts.iter().filter(|text| !self.stderr.contains(**text)).collect();
        assert!(missing.is_empty(), "no {missing:?} in stderr: {self:?}");
        self
    }

    /// The JSON document on stdout.
    #[track_caller]
    pub fn json(&self) -> Value {
        let parsed = serde_json::from_str(&self.stdout);
        parsed.unwrap_or_else(|error| panic!("{error}: stdout is no JSON document: {self:?}"))
    }
}

/// Runs a program to its end. A program that hangs is killed, and the test fails with its output.
pub fn finish(command: &mut Command) -> Outcome {
    Running::start(command).finish()
}

/// A running program, its output collected line by line.
pub struct Running {
    /// Present where a pipe was requested.
    pub stdin: Option<ChildStdin>,
    child: Child,
    lines: mpsc::Receiver<(Stream, Vec<u8>)>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq)]
enum Stream {
    Stdout,
    Stderr,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            collect(stdout, Stream::Stdout, sender.clone());
        }
        if let Some(stderr) = child.stderr.take() {
            collect(stderr, Stream::Stderr, sender);
        }
        Self { stdin: child.stdin.take(), child, lines, stdout: Vec::new(), stderr: Vec::new() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        // It may have ended already; the test notices that later.
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        let _ = rustix::process::kill_process(pid, signal);
    }

    /// Interrupts the program as Ctrl-C does, and checks its exit code.
    #[track_caller]
    pub fn interrupt(self) -> Outcome {
        self.signal(rustix::process::Signal::INT);
        self.finish().exits_with(130)
    }

    /// Waits until a line on stderr contains the words, and returns that line.
    pub fn wait_for(&mut self, words: &str) -> String {
        let deadline = Instant::now() + BOUND;
        while let Some((stream, line)) = self.next(deadline) {
            let text = String::from_utf8_lossy(&line);
            if stream == Stream::Stderr && text.contains(words) {
                return text.into_owned();
            }
        }
        self.give_up(&format!("ended without `{words}`"))
    }

    /// The next line on stdout.
    pub fn line(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + BOUND;
        while let Some((stream, line)) = self.next(deadline) {
            if stream == Stream::Stdout {
                return line;
            }
        }
        self.give_up("ended, and another line was expected")
    }

    pub fn finish(mut self) -> Outcome {
        self.stdin = None;
        let deadline = Instant::now() + BOUND;
        while self.next(deadline).is_some() {}
        let status = self.child.wait().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Outcome { code: status.code(), stdout: text(&self.stdout), stderr: text(&self.stderr) }
    }

    /// The next line; `None` when both streams have ended.
    fn next(&mut self, deadline: Instant) -> Option<(Stream, Vec<u8>)> {
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((stream, line)) => {
                let text = if stream == Stream::Stdout { &mut self.stdout } else { &mut self.stderr };
                text.extend(&line);
                Some((stream, line))
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
            Err(mpsc::RecvTimeoutError::Timeout) => self.give_up("hangs"),
        }
    }

    fn give_up(&mut self, why: &str) -> ! {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let (stdout, stderr) = (String::from_utf8_lossy(&self.stdout), String::from_utf8_lossy(&self.stderr));
        panic!("the program {why}\nstdout:\n{stdout}\nstderr:\n{stderr}")
    }
}

fn collect(stream: impl Read + Send + 'static, name: Stream, lines: mpsc::Sender<(Stream, Vec<u8>)>) {
    std::thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = Vec::new();
            match stream.read_until(b'\n', &mut line) {
                Ok(1..) if lines.send((name, line)).is_ok() => {}
                _ => break,
            }
        }
    });
}
