//! Starts the first process of a launch, and waits for its end. The keeper does it, so that every process of an engine is a
//! descendant of the keeper, whatever the engine does. Without a keeper, a thread of this process does it.
//!
//! Each launch has a socket. The orchestrator writes a `Program`; the other end answers with a `Started` and, as soon as the
//! process has ended, with its status. The process is reaped when the orchestrator closes its end of the socket.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Error, IoSlice, IoSliceMut, Read, Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, waitid};
use serde::{Deserialize, Serialize};

use crate::machine::reap_ended_children;

/// A program to start, with its containment.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Program {
    pub program: OsString,
    pub arguments: Vec<String>,
    /// The whole environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The working folder.
    pub folder: OsString,
    /// The cgroups for the process: it enters the first one that admits it.
    pub cgroups: Vec<OsString>,
    /// The soft limit of file locks, which marks the process.
    pub locks_limit: Option<u64>,
}

/// The standard streams of a program: stdin, stdout, stderr.
pub type Streams = [OwnedFd; 3];

/// The answer to a `Program`.
#[derive(Debug, Serialize, Deserialize)]
enum Started {
    /// The process, and the monotonic clock just before its program began.
    Process { pid: u32, at_ns: u64 },
    /// The number of the system's error.
    Failed { errno: i32 },
}

/// A started process.
pub struct Spawned {
    pub pid: u32,
    /// Just before the program began, in its cgroup.
    pub started: Instant,
    pub connection: Connection,
}

/// The orchestrator's end of a launch's socket.
#[derive(Debug)]
pub struct Connection(BufReader<UnixStream>);

impl Connection {
    /// Waits for the end of the process. `None` if its status is not available.
    pub fn status(&mut self) -> Option<i32> {
        read_message(&mut self.0).ok().flatten()
    }

    /// The handle whose `shutdown` allows that the process is reaped.
    pub fn handle(&self) -> Result<UnixStream> {
        self.0.get_ref().try_clone()
    }
}

/// A handle to the keeper process.
#[derive(Debug, Clone)]
pub struct KeeperHandle {
    pub pid: u32,
    pub control: Arc<UnixStream>,
}

/// Starts a program through the keeper.
pub fn spawn(keeper: Option<&KeeperHandle>, program: &Program, streams: Streams) -> Result<Spawned> {
    let (own, remote) = UnixStream::pair()?;
    match keeper {
        // After this, only the keeper holds the remote end. So the keeper's death ends the wait for an answer.
        Some(keeper) => send(&keeper.control, remote, streams)?,
        None => drop(std::thread::spawn(move || Spawner::default().serve(remote, streams))),
    }
    own.set_read_timeout(Some(MAX_START_TIME))?;
    write_message(&own, program)?;
    let mut connection = BufReader::new(own);
    match read_message(&mut connection)? {
        Started::Failed { errno } => Err(Error::from_raw_os_error(errno)),
        Started::Process { pid, at_ns } => {
            connection.get_ref().set_read_timeout(None)?;
            let (now, passed_ns) = (Instant::now(), monotonic_ns().saturating_sub(at_ns));
            let started = now.checked_sub(Duration::from_nanos(passed_ns)).unwrap_or(now);
            Ok(Spawned { pid, started, connection: Connection(connection) })
        }
    }
}

/// The longest time of a start. Only a stopped keeper takes longer.
const MAX_START_TIME: Duration = Duration::from_secs(60);
/// The byte on the control socket that comes with the handles of a launch.
const LAUNCH: u8 = b'L';
/// The byte on the control socket that says that the run ends and no program is being started.
pub const ENDS: u8 = b'.';
/// The handles of a launch: its socket and its streams.
const HANDLES: usize = 4;

fn send(control: &UnixStream, socket: UnixStream, [stdin, stdout, stderr]: Streams) -> Result<()> {
    let handles: [_; HANDLES] = [socket.as_fd(), stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDLES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&handles));
    sendmsg(control, &[IoSlice::new(&[LAUNCH])], &mut ancillary, SendFlags::NOSIGNAL)
        .map_err(|_| keeper_has_ended())?;
    Ok(())
}

fn keeper_has_ended() -> Error {
    Error::other("the keeper process of this run has ended")
}

/// A message on the control socket.
pub enum Message {
    Launch(UnixStream, Streams),
    Ends,
}

