//! One process of an engine: started in a group of its own, its lines stamped as their bytes arrive, ended for certain.
//!
//! Knows nothing of what the lines say. The only place that spawns engines.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use protocol::{Frame, Framer, environment};
use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;
use tokio::sync::mpsc;

use super::found::Found;
use super::keeper::end_marked;
use super::leader::Leader;
use super::stream::read_some;
use crate::machine::{Family, processes_marked};

/// Lines of stderr that are kept, and how much of each.
const STDERR_LINES: usize = 40;
const STDERR_LINE_BYTES: usize = 400;
/// What a process that has ended wrote is in its pipes: it comes at once, unless a busy machine keeps the threads that read them
/// from a core. Then what lies there unread says that there is more, and it is waited for, but not for ever.
const AT_ONCE: Duration = Duration::from_millis(200);
const AT_LAST: Duration = Duration::from_secs(10);
/// An engine that starts processes without end is stopped as far as it goes.
const LOOKS_BEFORE_REST: usize = 10;
/// Lines that may wait to be read. When they are full the engine's next write waits, not this program's memory.
const LINES_WAITING: usize = 64;

/// What to start, and with what around it.
#[derive(Debug, Clone, Default)]
pub struct Launching {
    pub label: String,
    pub command: Vec<String>,
    pub variables: Vec<(String, OsString)>,
    /// The run's id and this launch's: marks by which leftovers are found.
    pub run: String,
    pub launch: String,
    /// Show what the engine says on stderr, and every line in both directions.
    pub debug: bool,
}

/// A line on the engine's stdout, with the time at which its last bytes arrived.
#[derive(Debug)]
pub struct Line {
    pub at: Instant,
    pub frame: Frame,
    /// It ended with a newline. The last words of an engine that died may not.
    pub whole: bool,
}

#[derive(Debug)]
pub struct Process {
    leader: Leader,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<Line>,
    stderr: Arc<Mutex<VecDeque<String>>>,
    /// Gives nothing, and ends when stderr does.
    stderr_open: mpsc::Receiver<()>,
    /// Of stdout and of stderr, to see whether anything lies in them. Others read.
    pipes: [PipeReader; 2],
    launch: String,
    family: Arc<Mutex<Family>>,
    /// Processes of this launch that are stopped, in whatever group.
    resting: Vec<Found>,
    label: String,
    debug: bool,
    /// Nothing of this launch runs any more.
    is_ended: bool,
    pub pid: u32,
    /// Just before the process was started.
    pub started: Instant,
}

impl Process {
    pub fn start(launching: &Launching) -> std::io::Result<Self> {
        let (program, arguments) = launching.command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
        let (stdout, child_stdout) = std::io::pipe()?;
        let (stderr, child_stderr) = std::io::pipe()?;
        let pipes = [stdout.try_clone()?, stderr.try_clone()?];
        #[expect(clippy::disallowed_methods, reason = "the one place that spawns engines")]
        let mut command = Command::new(program);
        command.args(arguments).envs(launching.variables.iter().map(|(name, value)| (name, value)));
        command.env(environment::RUN, &launching.run).env(environment::LAUNCH, &launching.launch);
        command.stdin(Stdio::piped()).stdout(child_stdout).stderr(child_stderr).process_group(0);
        let started = Instant::now();
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        let leader = Leader::new(child);
        // The command holds the pipes' other ends; while they are open no stream of the engine's ever ends.
        drop(command);
        let (sender, lines) = mpsc::channel(LINES_WAITING);
        let ring = Arc::new(Mutex::new(VecDeque::new()));
        let (kept, label, debug) = (Arc::clone(&ring), launching.label.clone(), launching.debug);
        std::thread::spawn(move || read_lines(stdout, &sender));
        let (open, stderr_open) = mpsc::channel(1);
        std::thread::spawn(move || {
            keep_last_lines(stderr, &kept, debug.then_some(label.as_str()));
            drop(open);
        });
        Ok(Self {
            pid: leader.pid,
            stdin: stdin.map(ChildStdin::from_std).transpose()?,
            leader,
            lines,
            stderr: ring,
            stderr_open,
            pipes,
            launch: launching.launch.clone(),
            family: Arc::new(Mutex::new(Family::marked(environment::LAUNCH, launching.launch.clone()))),
            resting: Vec::new(),
            label: launching.label.clone(),
            debug,
            is_ended: false,
            started,
        })
    }

