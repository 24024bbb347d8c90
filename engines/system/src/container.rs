//! A container's limits of CPU and memory. Each is the smallest limit on the path from this process's cgroup up to the mount.
//! In version 1 of cgroups, each hierarchy has a few controllers. In version 2, one hierarchy has all. A mixed system has both.

use std::path::{Path, PathBuf};

use crate::read;

/// A memory limit of at least this size means no limit: without a limit, version 1 reports the largest number of whole pages.
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// The limit of a container, in bytes of memory or in thousandths of a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerLimit {
    AtMost(u64),
    Unlimited,
    /// No file shows whether there is a limit.
    Unknown,
}

impl ContainerLimit {
    pub fn limit(self) -> Option<u64> {
        match self {
            Self::AtMost(limit) => Some(limit),
            Self::Unlimited | Self::Unknown => None,
        }
    }
}

/// The CPU limit in thousandths of a CPU.
pub fn cpu_limit_millicpus() -> ContainerLimit {
    cpu_limit(Hierarchy::of_this_process("cpu", &read_text), &read_text)
}

pub fn memory_limit_bytes() -> ContainerLimit {
    memory_limit(Hierarchy::of_this_process("memory", &read_text), &read_text)
}

/// The kernel's CPU statistics of this process's own cgroup: `cpu.stat`.
pub fn cpu_statistics() -> Option<String> {
    read(Hierarchy::of_this_process("cpu", &read_text)?.folders.first()?.join("cpu.stat"))
}

/// The folders of this process's own cgroups: in the hierarchy of version 2, then in one hierarchy of version 1. The caller
/// makes cgroups for other processes in these folders. Every hierarchy can track processes, so one of version 1 suffices.
pub fn own_cgroups() -> [Option<PathBuf>; 2] {
    let [cgroup, mounts] =
        ["/proc/self/cgroup", "/proc/self/mountinfo"].map(|path| read(path).unwrap_or_default());
    own_cgroups_in(&cgroup, &mounts)
}

fn own_cgroups_in(cgroup: &str, mounts: &str) -> [Option<PathBuf>; 2] {
    let own_folder = |hierarchy: Hierarchy| hierarchy.folders.into_iter().next();
    let of_version_one = |controller: &&str| {
        Hierarchy::of(controller, cgroup, mounts).filter(|found| found.version == Version::One)
    };
    let version_one = ["freezer", "name=systemd"].iter().find_map(of_version_one);
    [Hierarchy::of_version_two(cgroup, mounts).and_then(own_folder), version_one.and_then(own_folder)]
}

/// The bytes of memory that the container's limits leave free.
pub(crate) fn memory_left_bytes(read: ReadText) -> Option<u64> {
    memory_left(&Hierarchy::of_this_process("memory", read)?, read)
}

pub(crate) fn read_text(path: &Path) -> Option<String> {
    read(path)
}

/// Reads a file of the kernel. Tests pass invented files.
pub(crate) type ReadText<'a> = &'a dyn Fn(&Path) -> Option<String>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The folders with the files of a controller (`cpu`, `memory`) for this process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    /// The process's own folder, then each parent up to the mount.
    folders: Vec<PathBuf>,
}

impl Hierarchy {
    fn of_this_process(controller: &str, read: ReadText) -> Option<Self> {
        let [cgroup, mounts] =
            ["/proc/self/cgroup", "/proc/self/mountinfo"].map(|path| read(Path::new(path)));
        Self::of(controller, &cgroup?, &mounts?)
    }

    /// Finds a controller's folders. A line of `cgroup` is `NUMBER:CONTROLLERS:PATH`, or `0::PATH` for version 2. On a mixed
    /// system, a controller belongs to one version alone, so version 2 is used only if no line of version 1 has the controller.
    fn of(controller: &str, cgroup: &str, mounts: &str) -> Option<Self> {
        let has_controller = |names: &str| names.split(',').any(|name| name == controller);
        let Some(path) = path_where(cgroup, has_controller) else {
            return Self::of_version_two(cgroup, mounts);
        };
        let is_mounted = |mount: &Mount| mount.kind == "cgroup" && has_controller(mount.options);
        let mount = mounts.lines().filter_map(Mount::of).find(is_mounted)?;
        Some(Self { version: Version::One, folders: mount.folders(path) })
    }

