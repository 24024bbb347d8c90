//! The configurations that take part in the next block.
//!
//! All take part if the time allows it. If it does not, a configuration that takes much longer than the others (a long launch, or
//! slow requests) takes part in fewer blocks. So the others get the blocks that a verdict needs. A reference has its time
//! first, because a block without it compares no engine with it. A block is still
//! complete for each of its configurations, and a pair is compared in the blocks that both have. The choice depends on
//! the times of earlier blocks and on the budget, never on a ratio.

use std::collections::BTreeMap;
use std::time::Duration;

use super::time_budget::ascending;

/// The time of a configuration in one block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockTime {
    /// Its launches, warm-ups and rounds.
    pub whole: Duration,
    /// Its launches, with one warm-up request and one round of each workload. A block cannot be shorter.
    pub least: Duration,
}

impl BlockTime {
    pub fn add(&mut self, other: Self) {
        self.whole += other.whole;
        self.least += other.least;
    }
}

/// A row together with its twin and its baseline, which take part in a block only with this row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowGroup {
    pub configurations: Vec<usize>,
    pub time: BlockTime,
    /// Other rows are compared with this one.
    pub is_reference: bool,
}

/// The row groups of these configurations. `row_of` gives the row of a twin or baseline, and any other configuration itself.
pub fn row_groups(
    configurations: &[usize],
    row_of: impl Fn(usize) -> usize,
    time_of: impl Fn(usize) -> BlockTime,
) -> Vec<RowGroup> {
    let mut row_groups: BTreeMap<usize, RowGroup> = BTreeMap::new();
    for &configuration in configurations {
        let group = row_groups.entry(row_of(configuration)).or_default();
        group.configurations.push(configuration);
        group.time.add(time_of(configuration));
    }
    row_groups.into_values().collect()
}

/// The configurations of the next block; empty if the time that is `left` is too short for a block. `missing` is the number of
/// wanted blocks that are still to be measured. These blocks may have fewer rounds. If none is missing, a further block must have
/// all rounds.
pub fn participants(row_groups: &[RowGroup], missing: u32, left: Duration) -> Vec<usize> {
    if left.is_zero() {
        return Vec::new();
    }
    let times = row_groups.iter().map(|group| if missing > 0 { group.time.least } else { group.time.whole });
    let times: Vec<Duration> = times.collect();
    let is_reference: Vec<bool> = row_groups.iter().map(|group| group.is_reference).collect();
    let shares = references_first(&times, &is_reference, left / missing.max(1));
    // A block of one row compares nothing, so two rows must fit, unless the run has only one.
    let selected = if shares.len() >= row_groups.len().min(2) {
        shares
    } else if missing > 0 && times.iter().sum::<Duration>() <= left {
        // No two rows get all missing blocks, so all rows get as many as possible.
        (0..row_groups.len()).collect()
    } else {
        Vec::new()
    };
    selected.into_iter().flat_map(|index| row_groups[index].configurations.clone()).collect()
}

/// The indices of the times that fit into `time`. References have their time first, and the others share the rest. If no other time
/// would fit, a reference is a row like the others: those are then compared with each other.
fn references_first(times: &[Duration], is_reference: &[bool], time: Duration) -> Vec<usize> {
    let (references, others): (Vec<usize>, Vec<usize>) =
        (0..times.len()).partition(|&index| is_reference[index]);
    let of_references: Duration = references.iter().map(|&index| times[index]).sum();
    let of_others: Vec<Duration> = others.iter().map(|&index| times[index]).collect();
    let fitting = match time.checked_sub(of_references) {
        Some(rest) => with_enough_time(&of_others, rest),
        None => Vec::new(),
    };
    if fitting.is_empty() {
        return with_enough_time(times, time);
    }
    references.into_iter().chain(fitting.into_iter().map(|index| others[index])).collect()
}

