//! The summary of several GPU samples.

use std::time::Duration;

use crate::machine::observed::GpuPass;

/// The time from which samples of utilisation and power are used. The driver's values are means over up to a second, so earlier
/// samples describe the time before the pass.
const FIRST_USABLE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuSample {
    pub index: u32,
    /// The time since the first sample began.
    pub at: Duration,
    pub utilisation_percent: Option<u32>,
    pub memory_utilisation_percent: Option<u32>,
    pub memory_used_bytes: Option<u64>,
    /// The memory of the engine's processes. `None` if the driver reports it for none of them.
    pub process_bytes: Option<u64>,
    pub power_milliwatts: Option<u32>,
    pub clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    pub temperature_celsius: Option<u32>,
    /// The driver's names for the causes of a slowdown: empty without a slowdown, `None` if the driver does not report them.
    pub throttled_by: Option<Vec<String>>,
}

/// The summary of each GPU's samples, in the order of their indices.
pub fn summarise(samples: &[GpuSample]) -> Vec<GpuPass> {
    let mut indices: Vec<u32> = samples.iter().map(|sample| sample.index).collect();
    indices.sort_unstable();
    indices.dedup();
    indices.into_iter().map(|index| summary(index, samples)).collect()
}

fn summary(index: u32, samples: &[GpuSample]) -> GpuPass {
    let of_gpu = || samples.iter().filter(move |sample| sample.index == index);
    let usable_mean = |field: fn(&GpuSample) -> Option<u32>| {
        mean(of_gpu().filter(|sample| sample.at >= FIRST_USABLE).filter_map(field))
    };
    let largest = |field: fn(&GpuSample) -> Option<u64>| of_gpu().filter_map(field).max();
    let range = |field: fn(&GpuSample) -> Option<u32>| {
        of_gpu().filter_map(field).min().zip(of_gpu().filter_map(field).max())
    };
    let reasons = || of_gpu().filter_map(|sample| sample.throttled_by.as_ref());
    let mut throttled_by: Vec<String> = reasons().flatten().cloned().collect();
    throttled_by.sort();
    throttled_by.dedup();
    GpuPass {
        index,
        utilisation_percent: usable_mean(|sample| sample.utilisation_percent),
        memory_utilisation_percent: usable_mean(|sample| sample.memory_utilisation_percent),
        power_milliwatts: usable_mean(|sample| sample.power_milliwatts),
        samples: of_gpu().count() as u32,
        memory_used_bytes: largest(|sample| sample.memory_used_bytes),
        process_bytes: largest(|sample| sample.process_bytes),
        clock_mhz: range(|sample| sample.clock_mhz),
        memory_clock_mhz: range(|sample| sample.memory_clock_mhz),
        temperature_celsius: of_gpu().filter_map(|sample| sample.temperature_celsius).max(),
        throttled_samples: reasons().next().map(|_| reasons().filter(|by| !by.is_empty()).count() as u32),
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

    fn sample(index: u32, percent: Option<u32>, clock: u32, reasons: &[&str]) -> GpuSample {
        GpuSample {
            index,
            at: FIRST_USABLE,
            utilisation_percent: percent,
            power_milliwatts: percent.map(|percent| percent * 1000),
            clock_mhz: Some(clock),
            memory_clock_mhz: Some(clock + 1),
            memory_used_bytes: Some(u64::from(clock)),
            throttled_by: Some(reasons.iter().map(|it| it.to_string()).collect()),
            ..GpuSample::default()
        }
    }

    #[test]
    fn gpu_samples_give_mean_utilisation_and_power_and_extremes_of_other_values() {
        let mut samples = vec![
            sample(1, Some(100), 1500, &["sw_power_cap"]),
            sample(0, Some(4), 300, &[]),
            sample(1, Some(51), 1980, &["sw_power_cap", "hw_slowdown"]),
            sample(1, Some(76), 1700, &[]),
        ];
        samples[2].process_bytes = Some(7);
        let summaries = summarise(&samples);
        assert_eq!(
            summaries.iter().map(|gpu| (gpu.index, gpu.samples)).collect::<Vec<_>>(),
            [(0, 1), (1, 3)]
        );
        assert_eq!(
            (summaries[1].utilisation_percent, summaries[1].power_milliwatts),
            (Some(76), Some(75_667))
        );
        assert_eq!(
            (summaries[1].clock_mhz, summaries[1].memory_clock_mhz),
            (Some((1500, 1980)), Some((1501, 1981)))
        );
        assert_eq!((summaries[1].memory_used_bytes, summaries[1].process_bytes), (Some(1980), Some(7)));
        assert_eq!(summaries[1].throttled_by, ["hw_slowdown", "sw_power_cap"]);
        assert_eq!((summaries[0].throttled_samples, summaries[1].throttled_samples), (Some(0), Some(2)));
        assert_eq!(summarise(&[]), []);
    }

    #[test]
    fn averages_of_a_gpu_ignore_samples_of_the_first_second() {
        let early = GpuSample { at: FIRST_USABLE / 2, ..sample(0, Some(0), 1, &[]) };
        let summaries = summarise(&[early.clone(), sample(0, Some(90), 2, &[])]);
        assert_eq!(
            (summaries[0].utilisation_percent, summaries[0].power_milliwatts),
            (Some(90), Some(90_000))
        );
        assert_eq!((summaries[0].samples, summaries[0].clock_mhz), (2, Some((1, 2))));
        // The utilisation of a shorter pass is unknown, not zero.
        assert_eq!(summarise(&[early])[0].utilisation_percent, None);
    }

    #[test]
    fn the_utilisation_of_a_mig_device_is_unknown_and_not_zero() {
        assert_eq!(summarise(&[sample(0, None, 1, &[])])[0].utilisation_percent, None);
        let without_reasons = GpuSample { throttled_by: None, ..sample(0, None, 1, &[]) };
        let summaries = summarise(&[without_reasons]);
        assert_eq!((summaries[0].throttled_samples, summaries[0].samples), (None, 1));
    }
}