    fn of_version_two(cgroup: &str, mounts: &str) -> Option<Self> {
        let path = path_where(cgroup, str::is_empty)?;
        let mount = mounts.lines().filter_map(Mount::of).find(|mount| mount.kind == "cgroup2")?;
        Some(Self { version: Version::Two, folders: mount.folders(path) })
    }
}

/// The path in the first line of `/proc/PID/cgroup` whose controllers match.
fn path_where(cgroup: &str, matches: impl Fn(&str) -> bool) -> Option<&str> {
    let mut lines = cgroup.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    lines.find(|(names, _path)| matches(names)).map(|(_, path)| path)
}

struct Mount<'a> {
    /// The mounted folder of the hierarchy: a container may see only its own folder and those below.
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    /// Parses a line of proc_pid_mountinfo(5): `ID PARENT DEVICE ROOT POINT OPTIONS [TAGS...] - KIND SOURCE OPTIONS`.
    fn of(line: &'a str) -> Option<Self> {
        let (mount, source) = line.split_once(" - ")?;
        let (mut mount, mut source) = (mount.split(' ').skip(3), source.split(' '));
        let (root, point, kind) = (mount.next()?, mount.next()?, source.next()?);
        Some(Self { root, point, kind, options: source.nth(1).unwrap_or_default() })
    }

    /// The folders from a path up to the mount. For a path outside the mount, the mount's folder alone.
    fn folders(&self, path: &str) -> Vec<PathBuf> {
        let relative = Path::new(path.trim()).strip_prefix(self.root).unwrap_or(Path::new(""));
        let leaves_mount = relative.components().any(|part| part.as_os_str() == "..");
        let relative = if leaves_mount { Path::new("") } else { relative };
        relative.ancestors().map(|part| Path::new(self.point).join(part)).collect()
    }
}

fn cpu_limit(hierarchy: Option<Hierarchy>, read: ReadText) -> ContainerLimit {
    smallest_limit("cpu", hierarchy, read, &|version, folder| match version {
        Version::One => {
            let number = |file: &str| read(&folder.join(file))?.trim().parse::<i64>().ok();
            let (quota, period) = (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us"));
            // -1 means no quota.
            let Ok(quota) = u64::try_from(quota) else { return Some(ContainerLimit::Unlimited) };
            millicpus(quota, u64::try_from(period?).ok()?)
        }
        Version::Two => parse_cpu_max(&read(&folder.join("cpu.max"))?),
    })
}

fn memory_limit(hierarchy: Option<Hierarchy>, read: ReadText) -> ContainerLimit {
    smallest_limit("memory", hierarchy, read, &|version, folder| memory_limit_in(version, folder, read))
}

fn memory_limit_in(version: Version, folder: &Path, read: ReadText) -> Option<ContainerLimit> {
    let file = match version {
        Version::One => "memory.limit_in_bytes",
        Version::Two => "memory.max",
    };
    parse_memory(&read(&folder.join(file))?)
}

/// The smallest difference between a folder's limit and its memory in use, in bytes. Pages of files count as free, mapped or
/// not, because the kernel can drop them.
fn memory_left(hierarchy: &Hierarchy, read: ReadText) -> Option<u64> {
    let (used, file_fields) = match hierarchy.version {
        Version::One => ("memory.usage_in_bytes", ["total_inactive_file", "total_active_file"]),
        Version::Two => ("memory.current", ["inactive_file", "active_file"]),
    };
    let left = |folder: &PathBuf| {
        // A folder without a limit is skipped, because a parent may have one.
        let limit = memory_limit_in(hierarchy.version, folder, read)?.limit()?;
        let used: u64 = read(&folder.join(used))?.trim().parse().ok()?;
        let statistics = read(&folder.join("memory.stat")).unwrap_or_default();
        let fields = statistics.lines().filter_map(|line| line.split_once(' '));
        let file_bytes = fields.filter(|(name, _)| file_fields.contains(name));
        let file_bytes: u64 = file_bytes.filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok()).sum();
        Some(limit.saturating_sub(used.saturating_sub(file_bytes)))
    };
    hierarchy.folders.iter().filter_map(left).min()
}