/// The indices of the times that fit into `time`. Each has an equal share of it, and the part that shorter times do not use.
/// If the sum of all times fits, no index is missing.
fn with_enough_time(times: &[Duration], mut time: Duration) -> Vec<usize> {
    let order = ascending(times);
    let fits = |&(position, index): &(usize, usize)| {
        let share = time / (times.len() - position) as u32;
        time = time.saturating_sub(times[index]);
        times[index] <= share
    };
    order.into_iter().enumerate().take_while(fits).map(|(_, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row groups of one configuration, each with its shortest time and its whole time in a block.
    fn rows(times_s: &[(u64, u64)]) -> Vec<RowGroup> {
        let time =
            |least, whole| BlockTime { least: Duration::from_secs(least), whole: Duration::from_secs(whole) };
        let group = |(index, &(least, whole)): (usize, &(u64, u64))| RowGroup {
            configurations: vec![index],
            time: time(least, whole),
            is_reference: false,
        };
        times_s.iter().enumerate().map(group).collect()
    }

    fn selected(times_s: &[(u64, u64)], missing: u32, left_s: u64) -> Vec<usize> {
        let mut selected = participants(&rows(times_s), missing, Duration::from_secs(left_s));
        selected.sort_unstable();
        selected
    }

    #[test]
    fn all_configurations_take_part_if_the_missing_blocks_fit() {
        assert_eq!(selected(&[(1, 3), (5, 9), (2, 8)], 4, 32), [0, 1, 2]);
        assert_eq!(selected(&[(1, 3)], 4, 4), [0]);
    }

    #[test]
    fn a_configuration_that_takes_long_to_start_leaves_the_missing_blocks_to_the_others() {
        assert_eq!(selected(&[(60, 65), (1, 3), (2, 4)], 4, 100), [1, 2]);
        // If time is left, the last block has it again.
        assert_eq!(selected(&[(60, 65), (1, 3), (2, 4)], 1, 70), [0, 1, 2]);
    }

    #[test]
    fn equally_slow_configurations_have_fewer_blocks_together() {
        assert_eq!(selected(&[(10, 20), (10, 20), (10, 20)], 4, 90), [0, 1, 2]);
        assert_eq!(selected(&[(10, 20), (10, 20), (10, 20)], 4, 29), [0_usize; 0]);
    }

    #[test]
    fn a_block_beyond_those_that_verdicts_need_begins_only_if_it_is_complete_with_two_rows() {
        assert_eq!(selected(&[(1, 3), (1, 4), (1, 30)], 0, 37), [0, 1, 2]);
        assert_eq!(selected(&[(1, 3), (1, 4), (1, 30)], 0, 36), [0, 1]);
        assert_eq!(selected(&[(1, 3), (1, 40)], 0, 36), [0_usize; 0]);
        assert_eq!(selected(&[(1, 30)], 0, 36), [0]);
        assert_eq!(selected(&[(1, 40)], 0, 36), [0_usize; 0]);
    }

    #[test]
    fn a_slow_reference_takes_part_if_another_row_fits_beside_it() {
        let selected = |times_s: &[(u64, u64)], left_s: u64| {
            let mut groups = rows(times_s);
            groups[0].is_reference = true;
            let mut selected = participants(&groups, 5, Duration::from_secs(left_s));
            selected.sort_unstable();
            selected
        };
        // Each block has 20 s. The reference takes 14 s of them, more than an equal share.
        assert_eq!(selected(&[(14, 20), (1, 3), (2, 4), (9, 9)], 100), [0, 1, 2]);
        // With 20 s it would leave nothing to the others.
        assert_eq!(selected(&[(20, 20), (1, 3), (2, 4)], 100), [1, 2]);
        assert_eq!(selected(&[(30, 30), (1, 3), (2, 4)], 100), [1, 2]);
    }

    #[test]
    fn no_block_begins_without_time_left_even_if_the_time_of_a_block_is_unknown() {
        assert_eq!(selected(&[(0, 0), (0, 0)], 5, 0), [0_usize; 0]);
        assert_eq!(selected(&[(0, 0), (0, 0)], 5, 1), [0, 1]);
    }

    #[test]
    fn a_twin_takes_part_in_a_block_exactly_if_its_row_takes_part() {
        let time = |_| BlockTime { least: Duration::from_secs(10), whole: Duration::from_secs(10) };
        let row_of = |configuration| if configuration == 3 { 0 } else { configuration };
        let row_groups = row_groups(&[3, 1, 0, 2], row_of, time);
        assert_eq!(row_groups.len(), 3);
        let selected = participants(&row_groups, 1, Duration::from_secs(39));
        assert!(selected == [1, 2], "{selected:?}");
    }
}
