//! The containment of one launch: how all of its processes are found and ended, and how its working folder is removed.
//!
//! - Its processes are found by the launch's mark, which they inherit from their beginning.
//! - Where this user may make a cgroup, they are in one from their beginning. Version 2 (from Linux 5.14) ends all of them at
//!   once, even if they start others without end.
//! - The keeper, and then this process, adopt processes whose parent has ended, so they stay among their descendants.
//! - Its working folder is new, and is removed with all content.

use std::collections::BTreeMap;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use protocol::environment;
use rustix::process::Signal;

use super::handles::ProcessHandle;
use super::spawn::Program;
use crate::machine::{Mark, ProcessFamily, command_line, descendants_of};
use crate::shell::{Usage, parse_bytes};

/// The environment variable that selects the version of cgroups for launches.
const CGROUPS_VARIABLE: &str = "ORCHESTRATE_CGROUPS";
/// The environment variable with the largest size of a working folder.
pub const FOLDER_LIMIT_VARIABLE: &str = "ORCHESTRATE_WORKING_FOLDER_LIMIT";
const DEFAULT_FOLDER_LIMIT: u64 = 2_000_000_000;
/// The least size that counts for a file or a folder, so that empty ones count too.
const MIN_FILE_BYTES: u64 = 4096;
/// The most searches for remaining processes. A killed process is listed until it is reaped, which never happens while it is
/// stuck in the kernel.
const MAX_SEARCHES: u32 = 100;
const SEARCH_INTERVAL: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub struct Containment {
    mark: Mark,
    run: String,
    launch: String,
    /// The folders of the launch's cgroups, in each hierarchy that allows it. Its processes are in the first one that admits them.
    cgroups: Vec<PathBuf>,
    /// The working folder of the launch.
    pub folder: PathBuf,
}

impl Containment {
    /// Makes the working folder of a launch.
    pub fn new(run: &str, launch: &str) -> std::io::Result<Self> {
        let folder = folder_of_run(run).join(name_in_run(launch));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let mark = Mark::of_launch(environment::LAUNCH, run, launch);
        Ok(Self { mark, run: run.into(), launch: launch.into(), cgroups: Vec::new(), folder })
    }

    /// Makes the launch's first process start in this containment.
    pub fn contain(&mut self, program: &mut Program) {
        let variables = [(environment::RUN, &self.run), (environment::LAUNCH, &self.launch)];
        program.environment.extend(variables.map(|(name, value)| (name.into(), value.into())));
        program.folder = self.folder.clone().into();
        // Unit tests have no run.
        if self.run.is_empty() {
            return;
        }
        program.locks_limit = Some(self.mark.limit());
        let name = name_in_run(&self.launch);
        let folders = cgroups_of_run(&self.run).into_iter().map(|parent| parent.join(name));
        self.cgroups = folders.filter(|folder| std::fs::create_dir_all(folder).is_ok()).collect();
        program.cgroups = self.cgroups.iter().map(|folder| folder.clone().into()).collect();
    }

    /// The marked processes and their descendants.
    pub fn family(&self) -> ProcessFamily {
        ProcessFamily::marked(self.mark.clone())
    }

    /// Every process of the launch, in any process group, session or environment.
    pub fn processes(&self) -> Vec<u32> {
        let mut all = self.mark.processes();
        all.extend(self.processes_in_cgroups());
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The processes in the launch's cgroups.
    pub fn processes_in_cgroups(&self) -> impl Iterator<Item = u32> {
        self.cgroups.iter().flat_map(|cgroup| processes_in(cgroup))
    }

    /// Ends every process of the launch and removes its folders. Returns the command lines of the processes.
    pub fn end(&mut self) -> Vec<String> {
        let mut ended = BTreeMap::new();
        for _ in 0..MAX_SEARCHES {
            let living = self.processes();
            if living.is_empty() {
                break;
            }
            for &pid in &living {
                ended.entry(pid).or_insert_with(|| command_line(pid));
            }
            self.cgroups.iter().for_each(|cgroup| kill_all_in(cgroup));
            // A process may have ended by now. A process that reuses its number has no mark.
            kill_each(living, |pid| self.mark.is_on(pid));
            std::thread::sleep(SEARCH_INTERVAL);
        }
        self.cgroups.drain(..).for_each(|cgroup| remove_cgroup(&cgroup));
        let _ = std::fs::remove_dir_all(&self.folder);
        // The folder of the run is removed with its last launch; while it is not empty, this fails.
        let _ = std::fs::remove_dir(folder_of_run(&self.run));
        ended.into_iter().map(|(pid, command)| format!("`{command}` (process {pid})")).collect()
    }
}

/// If a working folder is above the limit: the bytes that were counted before the count stopped, and the limit.
pub fn excess_bytes(folder: &Path) -> Option<(u64, u64)> {
    let limit = folder_limit().unwrap_or(DEFAULT_FOLDER_LIMIT);
    let mut bytes = 0;
    add_bytes_in(folder, &mut bytes, limit);
    (bytes > limit).then_some((bytes, limit))
}

fn folder_limit() -> Option<u64> {
    std::env::var(FOLDER_LIMIT_VARIABLE).ok().and_then(|text| parse_bytes(&text))
}

/// Adds the sizes on the disk of the files and folders in `folder`, until the sum is above the limit.
fn add_bytes_in(folder: &Path, bytes: &mut u64, limit: u64) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        *bytes += (metadata.blocks() * 512).max(MIN_FILE_BYTES);
        if *bytes > limit {
            return;
        }
        if metadata.is_dir() {
            add_bytes_in(&entry.path(), bytes, limit);
        }
    }
}

/// The folder with the working folders of a run.
fn folder_of_run(run: &str) -> PathBuf {
    std::env::temp_dir().join(format!("orchestrate-{run}"))
}

