//! How much memory there is for weights.

/// What the system could give without taking anything from anybody: `MemAvailable` of Linux, which counts a file's pages, mapped
/// or not, as free to be dropped. `None` where nobody says.
pub fn available_bytes() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_the_line_that_says_it() {
        assert_eq!(parse("MemFree: 1 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(parse("MemFree: 1 kB\n"), None);
    }
}
