//! The cores that a probe may use, and the selection from them.

/// A logical core, by the kernel's number.
pub type Core = usize;

/// The cores that this process may use. The first logical core of each physical core precedes any second one, because two
/// threads on one physical core share its units.
pub fn allowed() -> Vec<Core> {
    let mut cores = system::allowed();
    cores.sort_by_key(|&core| (place_among_siblings(core), core));
    cores
}

/// This number of cores, spread as widely as possible, so that few share caches and memory channels. A scheduler places threads
/// in this way on an idle machine.
pub fn spread(cores: &[Core], count: usize) -> Vec<Core> {
    let count = count.min(cores.len());
    (0..count).map(|index| cores[index * cores.len() / count]).collect()
}

/// Pins the calling thread to a core, if the system allows it.
pub fn stay_on(core: Core) {
    system::stay_on(core);
}

/// 0 for the first logical core of a physical core, 1 for its second.
fn place_among_siblings(core: Core) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    std::fs::read_to_string(path).map_or(0, |list| place_in(&list, core))
}

/// The number of cores that a list such as `0,32` or `0-1` has before this one.
fn place_in(list: &str, core: Core) -> usize {
    let ranges = list.trim().split(',').filter_map(|part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some((from.parse::<Core>().ok()?, to.parse::<Core>().ok()?))
    });
    ranges.map(|(from, to)| core.min(to.saturating_add(1)).saturating_sub(from)).sum()
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::Core;

    pub fn allowed() -> Vec<Core> {
        // The call fails on a machine with more cores than the set can hold.
        sched_getaffinity(None).map_or_else(
            |_| super::counted(),
            |set| (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect(),
        )
    }

    pub fn stay_on(core: Core) {
        if core < CpuSet::MAX_CPU {
            let mut set = CpuSet::new();
            set.set(core);
            // Best effort: a container may forbid it.
            let _ = sched_setaffinity(None, &set);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::Core;

    pub fn allowed() -> Vec<Core> {
        super::counted()
    }

    pub fn stay_on(_core: Core) {}
}

/// All cores by number, if the system has no list.
fn counted() -> Vec<Core> {
    (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_threads_are_spread_over_all_cores() {
        assert_eq!(spread(&[0, 1, 2, 3, 4, 5, 6, 7], 2), [0, 4]);
        assert_eq!(spread(&[0, 1, 2], 2), [0, 1]);
        assert_eq!(spread(&[5, 9], 2), [5, 9]);
        assert_eq!(spread(&[5, 9], 7), [5, 9]);
        assert_eq!(spread(&[], 1), [0; 0]);
    }

    #[test]
    fn the_second_logical_core_of_a_physical_one_is_known_by_its_siblings() {
        assert_eq!([0, 32].map(|core| place_in("0,32\n", core)), [0, 1]);
        assert_eq!([4, 5].map(|core| place_in("4-5\n", core)), [0, 1]);
        assert_eq!([place_in("", 3), place_in("x-y", 3), place_in("7", 7)], [0, 0, 0]);
    }

    #[test]
    fn there_is_a_core_to_run_on() {
        assert!(!allowed().is_empty());
    }
}
