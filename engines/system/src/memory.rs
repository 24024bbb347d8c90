//! The memory that is available to this process.

use std::path::Path;

use crate::container::{self, ReadText};

/// The memory that a program can take without swapping: the kernel's estimate for the machine, limited by the container. Pages
/// of files count as available, mapped or not, because they can be read again. `None` if unknown.
pub fn available_bytes() -> Option<u64> {
    available(&container::read_text)
}

fn available(read: ReadText) -> Option<u64> {
    let machine = read(Path::new("/proc/meminfo")).and_then(|meminfo| field_bytes(&meminfo, "MemAvailable:"));
    machine.into_iter().chain(container::memory_left_bytes(read)).min()
}

/// The bytes of a field such as `MemTotal:  9000 kB` in a file of the kernel.
pub fn field_bytes(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn available_with(files: &[(&str, &str)]) -> Option<u64> {
        available(&|path| {
            let file = files.iter().find(|(name, _)| Path::new(name) == path);
            file.map(|(_, text)| (*text).to_string())
        })
    }

    #[test]
    fn available_memory_is_the_smaller_of_the_kernels_estimate_and_the_rest_in_the_container() {
        let machine =
            ("/proc/meminfo", "MemTotal:       24000000 kB\nMemAvailable:   12000000 kB\nBuffers: 1 kB\n");
        let container = [
            ("/proc/self/cgroup", "0::/box\n"),
            ("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("/sys/fs/cgroup/box/memory.max", "5000\n"),
            ("/sys/fs/cgroup/box/memory.current", "4500\n"),
        ];
        assert_eq!(available_with(&[machine]), Some(12_000_000 * 1024));
        assert_eq!(available_with(&container), Some(500));
        assert_eq!(available_with(&[&[machine], &container[..]].concat()), Some(500));
        assert_eq!(
            (available_with(&[]), available_with(&[("/proc/meminfo", "MemAvailable: much kB\n")])),
            (None, None)
        );
    }
}
