//! The values that samplers read on the GPUs of an engine.

use std::collections::BTreeSet;

use super::observation::Observation;
use crate::machine::{Device, gpus_of};
use crate::record::GpuPass;

/// The values of one pass, over all GPUs that an engine computed on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OnGpus {
    /// The indices in NVML.
    pub indices: Vec<u32>,
    /// The memory of the engine's processes, as the driver counts it; absent if the driver names none of them.
    pub process_bytes: Option<u64>,
    /// The growth of the memory in use on the whole devices since just before the launch.
    pub growth_bytes: Option<u64>,
    /// The memory in use on the whole devices.
    pub whole_bytes: Option<u64>,
    /// The share of the time in which a kernel ran, on the GPU with the largest share.
    pub busy_percent: Option<f64>,
    /// The share of the time in which the GPU's memory was read or written, on the GPU with the largest share.
    pub memory_busy_percent: Option<f64>,
    /// The mean power of all GPUs together.
    pub watts: Option<f64>,
    /// The lowest and the highest clock.
    pub clock_mhz: Option<(u32, u32)>,
    pub memory_clock_mhz: Option<(u32, u32)>,
    pub celsius: Option<u32>,
    /// The share of the pass's readings with a reduced clock, on the GPU where that was most frequent.
    pub slowed_share: Option<f64>,
    /// The reasons in the driver's words.
    pub slowed_by: Vec<String>,
}

impl OnGpus {
    /// `None` without readings of GPUs, for an engine on the CPU, or if its GPUs are not known.
    pub fn of(observed: &Observation) -> Option<Self> {
        let pass = observed.pass.filter(|pass| !pass.gpus.is_empty() && observed.on_device())?;
        let indices = indices(observed)?;
        let gpus: Vec<&GpuPass> = pass.gpus.iter().filter(|gpu| indices.contains(&gpu.index)).collect();
        if gpus.is_empty() {
            return None;
        }
        let growth = |gpu: &&GpuPass| {
            let before = observed.launch.gpus_before.iter().find(|before| before.index == gpu.index)?;
            gpu.memory_used_bytes?.checked_sub(before.memory_used_bytes).filter(|&bytes| bytes > 0)
        };
        let max_of = |of: fn(&GpuPass) -> Option<u32>| gpus.iter().filter_map(|gpu| of(gpu)).max();
        let range_of = |of: fn(&GpuPass) -> Option<(u32, u32)>| {
            let ranges = gpus.iter().filter_map(|gpu| of(gpu));
            ranges.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
        };
        let slowed = gpus.iter().filter(|gpu| gpu.samples > 0).filter_map(|gpu| {
            Some(f64::from(gpu.throttled_samples?.min(gpu.samples)) / f64::from(gpu.samples))
        });
        let reasons: BTreeSet<&String> = gpus.iter().flat_map(|gpu| &gpu.throttled_by).collect();
        let watts = gpus.iter().map(|gpu| gpu.power_milliwatts.map(|it| f64::from(it) / 1000.0));
        Some(Self {
            process_bytes: gpus.iter().filter_map(|gpu| gpu.process_bytes).reduce(u64::saturating_add),
            growth_bytes: gpus.iter().filter_map(growth).reduce(u64::saturating_add),
            whole_bytes: gpus.iter().filter_map(|gpu| gpu.memory_used_bytes).reduce(u64::saturating_add),
            busy_percent: max_of(|gpu| gpu.utilisation_percent).map(f64::from),
            memory_busy_percent: max_of(|gpu| gpu.memory_utilisation_percent).map(f64::from),
            // There is no sum if the power of one GPU is not known.
            watts: watts.collect::<Option<Vec<f64>>>().map(|watts| watts.iter().sum()),
            clock_mhz: range_of(|gpu| gpu.clock_mhz),
            memory_clock_mhz: range_of(|gpu| gpu.memory_clock_mhz),
            celsius: max_of(|gpu| gpu.temperature_celsius),
            slowed_share: slowed.reduce(f64::max),
            slowed_by: reasons.into_iter().cloned().collect(),
            indices,
        })
    }

