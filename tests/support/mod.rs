//! Shared parts of the tests: the program, the fake engine, a folder for each test, and a limit on every wait.

#![allow(dead_code, reason = "each test binary uses a part of this module")]

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

/// A process that needs longer than this counts as hanging. Waits on a slow machine are far shorter.
pub const MAX_WAIT: Duration = Duration::from_secs(300);

/// An environment variable of the processes that a `Scratch` starts. It identifies those that remain after the test.
const TEST_ID_VARIABLE: &str = "ORCHESTRATE_TEST";

/// The options of the workload that most tests measure: `decode` without a depth.
pub const DECODE: [&str; 4] = ["-s", "decode", "--depth", "0"];

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    #[expect(clippy::disallowed_methods, reason = "these tests start processes; each test ends its own")]
    Command::new(program)
}

/// Writes an executable, in another process. If this process wrote the file, a program that a parallel test starts could
/// inherit the open file. The kernel does not start an executable that is open for writing.
pub fn write_program(path: &Path, text: &str) {
    let script = "printf %s \"$2\" >\"$1\" && chmod 755 \"$1\"";
    let status = command("sh").args(["-c", script, "sh"]).arg(path).arg(text).status().unwrap();
    assert!(status.success(), "no program at `{}`", path.display());
}

/// Copies an executable in another process, as `write_program` does.
pub fn copy_program(from: &Path, to: &Path) {
    let status = command("cp").arg(from).arg(to).status().unwrap();
    assert!(status.success(), "no copy of `{}`", from.display());
}

pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().flatten() {
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

/// The path of the fake engine. The engine is a separate package, so each test process builds it once.
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

/// A folder for PATH that has the orchestrator and no other program.
fn folder_of_installed() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let program = Path::new(env!("CARGO_BIN_EXE_orchestrate"));
        let folder = program.with_file_name("orchestrate-on-path");
        std::fs::create_dir_all(&folder).unwrap();
        // Another test process may have made the link.
        let _ = std::os::unix::fs::symlink(program, folder.join("orchestrate"));
        folder
    })
}

/// The folder of one test. Dropping it removes the folder and kills the test's processes.
pub struct Scratch {
    pub path: PathBuf,
    test_id: String,
}

impl Scratch {
    /// A folder inside the checkout: the orchestrator finds the source tree from its working directory.
    pub fn new() -> Self {
        Self::under(&root().join("target/tmp"))
    }

    /// A folder outside the checkout, for tests of an installed program.
    pub fn outside_checkout() -> Self {
        Self::under(&std::env::temp_dir())
    }

    fn under(folder: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let test_id = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = folder.join(format!("orchestrate-test-{test_id}"));
        // A killed test with the same process number may have left this folder.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self { path, test_id }
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The orchestrator, with its data in this folder and without the user's settings. It is on PATH, as an installed one is, so
    /// that its hints name it `orchestrate` wherever it was built.
    pub fn orchestrate(&self) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_orchestrate"));
        let others = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{others}", folder_of_installed().display()));
        command
    }

    /// Writes a source tree with these engines, each with its name and its manifest in TOML, into this folder.
    pub fn write_tree(&self, engines: &[(&str, &str)]) {
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

    /// A copy of the orchestrator in this folder, outside the project's checkout. PATH has only the system's programs.
    pub fn orchestrate_without_checkout(&self) -> Command {
        let copy = self.join("bin/orchestrate");
        if !copy.exists() {
            std::fs::create_dir_all(self.join("bin")).unwrap();
            copy_program(Path::new(env!("CARGO_BIN_EXE_orchestrate")), &copy);
        }
        let mut command = self.command(copy);
        command
            .env("PATH", "/usr/bin:/bin")
            .env("CARGO_TARGET_DIR", self.join("target"))
            .current_dir(&self.path);
        command
    }

    /// Any program, with the environment of the orchestrator.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = command(program);
        for name in ["MODEL", "DEVICE", "DTYPE", "THREADS", "RUN", "LAUNCH", "PYTHON", "RESULTS"] {
            command.env_remove(format!("ORCHESTRATE_{name}"));
        }
        command.env_remove("FAKE_ENGINE").env_remove("CARGO_TARGET_DIR").env_remove("RUST_BACKTRACE");
        command.env("ORCHESTRATE_HOME", self.join("home")).env(TEST_ID_VARIABLE, &self.test_id);
        // PyTorch on this machine must not become a test's verifier. Tests of output checks name their own.
        command.env("ORCHESTRATE_VERIFIER", "none");
        // The settings of the fake engine and of the stand-ins for drivers and libraries.
        command.env("ORCHESTRATE_PASS_ENV", "FAKE_ENGINE*,STAND_IN*");
        // Tests run beside each other, and beside other programs. Tests of the lock set a folder of their own.
        command.env("ORCHESTRATE_CORE_LOCK", "off").env_remove("ORCHESTRATE_CGROUPS");
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

    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.join(name);
        write_program(&path, &format!("#!/bin/sh\n{text}\n"));
        path
    }