/// The last part of a launch's identifier, which is unique in the run.
fn name_in_run(launch: &str) -> &str {
    launch.rsplit('/').next().unwrap_or(launch)
}

/// From now on this process adopts descendants whose parent has ended.
pub fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    {
        // Every number switches the adoption on. Without this feature (before Linux 3.4) the marks must suffice.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    }
}

/// Prepares this process for launches. Refuses invalid settings.
pub fn prepare() -> Result<(), Usage> {
    adopt_orphans();
    CgroupVersions::of_environment()?;
    match std::env::var(FOLDER_LIMIT_VARIABLE) {
        Ok(text) if parse_bytes(&text).is_none() => {
            Err(Usage(format!("{FOLDER_LIMIT_VARIABLE}: `{text}` is not a size, expected for example `2GB`")))
        }
        _ => Ok(()),
    }
}

/// Ends all descendants of this process, except the keeper, and returns their command lines. After the last launch these are
/// processes that removed every mark.
pub fn end_descendants(keeper: u32) -> Vec<String> {
    let mut ended = BTreeMap::new();
    for _ in 0..MAX_SEARCHES {
        let living: Vec<u32> = descendants_of(std::process::id()).filter(|&pid| pid != keeper).collect();
        if living.is_empty() {
            break;
        }
        for &pid in &living {
            ended.entry(pid).or_insert_with(|| command_line(pid));
        }
        kill_each(living, |pid| descendants_of(std::process::id()).any(|it| it == pid));
        std::thread::sleep(SEARCH_INTERVAL);
    }
    ended.into_iter().map(|(pid, command)| format!("`{command}` (process {pid})")).collect()
}

/// Ends every process of a run, the descendants of this process, and the processes that they start meanwhile, until
/// `empty_searches` searches in a row find none. Removes the folders of the run's launches.
pub fn end_run(run: &str, empty_searches: u32) {
    let mark = Mark::of_run(environment::RUN, run);
    let cgroups: Vec<PathBuf> = cgroups_of_run(run).into_iter().filter(|folder| folder.is_dir()).collect();
    let descendants = || descendants_of(std::process::id());
    let mut empty = 0;
    for _ in 0..MAX_SEARCHES + empty_searches {
        let mut living = mark.processes();
        living.extend(descendants());
        living.extend(cgroups.iter().flat_map(|folder| processes_in(folder)));
        empty = if living.is_empty() { empty + 1 } else { 0 };
        if empty >= empty_searches {
            break;
        }
        cgroups.iter().for_each(|folder| kill_all_in(folder));
        kill_each(living, |pid| mark.is_on(pid) || descendants().any(|it| it == pid));
        std::thread::sleep(SEARCH_INTERVAL);
    }
    cgroups.iter().for_each(|folder| remove_cgroup(folder));
    let _ = std::fs::remove_dir_all(folder_of_run(run));
}

/// Kills processes that are still the ones that a search found.
fn kill_each(pids: Vec<u32>, is_same: impl Fn(u32) -> bool) {
    for pid in pids {
        if let Some(handle) = ProcessHandle::open(pid).filter(|_| is_same(pid)) {
            handle.signal(Signal::KILL);
        }
    }
}

/// The versions of cgroups that launches may use.
struct CgroupVersions {
    two: bool,
    one: bool,
}

impl CgroupVersions {
    fn of_environment() -> Result<Self, Usage> {
        let (two, one) = match std::env::var(CGROUPS_VARIABLE).as_deref() {
            Err(_) | Ok("") => (true, true),
            Ok("2") => (true, false),
            Ok("1") => (false, true),
            Ok("none") => (false, false),
            Ok(other) => {
                let message =
                    format!("{CGROUPS_VARIABLE}: `{other}` is not known, expected `2`, `1` or `none`");
                return Err(Usage(message));
            }
        };
        Ok(Self { two, one })
    }
}

/// The folders in which the cgroups of a run's launches may lie, the preferred one first.
fn cgroups_of_run(run: &str) -> Vec<PathBuf> {
    let Ok(versions) = CgroupVersions::of_environment() else { return Vec::new() };
    let [two, one] = system::container::own_cgroups();
    let own = [two.filter(|_| versions.two), one.filter(|_| versions.one)].into_iter().flatten();
    own.map(|folder| folder.join(format!("orchestrate-{run}"))).collect()
}

/// The processes of a cgroup and of the cgroups below it.
fn processes_in(cgroup: &Path) -> Vec<u32> {
    let own = system::read(cgroup.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<u32> = own.lines().filter_map(|line| line.trim().parse().ok()).collect();
    // A process of another container has the number 0.
    pids.retain(|&pid| pid > 0);
    pids.extend(folders_in(cgroup).flat_map(|folder| processes_in(&folder)));
    pids
}

/// Kills every process of a cgroup and of the cgroups below it. Version 1, and Linux before 5.14, cannot do that at once.
fn kill_all_in(cgroup: &Path) {
    if std::fs::write(cgroup.join("cgroup.kill"), "1").is_err() {
        kill_each(processes_in(cgroup), |pid| processes_in(cgroup).contains(&pid));
    }
}

/// Removes a cgroup and the cgroups below it, and the cgroup of its run if no launch is left in it.
fn remove_cgroup(cgroup: &Path) {
    folders_in(cgroup).for_each(|folder| remove_cgroup(&folder));
    let _ = std::fs::remove_dir(cgroup);
    let is_of_run = |parent: &&Path| {
        parent.file_name().is_some_and(|name| name.to_string_lossy().starts_with("orchestrate-"))
    };
    if let Some(parent) = cgroup.parent().filter(is_of_run) {
        let _ = std::fs::remove_dir(parent);
    }
}

fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path())
}
