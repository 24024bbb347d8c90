//! The memory groups of a block: configurations that can be resident together. Pure.
//!
//! A paused engine keeps its memory, and engines that do not fit would swap or be killed. So a block is divided into memory
//! groups. The members of a group are interleaved round by round, and the groups follow each other.

/// The known facts of a configuration before a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guest {
    pub configuration: usize,
    /// The most memory that it held so far, or an estimate.
    pub bytes: u64,
    /// It cannot share a group.
    pub alone: bool,
}

/// The share of the available memory that is left free.
const MARGIN: f64 = 0.1;

/// Memory groups in the members' order, each as full as possible.
pub fn sittings(guests: &[Guest], available_bytes: u64) -> Vec<Vec<usize>> {
    let room = (available_bytes as f64 * (1.0 - MARGIN)) as u64;
    let mut sittings: Vec<(Vec<usize>, u64, bool)> = Vec::new();
    for guest in guests {
        let fits = |(_, taken, closed): &&mut (Vec<usize>, u64, bool)| {
            !*closed && !guest.alone && taken.saturating_add(guest.bytes) <= room
        };
        match sittings.iter_mut().find(|sitting| fits(sitting)) {
            Some((seated, taken, _)) => {
                seated.push(guest.configuration);
                *taken += guest.bytes;
            }
            // A configuration that fits nowhere is tried too: its failure is a row.
            None => sittings.push((vec![guest.configuration], guest.bytes, guest.alone)),
        }
    }
    sittings.into_iter().map(|(seated, ..)| seated).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(configuration: usize, bytes: u64) -> Guest {
        Guest { configuration, bytes, alone: false }
    }

    #[test]
    fn engines_that_fit_together_sit_together_and_a_tenth_is_left_free() {
        let guests = [guest(2, 30), guest(0, 30), guest(1, 30)];
        assert_eq!(sittings(&guests, 100), [vec![2, 0, 1]]);
        assert_eq!(sittings(&guests, 99), [vec![2, 0], vec![1]]);
    }

    #[test]
    fn one_that_is_too_large_for_all_sits_by_itself() {
        let guests = [guest(0, 10), guest(1, 900), guest(2, 10)];
        assert_eq!(sittings(&guests, 100), [vec![0, 2], vec![1]]);
    }

    #[test]
    fn one_that_must_be_alone_shares_with_nobody_before_or_after_it() {
        let guests = [guest(0, 1), Guest { alone: true, ..guest(1, 1) }, guest(2, 1)];
        assert_eq!(sittings(&guests, 100), [vec![0, 2], vec![1]]);
        let alone: Vec<Guest> = (0..3).map(|it| Guest { alone: true, ..guest(it, 1) }).collect();
        assert_eq!(sittings(&alone, 100), [[0], [1], [2]]);
    }
}
