//! What a container allows: the smallest limit on the way from this process's cgroup (version 2) up to the root.

use std::path::{Path, PathBuf};

use super::read;

const ROOT: &str = "/sys/fs/cgroup";

/// In thousandths of a CPU.
pub fn cpu_limit_millicpus() -> Option<u64> {
    smallest("cpu.max", parse_cpu_max)
}

/// What is left of the memory limit that leaves least; page cache that could be given back counts as used, so that this is
/// less than there is.
pub fn memory_left_bytes() -> Option<u64> {
    let own = own_cgroup(&read("/proc/self/cgroup")?)?;
    let folders = own.ancestors().take_while(|dir| dir.starts_with(ROOT));
    let left = |dir: &Path| {
        let number = |file: &str| read(dir.join(file))?.trim().parse::<u64>().ok();
        // Without a limit here there may be one further up.
        Some(number("memory.max")?.saturating_sub(number("memory.current")?))
    };
    folders.filter_map(left).min()
}

pub fn memory_limit_bytes() -> Option<u64> {
    smallest("memory.max", |text| text.trim().parse().ok())
}

/// What the kernel counted of the CPU time of this process's own cgroup: `cpu.stat`.
pub(super) fn cpu_statistics() -> Option<String> {
    read(own_cgroup(&read("/proc/self/cgroup")?)?.join("cpu.stat"))
}

fn smallest(file: &str, parse: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let own = own_cgroup(&read("/proc/self/cgroup")?)?;
    let folders = own.ancestors().take_while(|dir| dir.starts_with(ROOT));
    folders.filter_map(|dir| parse(&read(dir.join(file))?)).min()
}

/// The line of version 2 is `0::PATH`; a mixed system has others besides.
fn own_cgroup(text: &str) -> Option<PathBuf> {
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(Path::new(ROOT).join(path.trim().trim_start_matches('/')))
}

/// `QUOTA PERIOD` in microseconds, or `max PERIOD` for no limit.
fn parse_cpu_max(text: &str) -> Option<u64> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.trim().parse().ok()?);
    quota.checked_mul(1000)?.checked_div(period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_a_share_of_its_period() {
        assert_eq!(parse_cpu_max("150000 100000\n"), Some(1500));
        assert_eq!(parse_cpu_max("max 100000\n"), None);
        assert_eq!(parse_cpu_max("100 0"), None);
        assert_eq!(parse_cpu_max(""), None);
    }

    #[test]
    fn the_cgroup_of_version_two_is_found_among_others() {
        assert_eq!(own_cgroup("4:memory:/a\n0::/user.slice/x\n"), Some("/sys/fs/cgroup/user.slice/x".into()));
        assert_eq!(own_cgroup("0::/\n"), Some("/sys/fs/cgroup".into()));
        assert_eq!(own_cgroup("4:memory:/a\n"), None);
    }
}
