//! One process of an engine. It has its own process group, its lines get time stamps when their bytes arrive, and it is always
//! ended.
//!
//! Only `spawn` starts processes. This module does not parse their lines.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{ErrorKind, PipeReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use protocol::{Frame, Framer};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::mpsc;

use super::containment::Containment;
use super::handles::{Leader, ProcessHandle};
use super::spawn::{KeeperHandle, Program, Spawned, spawn};
use super::variables::{PassedVariables, Secrets};
use crate::machine::{ProcessFamily, is_stopped};

/// The maximum number of stored lines of stderr, and of characters of each line.
const MAX_STDERR_LINES: usize = 40;
const MAX_STDERR_LINE_CHARS: usize = 400;
/// Time limits for the remaining output of a process that has ended. The output comes at once, unless a busy machine delays the
/// threads that read the pipes. Unread bytes in a pipe then extend the wait, up to `MAX_OUTPUT_WAIT`.
const MIN_OUTPUT_WAIT: Duration = Duration::from_millis(200);
const MAX_OUTPUT_WAIT: Duration = Duration::from_secs(10);
/// The maximum number of searches in one pause, because an engine may start processes without end.
const MAX_PAUSE_SEARCHES: usize = 10;
/// The maximum number of received lines that no call of `line` has taken. After that the pipe fills and the engine's
/// writes block, so this program's memory does not grow.
const MAX_UNREAD_LINES: usize = 64;

/// The command to start, and its environment.
#[derive(Debug, Clone, Default)]
pub struct Launching {
    pub label: String,
    pub command: Vec<String>,
    pub variables: Vec<(String, OsString)>,
    /// The ids of the run and of this launch. They mark the environment of every process, so leftovers are found.
    pub run: String,
    pub launch: String,
    /// Shows the engine's stderr, and every line in both directions.
    pub debug: bool,
    /// The user's environment variables that the engine gets beside the usual ones.
    pub passed: PassedVariables,
    /// The keeper, which starts the process. Without one, a thread of this program starts it.
    pub keeper: Option<KeeperHandle>,
}

/// A line on the engine's stdout, with the time at which its last bytes arrived.
#[derive(Debug)]
pub struct Line {
    pub at: Instant,
    pub frame: Frame,
    /// False for a line without a newline, which ends the output.
    pub is_complete: bool,
}

#[derive(Debug)]
pub struct Process {
    leader: Leader,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<Line>,
    stderr: Arc<Mutex<VecDeque<String>>>,
    /// Receives no values. It closes when stderr ends.
    stderr_open: mpsc::Receiver<()>,
    /// Handles to stdout and stderr, which show whether these hold unread bytes. Other handles read them.
    pipes: [PipeReader; 2],
    containment: Arc<Mutex<Containment>>,
    /// The working folder of the launch.
    pub folder: PathBuf,
    family: Arc<Mutex<ProcessFamily>>,
    /// The paused processes of this launch, in any process group.
    paused: Vec<ProcessHandle>,
    label: String,
    debug: bool,
    /// Values that are removed from the engine's lines, because lines get into the record.
    secrets: Secrets,
    /// No process of this launch runs any more.
    is_ended: bool,
    pub pid: u32,
    /// Just before the program began.
    pub started: Instant,
}