/// The smallest limit of all folders. `Unlimited` if the files state no limit, or if no folder has such a file and version 2
/// lists the controller at its mount.
fn smallest_limit(
    controller: &str,
    hierarchy: Option<Hierarchy>,
    read: ReadText,
    limit_of: &dyn Fn(Version, &Path) -> Option<ContainerLimit>,
) -> ContainerLimit {
    let Some(Hierarchy { version, folders }) = hierarchy else { return ContainerLimit::Unknown };
    let limits: Vec<ContainerLimit> = folders.iter().filter_map(|folder| limit_of(version, folder)).collect();
    if let Some(smallest) = limits.iter().filter_map(|limit| limit.limit()).min() {
        return ContainerLimit::AtMost(smallest);
    }
    let controllers = || read(&folders.last()?.join("cgroup.controllers"));
    let has_controller =
        || controllers().is_some_and(|all| all.split_whitespace().any(|name| name == controller));
    if !limits.is_empty() || (version == Version::Two && has_controller()) {
        return ContainerLimit::Unlimited;
    }
    ContainerLimit::Unknown
}

/// Parses `QUOTA PERIOD` in microseconds, or `max PERIOD` for no limit.
fn parse_cpu_max(text: &str) -> Option<ContainerLimit> {
    let (quota, period) = text.trim().split_once(' ')?;
    if quota == "max" {
        return Some(ContainerLimit::Unlimited);
    }
    millicpus(quota.parse().ok()?, period.trim().parse().ok()?)
}

fn millicpus(quota: u64, period: u64) -> Option<ContainerLimit> {
    quota.checked_mul(1000)?.checked_div(period).map(ContainerLimit::AtMost)
}

