use super::*;

const GIB: u64 = 1 << 30;
const HUGE: &str = "9223372036854771712\n";

/// A mixed system: cgroup version 1 has all controllers, and version 2 has none.
const MIXED: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
const IN_MIXED: &str = "4:memory:/box/a\n1:cpu,cpuacct:/box\n0::/\n";
const TWO: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

fn allowed(cgroup: &str, mounts: &str, files: &[(&str, &str)]) -> (Allowed, Allowed, Option<u64>) {
    let read = |path: &Path| {
        let file = files.iter().find(|(name, _)| Path::new(name) == path);
        file.map(|(_, text)| text.to_string())
    };
    let of = |controller| Hierarchy::of(controller, cgroup, mounts);
    let left = of("memory").and_then(|hierarchy| memory_left(&hierarchy, &read));
    (cpu_limit(of("cpu"), &read), memory_limit(of("memory"), &read), left)
}

#[test]
fn cgroup_v2_limits_are_the_smallest_of_all_parents() {
    let files = [
        ("/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n"),
        ("/sys/fs/cgroup/pod/cpu.max", "150000 100000\n"),
        ("/sys/fs/cgroup/pod/box/memory.max", "8589934592\n"),
        ("/sys/fs/cgroup/pod/box/memory.current", "1073741824\n"),
        ("/sys/fs/cgroup/pod/memory.max", "max\n"),
    ];
    let found = allowed("0::/pod/box\n", TWO, &files);
    assert_eq!(found, (Allowed::AtMost(1500), Allowed::AtMost(8 * GIB), Some(7 * GIB)));
}

#[test]
fn cgroup_v1_controllers_are_read_at_their_mounts() {
    let files = [
        ("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "250000\n"),
        ("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n"),
        ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
        ("/sys/fs/cgroup/memory/box/a/memory.limit_in_bytes", HUGE),
        ("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2147483648\n"),
        ("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "1073741824\n"),
        // Ignored: version 2 does not have the memory controller here.
        ("/sys/fs/cgroup/unified/memory.max", "1\n"),
    ];
    let found = allowed(IN_MIXED, MIXED, &files);
    assert_eq!(found, (Allowed::AtMost(2500), Allowed::AtMost(2 * GIB), Some(GIB)));
}

#[test]
fn an_absent_limit_differs_from_an_unreadable_one() {
    let unlimited = [
        ("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", HUGE),
    ];
    assert_eq!(allowed(IN_MIXED, MIXED, &unlimited), (Allowed::Unlimited, Allowed::Unlimited, None));
    let unknown = (Allowed::Unknown, Allowed::Unknown, None);
    assert_eq!(allowed(IN_MIXED, MIXED, &[]), unknown);
    assert_eq!(allowed(IN_MIXED, "", &unlimited), unknown);
    assert_eq!(allowed("", MIXED, &unlimited), unknown);
    assert_eq!(
        allowed("0::/\n", MIXED, &[("/sys/fs/cgroup/unified/cgroup.controllers", "hugetlb\n")]),
        unknown
    );
    // The root of version 2 has no limit files. It only lists its controllers.
    let root = [("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io pids\n")];
    assert_eq!(allowed("0::/user.slice\n", TWO, &root), (Allowed::Unlimited, Allowed::Unknown, None));
}

#[test]
fn a_container_with_a_private_cgroup_finds_its_files_at_the_mount() {
    let part = "35 31 0:32 /docker/4f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
    let files = [("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n")];
    for path in ["/docker/4f", "/elsewhere", "/docker/4f/../../x"] {
        let (_, memory, _) = allowed(&format!("4:memory:{path}\n"), part, &files);
        assert_eq!(memory, Allowed::AtMost(2 * GIB), "{path}");
    }
}

#[test]
fn invalid_limits_are_unknown() {
    assert_eq!((parse_cpu_max("100 0"), parse_cpu_max("")), (None, None));
    assert_eq!(parse_cpu_max("max 100000\n"), Some(Allowed::Unlimited));
    assert_eq!((parse_memory(""), parse_memory("-5\n"), share(u64::MAX, 1)), (None, None, None));
    assert!(Mount::of("31 23 0:28 /").is_none() && Mount::of(" - ").is_none());
}
