//! How much memory there is to be had.

/// What a program can take without others being written out, by the kernel's own estimate. `None` where nobody says.
pub fn available_bytes() -> Option<u64> {
    parse(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_estimate_is_found_among_its_other_lines() {
        let meminfo = "MemTotal:       24000000 kB\nMemAvailable:   12000000 kB\nBuffers: 1 kB\n";
        assert_eq!(parse(meminfo), Some(12_000_000 * 1024));
        assert_eq!((parse("MemTotal: 1 kB\n"), parse("MemAvailable: much kB")), (None, None));
    }
}