fn parse_memory(text: &str) -> Option<ContainerLimit> {
    match text.trim() {
        "max" => Some(ContainerLimit::Unlimited),
        number => {
            let bytes = number.parse().ok()?;
            Some(if bytes >= NO_LIMIT_BYTES {
                ContainerLimit::Unlimited
            } else {
                ContainerLimit::AtMost(bytes)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    /// The number that version 1 writes for no limit.
    const UNLIMITED_V1: &str = "9223372036854771712\n";

    /// A mixed system: cgroup version 1 has all controllers, and version 2 has none.
    const MIXED_MOUNTS: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const MIXED_CGROUP: &str = "4:memory:/box/a\n1:cpu,cpuacct:/box\n0::/\n";
    const VERSION_2_MOUNTS: &str =
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    /// The CPU limit, the memory limit and the bytes of memory left, with these files of the kernel.
    fn limits(
        cgroup: &str,
        mounts: &str,
        files: &[(&str, &str)],
    ) -> (ContainerLimit, ContainerLimit, Option<u64>) {
        let read = |path: &Path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| text.to_string())
        };
        let hierarchy = |controller| Hierarchy::of(controller, cgroup, mounts);
        let left = hierarchy("memory").and_then(|memory| memory_left(&memory, &read));
        (cpu_limit(hierarchy("cpu"), &read), memory_limit(hierarchy("memory"), &read), left)
    }

    #[test]
    fn cgroup_v2_limits_are_the_smallest_of_all_folders() {
        let files = [
            ("/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
            ("/sys/fs/cgroup/pod/box/memory.max", "8589934592\n"),
            ("/sys/fs/cgroup/pod/box/memory.current", "3221225472\n"),
            ("/sys/fs/cgroup/pod/memory.max", "max\n"),
            (
                "/sys/fs/cgroup/pod/box/memory.stat",
                "anon 1073741824\ninactive_file 1073741824\nactive_file 1073741824\n",
            ),
        ];
        // Of 8 GiB, 3 are in use; pages of files are 2 of these.
        let expected = |left| (ContainerLimit::AtMost(1500), ContainerLimit::AtMost(8 * GIB), Some(left));
        assert_eq!(limits("0::/pod/box\n", VERSION_2_MOUNTS, &files), expected(7 * GIB));
        // Without the last file, `memory.stat`, pages of files are not known to be free.
        assert_eq!(limits("0::/pod/box\n", VERSION_2_MOUNTS, &files[..5]), expected(5 * GIB));
    }

    #[test]
    fn cgroup_v1_controllers_are_read_at_their_mounts() {
        let files = [
            ("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "250000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n"),
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/memory/box/a/memory.limit_in_bytes", UNLIMITED_V1),
            ("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2147483648\n"),
            ("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1610612736\n"),
            ("/sys/fs/cgroup/memory/box/memory.stat", "active_file 1\ntotal_active_file 536870912\n"),
            // Ignored: on this system version 1 has the memory controller.
            ("/sys/fs/cgroup/unified/memory.max", "1\n"),
        ];
        let actual = limits(MIXED_CGROUP, MIXED_MOUNTS, &files);
        assert_eq!(actual, (ContainerLimit::AtMost(2500), ContainerLimit::AtMost(2 * GIB), Some(GIB)));
    }

    #[test]
    fn an_unlimited_cgroup_is_distinguished_from_an_unreadable_limit() {
        let unlimited = [
            ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", UNLIMITED_V1),
        ];
        assert_eq!(
            limits(MIXED_CGROUP, MIXED_MOUNTS, &unlimited),
            (ContainerLimit::Unlimited, ContainerLimit::Unlimited, None)
        );
        let unknown = (ContainerLimit::Unknown, ContainerLimit::Unknown, None);
        assert_eq!(limits(MIXED_CGROUP, MIXED_MOUNTS, &[]), unknown);
        assert_eq!(limits(MIXED_CGROUP, "", &unlimited), unknown);
        assert_eq!(limits("", MIXED_MOUNTS, &unlimited), unknown);
        assert_eq!(
            limits("0::/\n", MIXED_MOUNTS, &[("/sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n")]),
            unknown
        );
        // The root folder of version 2 has no files with limits, and lists its controllers: here `cpu` without `memory`.
        let root = [("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids\n")];
        assert_eq!(
            limits("0::/user.slice\n", VERSION_2_MOUNTS, &root),
            (ContainerLimit::Unlimited, ContainerLimit::Unknown, None)
        );
    }

    #[test]
    fn the_cgroups_of_this_process_are_found_in_each_mounted_version() {
        let mixed = MIXED_MOUNTS.to_string()
            + "44 31 0:44 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
               45 31 0:45 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n";
        let folders = |cgroup: &str, mounts: &str| {
            own_cgroups_in(cgroup, mounts).map(|folder| folder.map(|it| it.display().to_string()))
        };
        let some = |path: &str| Some(path.to_string());
        assert_eq!(
            folders("9:freezer:/box\n8:name=systemd:/a\n0::/\n", &mixed),
            [some("/sys/fs/cgroup/unified/"), some("/sys/fs/cgroup/freezer/box")]
        );
        assert_eq!(folders("8:name=systemd:/a\n", &mixed), [None, some("/sys/fs/cgroup/systemd/a")]);
        assert_eq!(folders("0::/pod/box\n", VERSION_2_MOUNTS), [some("/sys/fs/cgroup/pod/box"), None]);
        assert_eq!([folders("", &mixed), folders("0::/\n", "")], [[None, None], [None, None]]);
    }

    #[test]
    fn a_container_with_a_private_cgroup_finds_its_files_at_the_mount() {
        let mount = "35 31 0:32 /docker/4f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let files = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n")];
        for path in ["/docker/4f", "/elsewhere", "/docker/4f/../../x"] {
            let (_, memory, _) = limits(&format!("4:memory:{path}\n"), mount, &files);
            assert_eq!(memory, ContainerLimit::AtMost(2 * GIB), "{path}");
        }
    }

    #[test]
    fn invalid_limits_are_unknown() {
        assert_eq!((parse_cpu_max("100 0"), parse_cpu_max("")), (None, None));
        assert_eq!(parse_cpu_max("max 100000\n"), Some(ContainerLimit::Unlimited));
        assert_eq!((parse_memory(""), parse_memory("-5\n"), millicpus(u64::MAX, 1)), (None, None, None));
        assert!(Mount::of("31 23 0:28 /").is_none() && Mount::of(" - ").is_none());
    }
}
