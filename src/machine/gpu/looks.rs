//! The summary of several GPU samples.

use std::time::Duration;

use crate::machine::observed::GpuPass;

/// The driver's utilisation and power are means over up to a second. An earlier sample describes the time before the pass.
const SETTLED: Duration = Duration::from_secs(1);

/// One sample of one GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    pub index: u32,
    /// The time since the first sample began.
    pub at: Duration,
    pub utilisation_percent: Option<u32>,
    pub memory_utilisation_percent: Option<u32>,
    pub memory_used_bytes: Option<u64>,
    /// The memory of the given processes. `None` if the driver names none of them.
    pub process_bytes: Option<u64>,
    pub power_milliwatts: Option<u32>,
    pub clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    pub temperature_celsius: Option<u32>,
    /// The driver's names of the causes of a slowdown. Empty if there is none, `None` if the driver does not say.
    pub throttled_by: Option<Vec<String>>,
}

/// The summary of each GPU's samples, in the order of their indices.
pub fn over(looks: &[Look]) -> Vec<GpuPass> {
    let mut indices: Vec<u32> = looks.iter().map(|look| look.index).collect();
    indices.sort_unstable();
    indices.dedup();
    indices.into_iter().map(|index| over_one(index, looks)).collect()
}

fn over_one(index: u32, looks: &[Look]) -> GpuPass {
    let own = || looks.iter().filter(move |look| look.index == index);
    let settled = |of: fn(&Look) -> Option<u32>| mean(own().filter(|look| look.at >= SETTLED).filter_map(of));
    let most = |of: fn(&Look) -> Option<u64>| own().filter_map(of).max();
    let ends = |of: fn(&Look) -> Option<u32>| own().filter_map(of).min().zip(own().filter_map(of).max());
    let reasons = || own().filter_map(|look| look.throttled_by.as_ref());
    let mut throttled_by: Vec<String> = reasons().flatten().cloned().collect();
    throttled_by.sort();
    throttled_by.dedup();
    GpuPass {
        index,
        utilisation_percent: settled(|look| look.utilisation_percent),
        memory_utilisation_percent: settled(|look| look.memory_utilisation_percent),
        power_milliwatts: settled(|look| look.power_milliwatts),
        looks: own().count() as u32,
        memory_used_bytes: most(|look| look.memory_used_bytes),
        process_bytes: most(|look| look.process_bytes),
        clock_mhz: ends(|look| look.clock_mhz),
        memory_clock_mhz: ends(|look| look.memory_clock_mhz),
        temperature_celsius: own().filter_map(|look| look.temperature_celsius).max(),
        throttled_looks: reasons().next().map(|_| reasons().filter(|by| !by.is_empty()).count() as u32),
        throttled_by,
    }
}

/// The rounded mean. `None` without values.
fn mean(numbers: impl Iterator<Item = u32>) -> Option<u32> {
    let (sum, count) =
        numbers.fold((0_u64, 0_u64), |(sum, count), number| (sum + u64::from(number), count + 1));
    (count > 0).then(|| ((sum + count / 2) / count) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(index: u32, busy: Option<u32>, clock: u32, by: &[&str]) -> Look {
        Look {
            index,
            at: SETTLED,
            utilisation_percent: busy,
            power_milliwatts: busy.map(|percent| percent * 1000),
            clock_mhz: Some(clock),
            memory_clock_mhz: Some(clock + 1),
            memory_used_bytes: Some(u64::from(clock)),
            throttled_by: Some(by.iter().map(|word| word.to_string()).collect()),
            ..Look::default()
        }
    }

    #[test]
    fn looks_come_to_a_mean_of_what_was_busy_and_to_the_ends_of_the_rest() {
        let mut looks = vec![
            look(1, Some(100), 1500, &["sw_power_cap"]),
            look(0, Some(4), 300, &[]),
            look(1, Some(51), 1980, &["sw_power_cap", "hw_slowdown"]),
            look(1, Some(76), 1700, &[]),
        ];
        looks[2].process_bytes = Some(7);
        let found = over(&looks);
        assert_eq!(found.iter().map(|gpu| (gpu.index, gpu.looks)).collect::<Vec<_>>(), [(0, 1), (1, 3)]);
        assert_eq!((found[1].utilisation_percent, found[1].power_milliwatts), (Some(76), Some(75_667)));
        assert_eq!((found[1].clock_mhz, found[1].memory_clock_mhz), (Some((1500, 1980)), Some((1501, 1981))));
        assert_eq!((found[1].memory_used_bytes, found[1].process_bytes), (Some(1980), Some(7)));
        assert_eq!(found[1].throttled_by, ["hw_slowdown", "sw_power_cap"]);
        assert_eq!((found[0].throttled_looks, found[1].throttled_looks), (Some(0), Some(2)));
        assert_eq!(over(&[]), []);
    }

    #[test]
    fn what_the_driver_averages_over_a_second_is_not_taken_from_before_the_pass() {
        let early = Look { at: SETTLED / 2, ..look(0, Some(0), 1, &[]) };
        let found = over(&[early.clone(), look(0, Some(90), 2, &[])]);
        assert_eq!((found[0].utilisation_percent, found[0].power_milliwatts), (Some(90), Some(90_000)));
        assert_eq!((found[0].looks, found[0].clock_mhz), (2, Some((1, 2))));
        // The utilisation of a shorter pass is unknown, not zero.
        assert_eq!(over(&[early])[0].utilisation_percent, None);
    }

    #[test]
    fn a_part_of_a_gpu_that_states_no_utilisation_was_not_idle() {
        assert_eq!(over(&[look(0, None, 1, &[])])[0].utilisation_percent, None);
        let silent = Look { throttled_by: None, ..look(0, None, 1, &[]) };
        let found = over(&[silent]);
        assert_eq!((found[0].throttled_looks, found[0].looks), (None, 1));
    }
}