/// The next message. `None` at the end of the control socket.
pub fn receive(control: &UnixStream) -> Option<Message> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HANDLES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    loop {
        // Programs must not inherit the handles.
        #[cfg(target_os = "linux")]
        let flags = RecvFlags::CMSG_CLOEXEC;
        #[cfg(not(target_os = "linux"))]
        let flags = RecvFlags::empty();
        match recvmsg(control, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            Ok(received) if received.bytes > 0 => break,
            _ => return None,
        }
    }
    let handles = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(handles) => Some(handles),
        _ => None,
    });
    let handles: Vec<OwnedFd> = handles.flatten().collect();
    match (byte, <[OwnedFd; HANDLES]>::try_from(handles)) {
        ([LAUNCH], Ok([socket, stdin, stdout, stderr])) => {
            Some(Message::Launch(socket.into(), [stdin, stdout, stderr]))
        }
        ([ENDS], _) => Some(Message::Ends),
        _ => None,
    }
}

/// The started programs that are not reaped yet.
#[derive(Debug, Default)]
pub struct Spawner(Mutex<Children>);

#[derive(Debug, Default)]
struct Children {
    is_closed: bool,
    pids: BTreeSet<u32>,
}

impl Spawner {
    /// Starts the program that arrives on the socket of a launch, and reports its end.
    pub fn serve(&self, socket: UnixStream, streams: Streams) {
        let mut connection = BufReader::new(socket);
        // If the orchestrator was killed, the message is incomplete.
        let Ok(program) = read_message::<Program>(&mut connection) else { return };
        let (answer, child) = match self.spawn(&program, streams) {
            Ok((child, at_ns)) => (Started::Process { pid: child.id(), at_ns }, Some(child)),
            // The error of a text with a zero byte has no number.
            Err(error) => (Started::Failed { errno: error.raw_os_error().unwrap_or(libc::EINVAL) }, None),
        };
        // The orchestrator may have been killed. Then the keeper ends the process.
        let _ = write_message(connection.get_ref(), &answer);
        let Some(mut child) = child else { return };
        let _ = write_message(connection.get_ref(), &status_of(&child));
        // Nothing is sent, so this waits until the orchestrator allows that the process is reaped.
        let _ = connection.read(&mut [0]);
        // Under the lock, because the kernel may give the number to the next program. The process has ended, so this does not wait.
        if let Ok(mut children) = self.0.lock() {
            let _ = child.wait();
            children.pids.remove(&child.id());
        }
    }

    fn spawn(&self, program: &Program, streams: Streams) -> Result<(Child, u64)> {
        let mut children = self.0.lock().map_err(|_| keeper_has_ended())?;
        if children.is_closed {
            return Err(keeper_has_ended());
        }
        let (child, at_ns) = start(program, streams)?;
        children.pids.insert(child.id());
        Ok((child, at_ns))
    }

    /// After this, no program can start, and none is being started.
    pub fn close(&self) {
        if let Ok(mut children) = self.0.lock() {
            children.is_closed = true;
        }
    }

    /// Reaps the ended processes that this process adopted.
    pub fn reap_adopted(&self) {
        if let Ok(children) = self.0.lock() {
            reap_ended_children(|pid| children.pids.contains(&pid));
        }
    }
}

/// Starts the program in its containment. Also returns the monotonic clock just before it began: entering a cgroup takes
/// milliseconds, and is no work of the program.
fn start(program: &Program, [stdin, stdout, stderr]: Streams) -> Result<(Child, u64)> {
    #[expect(clippy::disallowed_methods, reason = "the one place that spawns engines")]
    let mut command = Command::new(&program.program);
    command.args(&program.arguments).current_dir(&program.folder).process_group(0);
    command.env_clear().envs(program.environment.iter().map(|(name, value)| (name, value)));
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    let members = program
        .cgroups
        .iter()
        .filter_map(|cgroup| File::options().write(true).open(Path::new(cgroup).join("cgroup.procs")).ok());
    let members: Vec<File> = members.collect();
    let locks_limit = program.locks_limit;
    let image = Image::of(program)?;
    let (mut clock, clock_writer) = std::io::pipe()?;
    let enter = move || {
        // The number 0 is the writing process. Its children are in the same cgroup.
        let _ = members.iter().find(|it| rustix::io::write(it, b"0").is_ok());
        if let Some(limit) = locks_limit {
            limit_locks(limit);
        }
        let _ = rustix::io::write(&clock_writer, &monotonic_ns().to_ne_bytes());
        image.as_ref().map_or(Ok(()), |image| Err(image.begin()))
    };
    #[expect(unsafe_code, reason = "no safe function runs in a process before its program begins")]
    // SAFETY: `enter` makes system calls on handles that exist. It allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(enter);
    }
    let child = command.spawn()?;
    // The command holds the other ends of the pipes.
    drop(command);
    let mut at_ns = [0; size_of::<u64>()];
    let at_ns = clock.read_exact(&mut at_ns).map_or_else(|_| monotonic_ns(), |()| u64::from_ne_bytes(at_ns));
    Ok((child, at_ns))
}

