//! A device's free memory, and the check that weights fit.

use protocol::{Failed, FailureKind};

/// The total and the free memory of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    pub free: u64,
    pub total: u64,
}

impl Room {
    /// Refuses weights that cannot fit, before any of them is copied.
    pub fn expect(self, device: &str, weights_bytes: u64) -> Result<(), Failed> {
        if weights_bytes <= self.free {
            return Ok(());
        }
        let what = format!("weights of {}: `{device}` has {self}", gigabytes(weights_bytes));
        Err(Failed::new(FailureKind::OutOfMemory, what).hint(super::trouble::MORE_ROOM))
    }
}

impl std::fmt::Display for Room {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} free of {}", gigabytes(self.free), gigabytes(self.total))
    }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { free: 9_300_000_000, total: 85_000_000_000 };

    #[test]
    fn weights_that_fit_are_let_through() {
        assert_eq!(ROOM.expect("cuda:0", 9_300_000_000), Ok(()));
    }

    #[test]
    fn weights_that_do_not_fit_are_refused_with_both_numbers() {
        let refused = ROOM.expect("cuda:1", 16_060_000_000).unwrap_err();
        assert_eq!(refused.kind, FailureKind::OutOfMemory);
        assert_eq!(refused.message, "weights of 16.06 GB: `cuda:1` has 9.30 GB free of 85.00 GB");
        assert!(refused.hint.unwrap().contains("nvidia-smi"));
    }
}