    /// The running processes of this test, with their command lines.
    pub fn live_processes(&self) -> Vec<(u32, String)> {
        let entry = format!("{TEST_ID_VARIABLE}={}", self.test_id);
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        pids.filter_map(|folder| {
            let pid = folder.file_name().to_str()?.parse().ok()?;
            // An unreadable process belongs to another user or has just ended.
            let environment = std::fs::read(folder.path().join("environ")).ok()?;
            environment.split(|&byte| byte == 0).find(|it| *it == entry.as_bytes())?;
            let command = std::fs::read(folder.path().join("cmdline")).unwrap_or_default();
            Some((pid, String::from_utf8_lossy(&command).replace('\0', " ")))
        })
        .collect()
    }

    pub fn assert_no_processes_left(&self) {
        let processes = self.live_processes();
        assert!(processes.is_empty(), "left running: {processes:?}");
    }

    /// Waits for processes that end a moment later than the orchestrator.
    pub fn wait_until_no_processes_left(&self) {
        wait_until("no process is left running", || self.live_processes().is_empty());
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for (pid, _) in self.live_processes() {
            let _ = command("kill").args(["-KILL", &pid.to_string()]).status();
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The build command for a manifest. The built program is a link to the fake engine.
pub fn build_command(program: &str) -> String {
    let fake = fake_engine().display();
    let script = format!("mkdir -p target/release; ln -sf {fake} target/release/{program}");
    format!("command = [\"sh\", \"-c\", \"{script}\"]\n")
}

pub fn without_line_breaks(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Quotes words for a shell's command line.
pub fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ")
}

#[track_caller]
pub fn wait_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < MAX_WAIT, "timed out: {condition}");
        std::thread::yield_now();
    }
}

/// The exit code and the output of a finished program.
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

    #[track_caller]
    pub fn assert_stdout(&self, texts: &[&str]) -> &Self {
        let missing: Vec<_> = texts.iter().filter(|text| !self.stdout.contains(**text)).collect();
        assert!(missing.is_empty(), "no {missing:?} in stdout: {self:?}");
        self
    }

    #[track_caller]
    pub fn assert_stderr(&self, texts: &[&str]) -> &Self {
        let missing: Vec<_> = texts.iter().filter(|text| !self.stderr.contains(**text)).collect();
        assert!(missing.is_empty(), "no {missing:?} in stderr: {self:?}");
        self
    }

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
        // The process may have ended; the test notices that later.
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
        let deadline = Instant::now() + MAX_WAIT;
        while let Some((stream, line)) = self.next(deadline) {
            let text = String::from_utf8_lossy(&line);
            if stream == Stream::Stderr && text.contains(words) {
                return text.into_owned();
            }
        }
        self.kill_and_panic(&format!("ended without `{words}`"))
    }

    /// The next line on stdout.
    pub fn line(&mut self) -> Vec<u8> {
        let deadline = Instant::now() + MAX_WAIT;
        while let Some((stream, line)) = self.next(deadline) {
            if stream == Stream::Stdout {
                return line;
            }
        }
        self.kill_and_panic("ended, and another line was expected")
    }

    pub fn finish(mut self) -> Outcome {
        self.stdin = None;
        let deadline = Instant::now() + MAX_WAIT;
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
            Err(mpsc::RecvTimeoutError::Timeout) => self.kill_and_panic("hangs"),
        }
    }

    fn kill_and_panic(&mut self, reason: &str) -> ! {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let (stdout, stderr) = (String::from_utf8_lossy(&self.stdout), String::from_utf8_lossy(&self.stderr));
        panic!("the program {reason}\nstdout:\n{stdout}\nstderr:\n{stderr}")
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