    /// Writes a whole line. An engine that has stopped reading makes this wait, so give it a deadline.
    pub async fn write(&mut self, line: &[u8]) -> std::io::Result<()> {
        if self.debug {
            show(&self.label, "<", line);
        }
        let stdin = self.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        stdin.write_all(line).await?;
        stdin.flush().await
    }

    /// The next line, or `None` when the engine can write no more: its stdout has ended, or it has.
    pub async fn line(&mut self) -> Option<Line> {
        let line = tokio::select! {
            biased;
            line = self.lines.recv() => line,
            // A child of the engine's may hold its stdout open. What the engine itself wrote is in the pipe by now.
            _ = self.leader.ended() => last_of(&mut self.lines, &self.pipes[0]).await,
        };
        if let (true, Some(Line { frame: Frame::Line(bytes), .. })) = (self.debug, &line) {
            show(&self.label, ">", bytes);
        }
        line
    }

    /// A line that is there already.
    pub fn waiting_line(&mut self) -> Option<Line> {
        self.lines.try_recv().ok()
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Stops every process of this launch, so that no thread of it spins while another engine is measured. The kernel does so
    /// before the signal's sender goes on running beside it.
    pub async fn rest(&mut self) {
        if !self.leader.keeps_its_number() {
            return;
        }
        self.leader.signal_group(Signal::SIGSTOP);
        // Those that have left the group are descendants, or carry the mark. One that still runs may start another while it is
        // looked for, so this ends with a look that finds no new one.
        for _ in 0..LOOKS_BEFORE_REST {
            let Some(family) = self.family().await else { break };
            // Who has a number that was found a moment ago is the one that was found if it is found again.
            self.resting.retain(|held| family.contains(&held.pid));
            signal_each(&self.resting, Signal::SIGSTOP);
            let known = self.resting.len();
            for pid in family {
                if !self.resting.iter().any(|held| held.pid == pid) {
                    self.resting.extend(Found::hold(pid));
                }
            }
            if self.resting.len() == known {
                break;
            }
        }
    }

    /// The processes of this launch, as they are looked for between requests. Reading of a process waits for it where it is stuck
    /// in the kernel, so a thread of its own reads.
    async fn family(&self) -> Option<Vec<u32>> {
        let (family, first) = (Arc::clone(&self.family), self.pid);
        let look = move || family.lock().ok().map(|mut family| family.processes(first));
        tokio::task::spawn_blocking(look).await.ok()?
    }

    /// Every process of this launch, also one that has left the group and the tree.
    pub async fn all(&self) -> Vec<u32> {
        let launch = self.launch.clone();
        let all = tokio::task::spawn_blocking(move || processes_marked(environment::LAUNCH, &launch));
        all.await.unwrap_or_default()
    }

    /// Lets it go on. True when it had been at rest.
    pub fn wake(&mut self) -> bool {
        let rested = std::mem::take(&mut self.resting);
        signal_each(&rested, Signal::SIGCONT);
        self.leader.signal_group(Signal::SIGCONT);
        !rested.is_empty()
    }

    /// How the process ended, if it does within `grace`. Its last words on stderr have been read by then.
    pub async fn wait(&mut self, grace: Duration) -> Option<ExitStatus> {
        let status = tokio::time::timeout(grace, self.leader.ended()).await.ok()?;
        // A child of the engine's may hold its stderr open, so this has an end of its own.
        last_of(&mut self.stderr_open, &self.pipes[1]).await;
        status
    }

    /// The last lines of stderr.
    pub fn stderr(&self) -> Vec<String> {
        self.stderr.lock().map(|lines| lines.iter().cloned().collect()).unwrap_or_default()
    }

    /// Adds a line of the orchestrator's own to what is kept of stderr.
    pub fn note(&self, line: &str) {
        push(&self.stderr, line);
    }

    /// Ends the process: a request to end, then SIGKILL, then whatever it left behind. Gives the number of leftovers.
    pub async fn end(&mut self, grace: Duration) -> usize {
        self.wake();
        self.close_stdin();
        if !self.has_ended(grace).await {
            self.leader.signal_group(Signal::SIGTERM);
            if !self.has_ended(grace.min(Duration::from_secs(1))).await {
                self.leader.signal_group(Signal::SIGKILL);
                // SIGKILL cannot be refused; only a process stuck in the kernel survives this wait.
                self.has_ended(Duration::from_secs(5)).await;
            }
        }
        // What it left in its own group, marked or not.
        self.leader.end_group();
        let launch = self.launch.clone();
        let left = tokio::task::spawn_blocking(move || end_marked(environment::LAUNCH, &launch)).await;
        self.is_ended = left.is_ok();
        left.unwrap_or_default()
    }

    async fn has_ended(&mut self, grace: Duration) -> bool {
        self.wait(grace).await.is_some()
    }
}

/// What comes of a pipe into which the process that has ended writes no more.
async fn last_of<T>(coming: &mut mpsc::Receiver<T>, pipe: &PipeReader) -> Option<T> {
    let began = Instant::now();
    loop {
        match tokio::time::timeout(AT_ONCE, coming.recv()).await {
            Ok(come) => return come,
            Err(_) if began.elapsed() < AT_LAST && holds_unread(pipe) => {}
            Err(_) => return None,
        }
    }
}

fn holds_unread(pipe: &PipeReader) -> bool {
    rustix::io::ioctl_fionread(pipe).is_ok_and(|bytes| bytes > 0)
}

fn signal_each(processes: &[Found], signal: Signal) {
    processes.iter().for_each(|held| held.signal(signal));
}

/// However the launch is left (a failure, Ctrl-C, a panic), the engine and its children end with it.
impl Drop for Process {
    fn drop(&mut self) {
        self.leader.end_group();
        // On this very thread, though it waits a few milliseconds at a time: a drop cannot be awaited, and a thread of its own
        // might not get to its end before the program does. It gives up after so many looks, and the keeper looks once more.
        if !self.is_ended {
            end_marked(environment::LAUNCH, &self.launch);
        }
    }
}

/// Blocks in `read`, so that the stamp is taken by a thread that does nothing else.
fn read_lines(mut stdout: impl Read, lines: &mpsc::Sender<Line>) {
    let mut framer = Framer::default();
    let mut bytes = vec![0; 64 * 1024];
    let mut gone = false;
    while !gone {
        let Some(read) = read_some(&mut stdout, &mut bytes) else { break };
        let at = Instant::now();
        framer.push(&bytes[..read], |frame| {
            gone |= lines.blocking_send(Line { at, frame, whole: true }).is_err()
        });
    }
    if let Some(frame) = framer.finish() {
        // Nobody may be listening any more.
        let _ = lines.blocking_send(Line { at: Instant::now(), frame, whole: false });
    }
}

fn keep_last_lines(mut stderr: impl Read, kept: &Mutex<VecDeque<String>>, label: Option<&str>) {
    // Lines past this bound are skipped: it is far more than is kept of one.
    let mut framer = Framer::with_bound(64 * 1024);
    let mut bytes = vec![0; 16 * 1024];
    let keep = |frame| {
        let Frame::Line(line) = frame else { return };
        if let Some(label) = label {
            show(label, "!", &line);
        }
        push(kept, &String::from_utf8_lossy(&line));
    };
    while let Some(read) = read_some(&mut stderr, &mut bytes) {
        framer.push(&bytes[..read], keep);
    }
    framer.finish().into_iter().for_each(keep);
}

fn push(kept: &Mutex<VecDeque<String>>, line: &str) {
    let Ok(mut kept) = kept.lock() else { return };
    if kept.len() == STDERR_LINES {
        kept.pop_front();
    }
    kept.push_back(line.chars().take(STDERR_LINE_BYTES).collect());
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
