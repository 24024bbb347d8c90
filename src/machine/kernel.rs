//! Files of the kernel: `/proc` and `/sys`.

pub use system::read;

/// The three averages of `/proc/loadavg`.
pub fn load_average(loadavg: &str) -> Option<[f64; 3]> {
    let mut averages = loadavg.split_ascii_whitespace().map_while(|word| word.parse().ok());
    Some([averages.next()?, averages.next()?, averages.next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_average_has_three_numbers_or_is_absent() {
        assert_eq!(load_average("5.11 3.99 2.05 6/124 14541\n"), Some([5.11, 3.99, 2.05]));
        assert_eq!(load_average("5.11 3.99\n"), None);
        assert_eq!(load_average(""), None);
    }
}