/// The texts with which a program at a path begins. Without this, the C library would give a file that is no program to `sh`.
struct Image {
    program: CString,
    arguments: Texts,
    environment: Texts,
}

/// Texts, and the list of their addresses that the kernel reads.
struct Texts {
    addresses: Vec<*const libc::c_char>,
    _texts: Vec<CString>,
}

#[expect(unsafe_code, reason = "addresses are not sent to threads by default")]
// SAFETY: the addresses are those of the texts beside them, which nothing changes.
unsafe impl Send for Texts {}
#[expect(unsafe_code, reason = "addresses are not shared by threads by default")]
// SAFETY: as above.
unsafe impl Sync for Texts {}

impl Image {
    /// `None` for a name that is searched in PATH.
    fn of(program: &Program) -> Result<Option<Self>> {
        let path = program.program.as_bytes();
        if !path.contains(&b'/') {
            return Ok(None);
        }
        let arguments = program.arguments.iter().map(|it| it.as_bytes().to_vec());
        let variables: BTreeMap<&OsString, &OsString> =
            program.environment.iter().map(|(name, value)| (name, value)).collect();
        let variables = variables.iter().map(|(name, value)| [name.as_bytes(), value.as_bytes()].join(&b'='));
        Ok(Some(Self {
            program: CString::new(path)?,
            arguments: Texts::of(std::iter::once(path.to_vec()).chain(arguments))?,
            environment: Texts::of(variables)?,
        }))
    }

    /// Begins the program. Returns only an error.
    fn begin(&self) -> Error {
        let [arguments, environment] = [&self.arguments, &self.environment].map(|it| it.addresses.as_ptr());
        #[expect(unsafe_code, reason = "no safe function replaces the program and returns its error")]
        // SAFETY: both lists end with a null address, and their texts end with a zero byte.
        unsafe {
            libc::execve(self.program.as_ptr(), arguments, environment);
        }
        Error::last_os_error()
    }
}

impl Texts {
    fn of(texts: impl Iterator<Item = Vec<u8>>) -> Result<Self> {
        let texts = texts.map(CString::new).collect::<std::result::Result<Vec<_>, _>>()?;
        let addresses = texts.iter().map(|it| it.as_ptr()).chain([std::ptr::null()]).collect();
        Ok(Self { addresses, _texts: texts })
    }
}

#[cfg(target_os = "linux")]
fn limit_locks(limit: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Locks).maximum;
    // If limits cannot be set, only the environment has the mark.
    let _ = setrlimit(Resource::Locks, Rlimit { current: Some(limit), maximum });
}

#[cfg(not(target_os = "linux"))]
fn limit_locks(_: u64) {}

/// The monotonic clock, which all processes of the machine share. Safe between `fork` and `exec`.
#[expect(unsafe_code, reason = "rustix may allocate when it reads the clock for the first time")]
fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Waits for the end of a child, which is not reaped. `None` if the system does not give its status: this process may have been
/// started with SIGCHLD ignored.
fn status_of(child: &Child) -> Option<i32> {
    let pid = Pid::from_raw(i32::try_from(child.id()).ok()?)?;
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Ok(Some(status)) => return raw_status(&status),
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// The status in the form of `wait`: a code in the second byte, or a signal's number in the first.
fn raw_status(status: &WaitIdStatus) -> Option<i32> {
    const CORE_DUMPED: i32 = 0x80;
    let code = status.exit_status().map(|code| (code & 0xff) << 8);
    let dumped = if status.dumped() { CORE_DUMPED } else { 0 };
    code.or_else(|| status.terminating_signal().map(|signal| signal | dumped))
}

fn write_message(mut socket: &UnixStream, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    socket.write_all(&line)
}

fn read_message<T: for<'a> Deserialize<'a>>(connection: &mut BufReader<UnixStream>) -> Result<T> {
    let mut line = Vec::new();
    connection.read_until(b'\n', &mut line)?;
    match line.pop() {
        Some(b'\n') => Ok(serde_json::from_slice(&line)?),
        _ => Err(keeper_has_ended()),
    }
}
