//! A server that an engine starts: its free port, its command, its health, its log and its end.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write, stderr};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use duct::ReaderHandle;
use protocol::{Failed, FailureKind};
use rustix::process::{Pid, Signal, kill_process};

use crate::Phases;

/// The last lines of a server's log that a failure quotes, and their length: the orchestrator keeps 1,000 characters of a failure,
/// and the last line has the reason most often.
const QUOTED_LINES: usize = 12;
const QUOTED_CHARACTERS: usize = 700;
/// The first lines of a log that are kept, because a server states its settings there.
const FIRST_LINES: usize = 500;
/// The longest line that is kept of a log.
const MAX_LINE_BYTES: u64 = 1000;
/// The time between two questions whether a server is healthy.
const HEALTH_INTERVAL: Duration = Duration::from_millis(20);
/// The time that a server has to end after SIGTERM. The orchestrator gives the engine 5 s to end with all its processes.
const END_TIME: Duration = Duration::from_secs(3);
/// The time between the end of a server's connections and the end of its process.
const EXIT_TIME: Duration = Duration::from_secs(1);

/// The servers of this process, for `end_all`.
static STARTED: Mutex<Vec<Weak<ReaderHandle>>> = Mutex::new(Vec::new());

/// A running server. It ends when this value is dropped, or with the process: it is a child of the engine, which the
/// orchestrator ends with all its descendants. Its log goes to stderr, where a failure of the engine finds it.
pub struct ChildServer {
    name: String,
    output: Arc<ReaderHandle>,
    log: Arc<Mutex<Log>>,
    /// Closed when the server and all holders of its output have ended.
    running: Receiver<()>,
}

/// The kept lines of an output.
#[derive(Default)]
struct Log {
    first: Vec<String>,
    last: VecDeque<String>,
}

/// A port of the loopback interface that no other engine of any run on this machine takes.
pub struct FreePort {
    pub number: u16,
    /// Locked while the port is in use.
    _lock: File,
}

impl FreePort {
    /// A port on which no program listens. Between this call and the start of the server, the lock keeps other engines away.
    pub fn find() -> Result<Self, Failed> {
        let find = || -> std::io::Result<Self> {
            // Other users may not write into a folder of this user.
            let user = rustix::process::getuid().as_raw();
            let folder = std::env::temp_dir().join(format!("orchestrate-ports-{user}"));
            std::fs::create_dir_all(&folder)?;
            loop {
                let number = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
                let lock = File::options()
                    .create(true)
                    .truncate(false)
                    .write(true)
                    .open(folder.join(number.to_string()))?;
                if lock.try_lock().is_ok() {
                    return Ok(Self { number, _lock: lock });
                }
            }
        };
        find()
            .map_err(|error| Failed::new(FailureKind::Internal, format!("cannot find a free port: {error}")))
    }
}

impl ChildServer {
    /// Starts a server: a program with its arguments.
    pub fn start(command: &[String]) -> Result<Self, Failed> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Failed::new(FailureKind::BadRequest, "the command of the server is empty"));
        };
        let output = duct::cmd(program, arguments).stdin_null().stderr_to_stdout().unchecked().reader();
        let output = Arc::new(output.map_err(|error| {
            Failed::new(FailureKind::Unavailable, format!("cannot start the server `{program}`: {error}"))
        })?);
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        started.retain(|output| output.strong_count() > 0);
        started.push(Arc::downgrade(&output));
        drop(started);
        let log = Arc::new(Mutex::new(Log::default()));
        let (keep_open, running) = channel();
        let (lines, kept) = (output.clone(), log.clone());
        thread::spawn(move || {
            read_log(&lines, &kept);
            drop(keep_open);
        });
        // A row of a table has no space for the folders of a path.
        let name = program.rsplit('/').next().unwrap_or(program).to_string();
        Ok(Self { name, output, log, running })
    }

    /// Waits until the server is healthy. Its end, or the end of the time, is an error with the end of its log.
    pub fn wait_until_healthy(
        &self,
        limit: Duration,
        phases: &Phases,
        mut is_healthy: impl FnMut() -> bool,
    ) -> Result<(), Failed> {
        let started = Instant::now();
        let mut reported = started;
        while !is_healthy() {
            if let Some(failed) = self.failure() {
                return Err(failed);
            }
            if started.elapsed() > limit {
                let message =
                    format!("the server `{}` was not healthy after {} s", self.name, limit.as_secs());
                return Err(self.with_log(FailureKind::Internal, message));
            }
            if reported.elapsed() > Duration::from_secs(1) {
                reported = Instant::now();
                phases.progress(started.elapsed().as_secs_f64() / limit.as_secs_f64(), self.last_line());
            }
            let _ = self.running.recv_timeout(HEALTH_INTERVAL);
        }
        Ok(())
    }

    /// The failure of a server whose connection broke, if the server ends. Its connections end before its process.
    pub fn failure_after_break(&self) -> Option<Failed> {
        let _ = self.running.recv_timeout(EXIT_TIME);
        self.failure()
    }

    /// The failure of a server that has ended.
    pub fn failure(&self) -> Option<Failed> {
        let ended = self.output.try_wait().ok()??;
        let message = format!("the server `{}` has ended ({})", self.name, ended.status);
        // The reading thread may not have read the last lines yet.
        let _ = self.running.recv_timeout(Duration::from_secs(1));
        Some(self.with_log(FailureKind::Internal, message))
    }

    fn with_log(&self, kind: FailureKind, message: String) -> Failed {
        match self.log().end() {
            end if end.is_empty() => Failed::new(kind, message),
            end => Failed::new(kind, format!("{message}: {end}")),
        }
    }

    fn last_line(&self) -> Option<String> {
        self.log().last.back().cloned()
    }

    /// The first value that `find` returns for a line of the log, from the start of the server on.
    pub fn find_in_log<T>(&self, find: impl Fn(&str) -> Option<T>) -> Option<T> {
        self.log().first.iter().find_map(|line| find(line))
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    /// The end of the log, as long as a failure quotes it.
    fn end(&self) -> String {
        let lines: Vec<&str> = self.last.iter().map(String::as_str).collect();
        let text = lines.join(" | ");
        match text.char_indices().rev().nth(QUOTED_CHARACTERS) {
            Some((position, _)) => format!("...{}", &text[position..]),
            None => text,
        }
    }
}