    /// The memory of the engine's processes, if the driver names them. In a container, or under some kernels, the driver names
    /// no process, or names them by the ids of the host. Then the growth of the whole devices is the best value.
    pub fn counted_bytes(&self) -> Option<u64> {
        self.process_bytes.or(self.growth_bytes)
    }
}

/// The indices in NVML of the engine's GPUs, among those that were sampled in the pass.
pub fn indices(observed: &Observation) -> Option<Vec<u32>> {
    gpus_of(&observed.pass?.gpus, cuda_index(observed), observed.machine, observed.limits)
}

/// CUDA's index of the GPU that the engine reports, else of the requested GPU.
fn cuda_index(observed: &Observation) -> Option<u32> {
    let reported = observed.launch.loaded.as_ref().and_then(|loaded| loaded.facts.device.as_deref());
    let requested = observed.configuration.map(|configuration| &configuration.device);
    match (reported.map(Device::from), requested) {
        (Some(reported), Some(requested)) => reported.cuda_index_reported(requested),
        (Some(reported), None) => reported.cuda_index(),
        (None, requested) => requested?.cuda_index(),
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Facts, Loaded};

    use super::*;
    use crate::machine::gpu::Cuda;
    use crate::machine::observed::UsedGpuMemory;
    use crate::machine::{Gpu, Machine};
    use crate::plan::scenario::Kind;
    use crate::plan::{Configuration, Mode};
    use crate::record::{Launch, Pass, Sample};

    fn machine(visible: Option<&str>) -> Machine {
        let gpu = |index, uuid: &str| Gpu { index, uuid: Some(uuid.into()), ..Gpu::default() };
        let visible_devices = visible.map(String::from);
        let cuda = Cuda { device_order: "PCI_BUS_ID".into(), visible_devices };
        Machine { gpus: vec![gpu(0, "GPU-a"), gpu(1, "GPU-b")], cuda: Some(cuda), ..Machine::default() }
    }

    /// A GPU with `used` bytes in use, in the pass.
    fn gpu(index: u32, used: u64, process_bytes: Option<u64>) -> GpuPass {
        GpuPass { index, memory_used_bytes: Some(used), process_bytes, samples: 4, ..GpuPass::default() }
    }

    /// A launch before which 100 bytes of GPU 0 and 30 bytes of GPU 1 were in use.
    fn launch(device: &str) -> Launch {
        let facts = Facts { device: Some(device.into()), ..Facts::default() };
        let used_before = |index, memory_used_bytes| UsedGpuMemory { index, memory_used_bytes };
        Launch {
            loaded: Some(Loaded { facts, ..Loaded::default() }),
            gpus_before: vec![used_before(0, 100), used_before(1, 30)],
            ..Launch::default()
        }
    }

    fn on_gpus(device: &str, visible: Option<&str>, gpus: [GpuPass; 2]) -> Option<OnGpus> {
        let (launch, sample, machine) = (launch(device), Sample::default(), machine(visible));
        let pass = Pass { gpus: gpus.to_vec(), ..Pass::default() };
        let observed = Observation::without_record(&sample, &launch, Kind::Warm, Mode::Warm);
        OnGpus::of(&Observation { pass: Some(&pass), machine: Some(&machine), ..observed })
    }

    #[test]
    fn gpu_memory_is_the_growth_of_the_device_if_the_driver_names_no_process() {
        let unnamed = || [gpu(0, 170, None), gpu(1, 90, None)];
        let found = on_gpus("cuda:1", None, unnamed()).unwrap();
        assert_eq!(
            (found.indices.as_slice(), found.growth_bytes, found.whole_bytes),
            (&[1][..], Some(60), Some(90))
        );
        assert_eq!((found.process_bytes, found.counted_bytes()), (None, Some(60)));
        let named = on_gpus("cuda:1", None, [gpu(0, 170, None), gpu(1, 90, Some(55))]).unwrap();
        assert_eq!(
            (named.process_bytes, named.growth_bytes, named.counted_bytes()),
            (Some(55), Some(60), Some(55))
        );
        // The growth of a GPU is not known if less memory is in use than before the launch.
        assert_eq!(
            on_gpus("cuda:0", None, [gpu(0, 90, None), gpu(1, 90, None)]).unwrap().counted_bytes(),
            None
        );
        assert_eq!(on_gpus("cpu", None, unnamed()), None);
        assert_eq!(on_gpus("cuda:2", None, unnamed()), None);
        assert_eq!(on_gpus("metal", None, unnamed()), None);
    }

    #[test]
    fn cuda_variables_decide_which_gpu_a_name_means() {
        let unnamed = || [gpu(0, 170, None), gpu(1, 90, None)];
        let indices = |device: &str, visible| on_gpus(device, visible, unnamed()).map(|found| found.indices);
        assert_eq!(indices("CUDA", Some("1,0")), Some(vec![1]));
        assert_eq!(indices("cuda:1", Some("1,0")), Some(vec![0]));
        assert_eq!(indices("cuda", Some("GPU-b")), Some(vec![1]));
        assert_eq!(indices("cuda:1", Some("GPU-b")), None);
        // Several GPUs are found by the engine's processes, whatever the name.
        let both = on_gpus("cuda", None, [gpu(0, 170, Some(5)), gpu(1, 90, Some(6))]).unwrap();
        assert_eq!(
            (both.indices.as_slice(), both.process_bytes, both.growth_bytes),
            (&[0, 1][..], Some(11), Some(130))
        );
    }

    #[test]
    fn an_engine_that_reports_cuda_without_a_number_is_on_the_requested_gpu() {
        let (launch, sample, machine) = (launch("cuda"), Sample::default(), machine(None));
        let pass = Pass { gpus: vec![gpu(0, 170, None), gpu(1, 90, None)], ..Pass::default() };
        let configuration = Configuration { device: "cuda:1".into(), ..Configuration::default() };
        let observed = Observation::without_record(&sample, &launch, Kind::Warm, Mode::Warm);
        let observed = Observation {
            pass: Some(&pass),
            machine: Some(&machine),
            configuration: Some(&configuration),
            ..observed
        };
        assert_eq!(OnGpus::of(&observed).map(|found| found.indices), Some(vec![1]));
    }

    #[test]
    fn the_values_of_several_gpus_are_combined() {
        let first = GpuPass {
            utilisation_percent: Some(40),
            power_milliwatts: Some(300_000),
            clock_mhz: Some((1500, 1700)),
            throttled_samples: Some(1),
            throttled_by: vec!["sw_power_cap".into()],
            ..gpu(0, 1, Some(1))
        };
        let second = GpuPass {
            utilisation_percent: Some(90),
            power_milliwatts: Some(150_500),
            clock_mhz: Some((1600, 1980)),
            throttled_samples: Some(4),
            throttled_by: vec!["hw_slowdown".into()],
            ..gpu(1, 1, Some(1))
        };
        let found = on_gpus("cuda", None, [first.clone(), second.clone()]).unwrap();
        assert_eq!(
            (found.busy_percent, found.watts, found.slowed_share),
            (Some(90.0), Some(450.5), Some(1.0))
        );
        assert_eq!((found.clock_mhz, found.celsius), (Some((1500, 1980)), None));
        assert_eq!(found.slowed_by, ["hw_slowdown", "sw_power_cap"]);
        let without_power = GpuPass { power_milliwatts: None, ..second };
        assert_eq!(on_gpus("cuda", None, [first, without_power]).unwrap().watts, None);
    }
}
