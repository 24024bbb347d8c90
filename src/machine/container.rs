//! What a container allows: the smallest limit on the way from this process's cgroup up to where its hierarchy is mounted.
//! Version 1 has a hierarchy for each controller, version 2 one for all, and a mixed system has both. What cannot be read is
//! not known, which is not the same as no limit.

use std::path::{Path, PathBuf};

use super::read;

/// Version 1 says a number that no machine has where it means that there is no limit: the largest one of whole pages.
const NO_LIMIT: u64 = 1 << 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    AtMost(u64),
    Unlimited,
    /// There is no cgroup that could be read.
    Unknown,
}

impl Allowed {
    pub fn limit(self) -> Option<u64> {
        match self {
            Self::AtMost(limit) => Some(limit),
            Self::Unlimited | Self::Unknown => None,
        }
    }
}

/// In thousandths of a CPU.
pub fn cpu_limit_millicpus() -> Allowed {
    cpu_limit(Hierarchy::here("cpu"), &read_text)
}

pub fn memory_limit_bytes() -> Allowed {
    memory_limit(Hierarchy::here("memory"), &read_text)
}

/// What is left of the memory limit that leaves least; page cache that could be given back counts as used, so that this is
/// less than there is.
pub fn memory_left_bytes() -> Option<u64> {
    memory_left(&Hierarchy::here("memory")?, &read_text)
}

/// What the kernel counted of the CPU time of this process's own cgroup: `cpu.stat`.
pub(super) fn cpu_statistics() -> Option<String> {
    read(Hierarchy::here("cpu")?.folders.first()?.join("cpu.stat"))
}

fn read_text(path: &Path) -> Option<String> {
    read(path)
}

type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Where a controller's files of this process lie.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    /// This process's own one, then each one above it, up to the mount.
    folders: Vec<PathBuf>,
}

impl Hierarchy {
    fn here(controller: &str) -> Option<Self> {
        Self::of(controller, &read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)
    }

    /// A line of `cgroup` is `NUMBER:CONTROLLERS:PATH`, that of version 2 `0::PATH`. A controller that version 1 has is none of
    /// version 2.
    fn of(controller: &str, cgroup: &str, mounts: &str) -> Option<Self> {
        let lines = cgroup.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.split_once(':')
        });
        let path_where = |is: &dyn Fn(&str) -> bool| lines.clone().find(|(names, _)| is(names));
        let (version, path) = match path_where(&|names| names.split(',').any(|name| name == controller)) {
            Some((_, path)) => (Version::One, path),
            None => (Version::Two, path_where(&str::is_empty)?.1),
        };
        let mount = mounts.lines().filter_map(Mount::of).find(|mount| match version {
            Version::One => mount.kind == "cgroup" && mount.options.split(',').any(|it| it == controller),
            Version::Two => mount.kind == "cgroup2",
        })?;
        Some(Self { version, folders: mount.folders(path) })
    }
}

struct Mount<'a> {
    /// What of the hierarchy is mounted: a container may see but its own part.
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// proc_pid_mountinfo(5): `ID PARENT DEVICE ROOT POINT OPTIONS [TAGS...] - KIND SOURCE OPTIONS`.
    fn of(line: &'a str) -> Option<Self> {
        let (place, about) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let mut about = about.split(' ');
        let (root, point, kind) = (place.next()?, place.next()?, about.next()?);
        Some(Self { root, point, kind, options: about.nth(1).unwrap_or_default() })
    }

    /// Where the path lies outside what is mounted, the mount itself is all that can be seen.
    fn folders(&self, path: &str) -> Vec<PathBuf> {
        let below = Path::new(path.trim()).strip_prefix(self.root).unwrap_or(Path::new(""));
        let climbs = below.components().any(|part| part.as_os_str() == "..");
        let below = if climbs { Path::new("") } else { below };
        below.ancestors().map(|part| Path::new(self.point).join(part)).collect()
    }
}

fn cpu_limit(hierarchy: Option<Hierarchy>, read: Read) -> Allowed {
    smallest("cpu", hierarchy, read, &|version, folder| match version {
        Version::One => {
            let number = |file: &str| read(&folder.join(file))?.trim().parse::<i64>().ok();
            let (quota, period) = (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us"));
            // -1 is no quota.
            let Ok(quota) = u64::try_from(quota) else { return Some(Allowed::Unlimited) };
            share(quota, u64::try_from(period?).ok()?)
        }
        Version::Two => parse_cpu_max(&read(&folder.join("cpu.max"))?),
    })
}

fn memory_limit(hierarchy: Option<Hierarchy>, read: Read) -> Allowed {
    smallest("memory", hierarchy, read, &|version, folder| memory_of(version, folder, read))
}

fn memory_of(version: Version, folder: &Path, read: Read) -> Option<Allowed> {
    let file = match version {
        Version::One => "memory.limit_in_bytes",
        Version::Two => "memory.max",
    };
    parse_memory(&read(&folder.join(file))?)
}

fn memory_left(hierarchy: &Hierarchy, read: Read) -> Option<u64> {
    let used = match hierarchy.version {
        Version::One => "memory.usage_in_bytes",
        Version::Two => "memory.current",
    };
    let left = |folder: &PathBuf| {
        // Without a limit here there may be one further up.
        let limit = memory_of(hierarchy.version, folder, read)?.limit()?;
        Some(limit.saturating_sub(read(&folder.join(used))?.trim().parse().ok()?))
    };
    hierarchy.folders.iter().filter_map(left).min()
}

/// The smallest of all folders. Where none has such a file, version 2 says at its mount whether it has the controller at all:
/// then nobody has set a limit.
fn smallest(
    controller: &str,
    hierarchy: Option<Hierarchy>,
    read: Read,
    of: &dyn Fn(Version, &Path) -> Option<Allowed>,
) -> Allowed {
    let Some(Hierarchy { version, folders }) = hierarchy else { return Allowed::Unknown };
    let each: Vec<Allowed> = folders.iter().filter_map(|folder| of(version, folder)).collect();
    if let Some(least) = each.iter().filter_map(|allowed| allowed.limit()).min() {
        return Allowed::AtMost(least);
    }
    let controllers = || read(&folders.last()?.join("cgroup.controllers"));
    let is_here = || controllers().is_some_and(|all| all.split_whitespace().any(|name| name == controller));
    if !each.is_empty() || (version == Version::Two && is_here()) {
        return Allowed::Unlimited;
    }
    Allowed::Unknown
}

/// `QUOTA PERIOD` in microseconds, or `max PERIOD` for no limit.
fn parse_cpu_max(text: &str) -> Option<Allowed> {
    let (quota, period) = text.trim().split_once(' ')?;
    if quota == "max" {
        return Some(Allowed::Unlimited);
    }
    share(quota.parse().ok()?, period.trim().parse().ok()?)
}

fn share(quota: u64, period: u64) -> Option<Allowed> {
    quota.checked_mul(1000)?.checked_div(period).map(Allowed::AtMost)
}

fn parse_memory(text: &str) -> Option<Allowed> {
    match text.trim() {
        "max" => Some(Allowed::Unlimited),
        number => {
            let bytes = number.parse().ok()?;
            Some(if bytes >= NO_LIMIT { Allowed::Unlimited } else { Allowed::AtMost(bytes) })
        }
    }
}

#[cfg(test)]
mod tests;