impl Process {
    pub fn start(launching: &Launching) -> std::io::Result<Self> {
        let (program, arguments) = launching.command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
        let (stdout, child_stdout) = std::io::pipe()?;
        let (stderr, child_stderr) = std::io::pipe()?;
        let pipes = [stdout.try_clone()?, stderr.try_clone()?];
        let (child_stdin, stdin) = std::io::pipe()?;
        let mut environment: Vec<(OsString, OsString)> = launching.passed.of_environment();
        environment.extend(launching.variables.iter().map(|(name, value)| (name.into(), value.clone())));
        let mut program = Program {
            program: from_users_folder(program)?.into(),
            arguments: arguments.to_vec(),
            environment,
            ..Program::default()
        };
        let mut containment = Containment::new(&launching.run, &launching.launch)?;
        containment.contain(&mut program);
        let streams = [child_stdin.into(), child_stdout.into(), child_stderr.into()];
        let spawned = spawn(launching.keeper.as_ref(), &program, streams);
        let started = spawned.and_then(|Spawned { pid, started, connection }| {
            let stdin = ChildStdin::from_std(OwnedFd::from(stdin).into())?;
            Ok((pid, started, Leader::new(pid, connection)?, stdin))
        });
        if started.is_err() {
            containment.end();
        }
        let (pid, started, leader, stdin) = started?;
        let (sender, lines) = mpsc::channel(MAX_UNREAD_LINES);
        let stored_lines = Arc::new(Mutex::new(VecDeque::new()));
        let (last_lines, label, debug) =
            (Arc::clone(&stored_lines), launching.label.clone(), launching.debug);
        std::thread::spawn(move || read_lines(stdout, &sender));
        let (open, stderr_open) = mpsc::channel(1);
        let secrets = launching.passed.secrets();
        let secrets_of_stderr = secrets.clone();
        std::thread::spawn(move || {
            store_last_lines(stderr, &last_lines, &secrets_of_stderr, debug.then_some(label.as_str()));
            drop(open);
        });
        Ok(Self {
            pid,
            stdin: Some(stdin),
            leader,
            lines,
            stderr: stored_lines,
            stderr_open,
            pipes,
            family: Arc::new(Mutex::new(containment.family())),
            folder: containment.folder.clone(),
            containment: Arc::new(Mutex::new(containment)),
            paused: Vec::new(),
            label: launching.label.clone(),
            debug,
            secrets,
            is_ended: false,
            started,
        })
    }

    /// Writes a whole line. This waits while the engine does not read, so the caller sets a deadline.
    pub async fn write(&mut self, line: &[u8]) -> std::io::Result<()> {
        if self.debug {
            show(&self.label, "<", line);
        }
        let stdin = self.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        stdin.write_all(line).await?;
        stdin.flush().await
    }

    /// The next line, or `None` when the engine can write no more: its stdout or its process has ended.
    pub async fn line(&mut self) -> Option<Line> {
        let line = tokio::select! {
            biased;
            line = self.lines.recv() => line,
            // A child of the engine may hold its stdout open. The engine's own output is in the pipe by now.
            _ = self.leader.ended() => receive_last(&mut self.lines, &self.pipes[0]).await,
        };
        let line = line.map(|line| self.without_secrets(line));
        if let (true, Some(Line { frame: Frame::Line(bytes), .. })) = (self.debug, &line) {
            show(&self.label, ">", bytes);
        }
        line
    }

    /// A line that has already arrived, if any.
    pub fn waiting_line(&mut self) -> Option<Line> {
        self.lines.try_recv().ok().map(|line| self.without_secrets(line))
    }