impl Drop for ChildServer {
    fn drop(&mut self) {
        terminate(&self.output);
        if self.running.recv_timeout(END_TIME) == Err(RecvTimeoutError::Timeout) {
            let _ = self.output.kill();
        }
    }
}

/// Tells all servers of this process to end, for a process that ends without dropping its values.
pub(crate) fn end_all() {
    let started = std::mem::take(&mut *STARTED.lock().unwrap_or_else(PoisonError::into_inner));
    started.iter().filter_map(Weak::upgrade).for_each(|output| terminate(&output));
}

fn terminate(output: &ReaderHandle) {
    // Another process may have the number of a process that has ended.
    if !matches!(output.try_wait(), Ok(None)) {
        return;
    }
    for pid in output.pids() {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

/// Writes an output to stderr, and keeps its first and its last lines, until its end.
fn read_log(output: &ReaderHandle, log: &Mutex<Log>) {
    let mut lines = BufReader::new(output);
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line).trim().to_string();
                if text.is_empty() {
                    continue;
                }
                // Without a reader of stderr, the log is kept nevertheless.
                let _ = writeln!(stderr(), "{text}");
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                if log.first.len() < FIRST_LINES {
                    log.first.push(text.clone());
                }
                log.last.push_back(text);
                while log.last.len() > QUOTED_LINES {
                    log.last.pop_front();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> ChildServer {
        ChildServer::start(&["sh".into(), "-c".into(), script.into()]).unwrap()
    }

    #[test]
    fn a_server_that_ends_before_it_is_healthy_is_reported_with_its_last_lines() {
        let server = shell("echo starting; echo 'no such model' >&2; exit 3");
        let failed =
            server.wait_until_healthy(Duration::from_secs(60), &Phases::new(None), || false).unwrap_err();
        assert!(failed.message.contains("the server `sh` has ended (exit status: 3)"), "{}", failed.message);
        assert!(failed.message.ends_with("starting | no such model"), "{}", failed.message);
    }

    #[test]
    fn a_healthy_server_runs_until_it_is_dropped() {
        let server = shell("trap 'exit 0' TERM; echo 'threads = 2'; echo ready; while :; do read line; done");
        let mut is_ready = || server.last_line().as_deref() == Some("ready");
        server.wait_until_healthy(Duration::from_secs(60), &Phases::new(None), &mut is_ready).unwrap();
        assert!(server.failure().is_none());
        let threads = |line: &str| line.strip_prefix("threads = ")?.parse::<u32>().ok();
        assert_eq!(server.find_in_log(threads), Some(2));
        let pid = Pid::from_raw(server.output.pids()[0].try_into().unwrap()).unwrap();
        drop(server);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn a_failure_quotes_the_end_of_a_long_log() {
        let server = shell("printf 'x%.0s' $(seq 900); echo; echo 'the reason'; exit 1");
        let failed = server.wait_until_healthy(Duration::from_secs(60), &Phases::new(None), || false);
        let message = failed.unwrap_err().message;
        assert!(message.ends_with("xx | the reason") && message.contains(": ...xx"), "{message}");
        assert!(message.len() < 800, "{message}");
    }

    #[test]
    fn two_free_ports_differ_while_both_are_held() {
        let (a, b) = (FreePort::find().unwrap(), FreePort::find().unwrap());
        assert_ne!(a.number, b.number);
    }
}
