//! A container's limits: the smallest one from this process's cgroup up to the mount of its hierarchy. Version 1 has a hierarchy
//! for each controller, version 2 one for all, and a mixed system has both. An unreadable limit is unknown, which differs from no
//! limit.

use std::path::{Path, PathBuf};

use super::kernel::read;

/// The number from which version 1 means no limit. No machine has as much; the kernel reports the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    AtMost(u64),
    Unlimited,
    /// No cgroup could be read.
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

/// The CPU limit in thousandths of a CPU.
pub fn cpu_limit_millicpus() -> Allowed {
    cpu_limit(Hierarchy::here("cpu"), &read_text)
}

pub fn memory_limit_bytes() -> Allowed {
    memory_limit(Hierarchy::here("memory"), &read_text)
}

/// The memory left by the tightest limit. Page cache counts as used although it could be freed, so more may be available.
pub fn memory_left_bytes() -> Option<u64> {
    memory_left(&Hierarchy::here("memory")?, &read_text)
}

/// The kernel's CPU statistics of this process's own cgroup: `cpu.stat`.
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

/// The folders with a controller's files for this process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    /// The process's own folder, then each parent up to the mount.
    folders: Vec<PathBuf>,
}

impl Hierarchy {
    fn here(controller: &str) -> Option<Self> {
        Self::of(controller, &read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?)
    }

    /// Finds a controller's folders. A line of `cgroup` is `NUMBER:CONTROLLERS:PATH`, or `0::PATH` for version 2. Version 2 does
    /// not have the controllers that version 1 has.
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
    /// The mounted part of the hierarchy: a container may see only its own part.
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// Parses a line of proc_pid_mountinfo(5): `ID PARENT DEVICE ROOT POINT OPTIONS [TAGS...] - KIND SOURCE OPTIONS`.
    fn of(line: &'a str) -> Option<Self> {
        let (place, about) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let mut about = about.split(' ');
        let (root, point, kind) = (place.next()?, place.next()?, about.next()?);
        Some(Self { root, point, kind, options: about.nth(1).unwrap_or_default() })
    }

    /// The folders from a path up to the mount. A path outside the mount shows only the mount.
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
            // -1 means no quota.
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
        // A parent may have a limit even if this folder has none.
        let limit = memory_of(hierarchy.version, folder, read)?.limit()?;
        Some(limit.saturating_sub(read(&folder.join(used))?.trim().parse().ok()?))
    };
    hierarchy.folders.iter().filter_map(left).min()
}

/// The smallest limit of all folders. If no folder has the file, version 2 shows at its mount whether the controller exists; then
/// there is no limit.
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

/// Parses `QUOTA PERIOD` in microseconds, or `max PERIOD` for no limit.
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