    fn without_secrets(&self, mut line: Line) -> Line {
        if let Frame::Line(bytes) = &mut line.frame {
            *bytes = self.secrets.removed_from(std::mem::take(bytes));
        }
        line
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Pauses every process of this launch, so that none of their threads runs while another engine is measured. A process that
    /// waits for a processor stops when it gets one, before it computes.
    pub async fn pause(&mut self) {
        if !self.leader.keeps_its_number() {
            return;
        }
        self.leader.signal_group(Signal::STOP);
        // Processes that left the group are descendants or carry the mark. A running process may start another one during the
        // search, so the loop ends when a search finds no new process.
        for _ in 0..MAX_PAUSE_SEARCHES {
            let Some(family) = self.family().await else { break };
            // Another process may have reused a found number before its handle was opened. So a handle gets the signal only
            // after the next search has found its number too.
            self.paused.retain(|handle| family.contains(&handle.pid));
            signal_each(&self.paused, Signal::STOP);
            let known = self.paused.len();
            for pid in family {
                if !self.paused.iter().any(|handle| handle.pid == pid) {
                    self.paused.extend(ProcessHandle::open(pid));
                }
            }
            if self.paused.len() == known {
                break;
            }
        }
    }

    /// The processes to pause. Unlike `all`, this does not search the whole machine each time. The search has its own thread,
    /// because a process that is stuck in the kernel blocks the search.
    async fn family(&self) -> Option<Vec<u32>> {
        let (family, containment, first) =
            (Arc::clone(&self.family), Arc::clone(&self.containment), self.pid);
        let search = move || {
            let mut pids = family.lock().ok()?.processes(first);
            pids.extend(containment.lock().ok()?.processes_in_cgroups());
            pids.sort_unstable();
            pids.dedup();
            Some(pids)
        };
        tokio::task::spawn_blocking(search).await.ok()?
    }

    /// Every process of this launch, including those that left the group and the tree.
    pub async fn all(&self) -> Vec<u32> {
        let containment = Arc::clone(&self.containment);
        let search = move || containment.lock().map(|it| it.processes()).unwrap_or_default();
        tokio::task::spawn_blocking(search).await.unwrap_or_default()
    }

    /// A process of this launch that a signal has stopped, other than by `pause`.
    pub async fn stopped(&self) -> Option<u32> {
        if !self.paused.is_empty() {
            return None;
        }
        let family = self.family().await?;
        family.into_iter().find(|&pid| is_stopped(pid))
    }

    pub fn resume(&mut self) {
        let paused = std::mem::take(&mut self.paused);
        signal_each(&paused, Signal::CONT);
        self.leader.signal_group(Signal::CONT);
    }

    /// The exit status, if the process ends within `grace`. Its remaining output on stderr has been read by then.
    pub async fn wait(&mut self, grace: Duration) -> Option<ExitStatus> {
        let status = tokio::time::timeout(grace, self.leader.ended()).await.ok()?;
        // A child of the engine may hold its stderr open, so this wait has its own limit.
        receive_last(&mut self.stderr_open, &self.pipes[1]).await;
        status
    }

    /// The keeper has ended, so it is unknown whether the process runs.
    pub fn is_lost(&self) -> bool {
        self.leader.is_lost()
    }

    pub fn stderr(&self) -> Vec<String> {
        self.stderr.lock().map(|lines| lines.iter().cloned().collect()).unwrap_or_default()
    }

    /// Adds a line that was not on stderr to the stored lines of stderr.
    pub fn note(&self, line: &str) {
        push(&self.stderr, line);
    }

    /// Ends the process: closes its stdin, if necessary sends SIGTERM and SIGKILL, and ends all leftovers. Returns
    /// the commands of the leftovers.
    pub async fn end(&mut self, grace: Duration) -> Vec<String> {
        self.resume();
        self.close_stdin();
        if !self.has_ended(grace).await {
            self.leader.signal_group(Signal::TERM);
            if !self.has_ended(grace.min(Duration::from_secs(1))).await {
                self.leader.signal_group(Signal::KILL);
                // SIGKILL cannot be refused; only a process stuck in the kernel survives this wait.
                self.has_ended(Duration::from_secs(5)).await;
            }
        }
        // This ends the processes left in the group, with or without the mark.
        self.leader.end_group();
        let containment = Arc::clone(&self.containment);
        let end = move || containment.lock().map(|mut it| it.end()).unwrap_or_default();
        let left = tokio::task::spawn_blocking(end).await;
        self.is_ended = left.is_ok();
        left.unwrap_or_default()
    }

    async fn has_ended(&mut self, grace: Duration) -> bool {
        self.wait(grace).await.is_some()
    }
}

/// A program's path, made absolute: it begins at the user's folder, not at the working folder of the launch.
fn from_users_folder(program: &str) -> std::io::Result<PathBuf> {
    if program.contains('/') { std::path::absolute(program) } else { Ok(Path::new(program).into()) }
}

/// The next item from a pipe whose writer has ended, or `None` if nothing more comes.
async fn receive_last<T>(receiver: &mut mpsc::Receiver<T>, pipe: &PipeReader) -> Option<T> {
    let began = Instant::now();
    loop {
        match tokio::time::timeout(MIN_OUTPUT_WAIT, receiver.recv()).await {
            Ok(item) => return item,
            Err(_) if began.elapsed() < MAX_OUTPUT_WAIT && holds_unread(pipe) => {}
            Err(_) => return None,
        }
    }
}

fn holds_unread(pipe: &PipeReader) -> bool {
    rustix::io::ioctl_fionread(pipe).is_ok_and(|bytes| bytes > 0)
}

fn signal_each(processes: &[ProcessHandle], signal: Signal) {
    processes.iter().for_each(|handle| handle.signal(signal));
}

/// The engine and its children end with the launch, even after a failure, Ctrl-C or a panic.
impl Drop for Process {
    fn drop(&mut self) {
        self.leader.end_group();
        // This blocks the thread for a few milliseconds at a time. A drop cannot be awaited, and a new thread might not finish
        // before the program ends. The number of searches is limited, and the keeper searches once more.
        if !self.is_ended
            && let Ok(mut containment) = self.containment.lock()
        {
            containment.end();
        }
    }
}

/// Reads and stamps lines on a thread that does nothing else.
fn read_lines(mut stdout: impl Read, lines: &mpsc::Sender<Line>) {
    let mut framer = Framer::default();
    let mut bytes = vec![0; 64 * 1024];
    let mut is_closed = false;
    while !is_closed {
        let Some(read) = read_some(&mut stdout, &mut bytes) else { break };
        let at = Instant::now();
        framer.push(&bytes[..read], |frame| {
            is_closed |= lines.blocking_send(Line { at, frame, is_complete: true }).is_err()
        });
        if framer.is_too_long() {
            // The line breaches the protocol now, and its end may never come.
            break;
        }
    }
    if let Some(frame) = framer.finish() {
        // The receiver may be gone.
        let _ = lines.blocking_send(Line { at: Instant::now(), frame, is_complete: false });
    }
}

fn store_last_lines(
    mut stderr: impl Read,
    lines: &Mutex<VecDeque<String>>,
    secrets: &Secrets,
    label: Option<&str>,
) {
    // Longer lines are skipped. The limit is far above the stored length of a line.
    let mut framer = Framer::with_max_bytes(64 * 1024);
    let mut bytes = vec![0; 16 * 1024];
    let store = |frame| {
        let Frame::Line(line) = frame else { return };
        let line = secrets.removed_from(line);
        if let Some(label) = label {
            show(label, "!", &line);
        }
        push(lines, &String::from_utf8_lossy(&line));
    };
    while let Some(read) = read_some(&mut stderr, &mut bytes) {
        framer.push(&bytes[..read], store);
    }
    framer.finish().into_iter().for_each(store);
}

/// Reads the available bytes, and waits if there are none. `None` is the end of the stream or a permanent error. A read that a
/// signal interrupts is repeated.
fn read_some(stream: &mut impl Read, buffer: &mut [u8]) -> Option<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read.ok().filter(|&bytes| bytes > 0),
        }
    }
}

fn push(lines: &Mutex<VecDeque<String>>, line: &str) {
    let Ok(mut lines) = lines.lock() else { return };
    if lines.len() == MAX_STDERR_LINES {
        lines.pop_front();
    }
    lines.push_back(line.chars().take(MAX_STDERR_LINE_CHARS).collect());
}

#[expect(clippy::print_stderr, reason = "`--debug` shows both directions as they happen")]
fn show(label: &str, direction: &str, line: &[u8]) {
    let text = String::from_utf8_lossy(line);
    let shown: String = text.trim_end().chars().take(2000).collect();
    let more = if shown.len() < text.trim_end().len() { "..." } else { "" };
    eprintln!("[{label}] {direction} {shown}{more}");
}

#[cfg(test)]
mod tests;
