//! The resources of an engine other than time: memory of the host and of the device, energy, and cores. Engines and samplers
//! give the values. A value is absent if it was not counted or is not above zero.

use serde::Serialize;

use super::gpus::{self, OnGpus};
use super::observation::Observation;
use crate::machine::observed::{PACKAGE_PREFIX, gpu_counter};
use crate::record::{Energy, HeldMemory, Idle, Pass, Sample};

/// The shortest sampled pass that gives the energy of a GPU. The GPU's counter changes about ten times in a
/// second, so the energy of a shorter pass may be wrong by more than a tenth.
const MIN_GPU_PASS_NS: u64 = 1_000_000_000;

/// The peak of resident memory, minus the pages that were counted more than once.
pub fn peak_memory(observed: &Observation) -> Vec<f64> {
    above_zero(peak_bytes(observed))
}

/// The largest memory in one sample: in the sampled pass, or after an answer if that was more. Absent if another launch of the
/// case has the sampled pass, because memory after an answer is below the peak of the request.
fn largest_held(observed: &Observation) -> Option<HeldMemory> {
    if observed.pass_elsewhere.is_some_and(|pass| pass.held.is_some()) {
        return None;
    }
    let samples = [observed.pass.and_then(|pass| pass.held), observed.sample.held];
    samples.into_iter().flatten().max_by_key(|held| held.anonymous_bytes.saturating_add(held.file_bytes))
}

pub fn memory_anonymous(observed: &Observation) -> Vec<f64> {
    above_zero(largest_held(observed).map(|held| held.anonymous_bytes as f64))
}

pub fn memory_file(observed: &Observation) -> Vec<f64> {
    above_zero(largest_held(observed).map(|held| held.file_bytes as f64))
}

/// The peak memory minus the weights. For an engine on a GPU, it is the memory of the device.
pub fn memory_overhead(observed: &Observation) -> Vec<f64> {
    let peak = if observed.on_device() { device_bytes(observed) } else { peak_bytes(observed) };
    above_zero(peak.zip(weights_bytes(observed)).map(|(peak, weights)| peak - weights))
}

pub fn device_memory(observed: &Observation) -> Vec<f64> {
    above_zero(device_bytes(observed))
}

pub fn joules_per_token(observed: &Observation) -> Vec<f64> {
    let joules = observed.pass.and_then(|pass| {
        let joules = joules_above_idle(observed, pass)?;
        (pass.new_tokens > 0).then(|| joules / pass.new_tokens as f64)
    });
    above_zero(joules)
}

/// The energy of the engine's GPUs for each token, for machines whose processor counters only root can read.
pub fn gpu_joules_per_token(observed: &Observation) -> Option<f64> {
    let pass = observed.pass.filter(|pass| pass.new_tokens > 0 && observed.on_device())?;
    let counters = counters_of_gpus(observed)?;
    let drawn = counters.iter().map(|name| pass.energy.iter().find(|drawn| drawn.counter == *name));
    let drawn: Vec<&Energy> = drawn.collect::<Option<_>>()?;
    let joules = sum_above_idle(observed, &drawn)? / pass.new_tokens as f64;
    (joules > 0.0).then_some(joules)
}

/// The energy of a pass beyond the energy of the idle machine in the same time. `None` if a counter could not be read,
/// during the pass or on the idle machine: the sum would be incomplete.
fn joules_above_idle(observed: &Observation, pass: &Pass) -> Option<f64> {
    let gpu_counters: Vec<String> =
        if observed.on_device() { counters_of_gpus(observed)? } else { Vec::new() };
    let is_counted =
        |counter: &str| counter.starts_with(PACKAGE_PREFIX) || gpu_counters.iter().any(|gpu| gpu == counter);
    let drawn: Vec<&Energy> = pass.energy.iter().filter(|drawn| is_counted(&drawn.counter)).collect();
    let listed = observed.machine.into_iter().flat_map(|machine| &machine.energy_counters);
    let mut needed = listed.map(|it| &it.name).filter(|name| is_counted(name)).chain(&gpu_counters);
    if !needed.all(|name| drawn.iter().any(|drawn| drawn.counter == *name)) {
        return None;
    }
    sum_above_idle(observed, &drawn)
}

fn sum_above_idle(observed: &Observation, drawn: &[&Energy]) -> Option<f64> {
    let joules_of = |drawn: &&Energy| {
        if !drawn.counter.starts_with(PACKAGE_PREFIX) && drawn.elapsed_ns < MIN_GPU_PASS_NS {
            return None;
        }
        let idle = watts(idle_of(observed.idle, &drawn.counter)?)?;
        Some(drawn.microjoules as f64 / 1e6 - idle * drawn.elapsed_ns as f64 / 1e9)
    };
    let joules: Option<Vec<f64>> = drawn.iter().map(joules_of).collect();
    joules.filter(|joules| !joules.is_empty()).map(|joules| joules.iter().sum())
}

/// The energy counters of the GPUs that the engine computes on. `None` for a MIG device, which has no counter of its
/// own.
fn counters_of_gpus(observed: &Observation) -> Option<Vec<String>> {
    let indices = gpus::indices(observed)?;
    let is_partitioned = |index: &u32| {
        let gpus = observed.machine.into_iter().flat_map(|machine| &machine.gpus);
        gpus.filter(|gpu| gpu.index == *index).any(|gpu| gpu.is_partitioned())
    };
    if indices.iter().any(is_partitioned) {
        return None;
    }
    Some(indices.into_iter().map(gpu_counter).collect())
}

fn idle_of<'a>(idle: &'a [Idle], counter: &str) -> Option<&'a Energy> {
    idle.iter().flat_map(|idle| &idle.energy).find(|energy| energy.counter == counter)
}

/// The power of the idle machine, over all counters.
pub fn idle_watts(idle: &[Idle]) -> Option<f64> {
    let watts_of_counters = idle.iter().flat_map(|idle| &idle.energy).filter_map(watts);
    watts_of_counters.reduce(|sum, watts| sum + watts)
}

fn watts(energy: &Energy) -> Option<f64> {
    (energy.elapsed_ns > 0).then(|| energy.microjoules as f64 * 1e3 / energy.elapsed_ns as f64)
}

fn peak_bytes(observed: &Observation) -> Option<f64> {
    let peak = observed.sample.peak_resident_bytes?;
    Some(peak.saturating_sub(observed.counted_twice_bytes) as f64)
}

pub fn weights_bytes(observed: &Observation) -> Option<f64> {
    let reported = observed.launch.loaded.as_ref()?.facts.weights_bytes;
    reported.filter(|&bytes| bytes > 0).map(|bytes| bytes as f64)
}

/// The source of a value of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemorySource {
    /// The engine reports the value.
    Reported,
    /// The driver counts the memory of the engine's processes.
    Processes,
    /// The driver counts the memory of the whole device: the growth since just before the launch.
    Growth,
}

/// The larger of reported and counted memory: the engine knows its own allocator, and the driver also counts the memory of
/// libraries. Absent if another launch of the case has the counted memory, because only that launch has both values.
pub fn device_memory_with_source(observed: &Observation) -> Option<(f64, MemorySource)> {
    let is_counted = |pass: &Pass| {
        pass.gpus.iter().any(|gpu| gpu.process_bytes.is_some() || gpu.memory_used_bytes.is_some())
    };
    if !observed.on_device() || observed.pass_elsewhere.is_some_and(is_counted) {
        return None;
    }
    let on_gpus = OnGpus::of(observed);
    let source = if on_gpus.as_ref().is_some_and(|gpus| gpus.process_bytes.is_some()) {
        MemorySource::Processes
    } else {
        MemorySource::Growth
    };
    let counted = on_gpus.and_then(|gpus| gpus.counted_bytes()).map(|bytes| (bytes as f64, source));
    let reported = reported_device_bytes(observed).map(|bytes| (bytes, MemorySource::Reported));
    let known = [counted, reported].into_iter().flatten().filter(|(bytes, _)| *bytes > 0.0);
    known.reduce(|a, b| if b.0 > a.0 { b } else { a })
}

fn device_bytes(observed: &Observation) -> Option<f64> {
    device_memory_with_source(observed).map(|(bytes, _)| bytes)
}

pub fn reported_device_bytes(observed: &Observation) -> Option<f64> {
    let at_load = observed.launch.loaded.as_ref().and_then(|loaded| loaded.facts.device_memory.as_ref());
    let reported =
        [at_load, observed.sample.device_memory.as_ref()].into_iter().flatten().map(|it| it.peak_bytes);
    reported.max().map(|bytes| bytes as f64)
}

fn above_zero(number: Option<f64>) -> Vec<f64> {
    number.filter(|number| *number > 0.0).into_iter().collect()
}

/// The mean number of busy cores, over all requests with a known CPU time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CoresBusy {
    pub requests: usize,
    /// CPU time of the process tree, divided by the time of the requests.
    pub cores: f64,
    /// The mean number of threads that were ready but waited for a core; zero where the kernel does not count this.
    pub waited: f64,
    /// The sum over the requests.
    pub elapsed_ns: f64,
}

impl CoresBusy {
    /// `None` without requests, or if the requests took no time.
    pub fn of<'a>(samples: impl Iterator<Item = &'a Sample>) -> Option<Self> {
        let (mut requests, mut cpu, mut waited, mut elapsed) = (0, 0u128, 0u128, 0u128);
        for sample in samples {
            let Some(cpu_ns) = sample.cpu_ns else { continue };
            requests += 1;
            cpu += u128::from(cpu_ns);
            waited += u128::from(sample.waited_ns.unwrap_or(0));
            elapsed += u128::from(sample.elapsed_ns());
        }
        let (cpu, waited, elapsed_ns) = (cpu as f64, waited as f64, elapsed as f64);
        (elapsed > 0).then(|| Self {
            requests,
            cores: cpu / elapsed_ns,
            waited: waited / elapsed_ns,
            elapsed_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use protocol::{DeviceMemory, Facts, Loaded};

    use super::*;
    use crate::machine::energy::ListedCounter;
    use crate::machine::observed::UsedGpuMemory;
    use crate::machine::{Gpu, Machine};
    use crate::plan::Mode;
    use crate::plan::scenario::Kind;
    use crate::record::{GpuPass, Launch};

    const S: u64 = 1_000_000_000;
    const NO_VALUES: [f64; 0] = [];

    fn launch(device: &str, weights_bytes: Option<u64>) -> Launch {
        let facts = Facts { device: Some(device.into()), weights_bytes, ..Facts::default() };
        Launch { loaded: Some(Loaded { facts, ..Loaded::default() }), ..Launch::default() }
    }

    fn sample() -> Sample {
        let held = HeldMemory { resident_bytes: 260, pss_bytes: 140, anonymous_bytes: 110, file_bytes: 30 };
        Sample { peak_resident_bytes: Some(300), held: Some(held), ..Sample::default() }
    }

    fn listed(name: &str, trouble: Option<&str>) -> ListedCounter {
        ListedCounter { name: name.into(), trouble: trouble.map(String::from) }
    }

    fn without_record<'a>(sample: &'a Sample, launch: &'a Launch) -> Observation<'a> {
        Observation::without_record(sample, launch, Kind::Warm, Mode::Warm)
    }

    fn energy(counter: &str, microjoules: u64, elapsed_ns: u64) -> Energy {
        Energy { counter: counter.into(), microjoules, elapsed_ns }
    }

    #[test]
    fn shared_pages_count_once_and_the_overhead_is_the_peak_minus_the_weights() {
        let (sample, launch) = (sample(), launch("cpu", Some(90)));
        let bare = without_record(&sample, &launch);
        let observed = Observation { counted_twice_bytes: 120, ..bare };
        assert_eq!((peak_memory(&bare), peak_memory(&observed)), (vec![300.0], vec![180.0]));
        assert_eq!((memory_anonymous(&observed), memory_file(&observed)), (vec![110.0], vec![30.0]));
        assert_eq!((memory_overhead(&observed), device_memory(&observed)), (vec![90.0], vec![]));
    }

    #[test]
    fn memory_after_an_answer_counts_unless_another_launch_was_sampled() {
        let (sample, launch) = (sample(), launch("cpu", Some(90)));
        let sampled = |anonymous_bytes, file_bytes| Pass {
            held: Some(HeldMemory { anonymous_bytes, file_bytes, ..HeldMemory::default() }),
            ..Pass::default()
        };
        let parts = |observed: &Observation| (memory_anonymous(observed), memory_file(observed));
        let bare = without_record(&sample, &launch);
        let (more, less, unsampled) = (sampled(200, 20), sampled(100, 20), Pass::default());
        for (pass, expected) in [(&more, (200.0, 20.0)), (&less, (110.0, 30.0)), (&unsampled, (110.0, 30.0))]
        {
            let observed = Observation { pass: Some(pass), ..bare };
            assert_eq!(parts(&observed), (vec![expected.0], vec![expected.1]), "{pass:?}");
        }
        assert_eq!(parts(&Observation { pass_elsewhere: Some(&more), ..bare }), (vec![], vec![]));
        assert_eq!(
            parts(&Observation { pass_elsewhere: Some(&unsampled), ..bare }),
            (vec![110.0], vec![30.0])
        );
    }

    #[test]
    fn unreported_or_too_large_weights_give_no_memory_overhead() {
        let sample = sample();
        for weights in [None, Some(0), Some(300), Some(u64::MAX)] {
            let launch = launch("cpu", weights);
            assert_eq!(memory_overhead(&without_record(&sample, &launch)), NO_VALUES, "{weights:?}");
        }
    }

    #[test]
    fn device_memory_is_the_larger_of_reported_and_counted() {
        let (mut sample, launch) = (sample(), launch("cuda:0", Some(90)));
        sample.device_memory = Some(DeviceMemory { peak_bytes: 400, ..DeviceMemory::default() });
        let gpu = |index| GpuPass { index, process_bytes: Some(300), ..GpuPass::default() };
        let pass = Pass { gpus: vec![gpu(0), gpu(1)], ..Pass::default() };
        let bare = without_record(&sample, &launch);
        assert_eq!((device_memory(&bare), memory_overhead(&bare)), (vec![400.0], vec![310.0]));
        let observed = Observation { pass: Some(&pass), ..bare };
        assert_eq!((device_memory(&observed), memory_overhead(&observed)), (vec![600.0], vec![510.0]));
        let elsewhere = Observation { pass_elsewhere: Some(&pass), ..bare };
        assert_eq!((device_memory(&elsewhere), memory_overhead(&elsewhere)), (vec![], vec![]));
    }

    #[test]
    fn device_memory_is_reported_with_its_source() {
        let (mut sample, mut launch) = (sample(), launch("cuda:0", Some(90)));
        launch.gpus_before = vec![UsedGpuMemory { index: 0, memory_used_bytes: 1000 }];
        let with_source = |sample: &Sample, process_bytes| {
            let gpu =
                GpuPass { process_bytes, memory_used_bytes: Some(1500), samples: 1, ..GpuPass::default() };
            let pass = Pass { gpus: vec![gpu], ..Pass::default() };
            device_memory_with_source(&Observation { pass: Some(&pass), ..without_record(sample, &launch) })
        };
        assert_eq!(with_source(&sample, Some(450)), Some((450.0, MemorySource::Processes)));
        assert_eq!(with_source(&sample, None), Some((500.0, MemorySource::Growth)));
        sample.device_memory = Some(DeviceMemory { peak_bytes: 480, ..DeviceMemory::default() });
        assert_eq!(with_source(&sample, Some(450)), Some((480.0, MemorySource::Reported)));
        assert_eq!(with_source(&sample, None), Some((500.0, MemorySource::Growth)));
        assert_eq!(
            device_memory_with_source(&without_record(&sample, &launch)),
            Some((480.0, MemorySource::Reported))
        );
    }

    #[test]
    fn a_mig_device_and_a_short_pass_have_no_energy() {
        let machine = |mig| {
            let gpus = vec![Gpu { mig: Some(mig), ..Gpu::default() }];
            Machine { gpus, ..Machine::default() }
        };
        let (sample, launch) = (sample(), launch("cuda", None));
        let idle = [Idle { energy: vec![energy("gpu-0", 0, S)] }];
        let joules = |machine: &Machine, elapsed_ns| {
            let drawn = vec![energy("gpu-0", 9_000_000, elapsed_ns)];
            let pass = Pass { energy: drawn, new_tokens: 9, ..Pass::default() };
            let sampled = Observation { pass: Some(&pass), idle: &idle, ..without_record(&sample, &launch) };
            joules_per_token(&Observation { machine: Some(machine), ..sampled })
        };
        assert_eq!(joules(&machine(false), S), [1.0]);
        assert_eq!(joules(&machine(true), S), NO_VALUES);
        assert_eq!(joules(&machine(false), S - 1), NO_VALUES);
    }

    #[test]
    fn energy_above_idle_is_divided_by_the_new_tokens() {
        // 30 J and 12 J in 3 s, with 4 W and 1 W when idle: 27 J over 9 tokens.
        let drawn = vec![energy("package-0", 30_000_000, 3 * S), energy("gpu-0", 12_000_000, 3 * S)];
        let pass = Pass { energy: drawn, new_tokens: 9, prompt_tokens: 100, ..Pass::default() };
        let idle = [Idle {
            energy: vec![energy("gpu-0", 1_500_000, 3 * S / 2), energy("package-0", 6_000_000, 3 * S / 2)],
        }];
        let (sample, launch) = (sample(), launch("cuda", None));
        let bare = without_record(&sample, &launch);
        let joules =
            |pass: &Pass, idle: &[Idle]| joules_per_token(&Observation { pass: Some(pass), idle, ..bare });
        assert_eq!(joules(&pass, &idle), [3.0]);
        assert_eq!(idle_watts(&idle), Some(5.0));
        assert_eq!(joules_per_token(&bare), NO_VALUES);
    }

    #[test]
    fn energy_of_unused_gpus_is_not_counted() {
        let drawn =
            ["package-0", "package-0 dram", "gpu-0", "gpu-1"].map(|name| energy(name, 9_000_000, S)).to_vec();
        let idle_energy = drawn.iter().map(|drawn| energy(&drawn.counter, 0, S)).collect();
        let (idle, sample) = ([Idle { energy: idle_energy }], sample());
        let gpu = |index, process_bytes| GpuPass { index, process_bytes, ..GpuPass::default() };
        let unnamed = vec![gpu(0, None), gpu(1, None)];
        // Each counter adds 1 J per token: 9 J for 9 tokens.
        for (device, gpus, expected) in [
            ("cpu", unnamed.clone(), vec![2.0]),
            ("cuda:1", unnamed.clone(), vec![3.0]),
            ("cuda:0", vec![gpu(0, None), gpu(1, Some(7))], vec![3.0]),
            ("cuda:0", vec![gpu(0, Some(7)), gpu(1, Some(7))], vec![4.0]),
            // The GPU is not known.
            ("metal", unnamed.clone(), vec![]),
            ("cuda:2", unnamed, vec![]),
        ] {
            let launch = launch(device, None);
            let pass = Pass { energy: drawn.clone(), gpus, new_tokens: 9, ..Pass::default() };
            let observed = Observation { pass: Some(&pass), idle: &idle, ..without_record(&sample, &launch) };
            assert_eq!(joules_per_token(&observed), expected, "{device} {:?}", pass.gpus);
        }
    }

    #[test]
    fn energy_is_absent_if_one_counter_cannot_be_read() {
        let energy_counters = vec![listed("package-0", None), listed("package-1", Some("permission denied"))];
        let unreadable = Machine { energy_counters, ..Machine::default() };
        let without_packages = Machine { energy_counters: vec![listed("gpu-0", None)], ..Machine::default() };
        let (sample, launch) = (sample(), launch("cpu", None));
        let pass = Pass { energy: vec![energy("package-0", 9_000_000, S)], new_tokens: 9, ..Pass::default() };
        let idle = [Idle { energy: vec![energy("package-0", 0, S)] }];
        let observed = Observation { pass: Some(&pass), idle: &idle, ..without_record(&sample, &launch) };
        assert_eq!(joules_per_token(&Observation { machine: Some(&unreadable), ..observed }), NO_VALUES);
        assert_eq!(joules_per_token(&Observation { machine: Some(&without_packages), ..observed }), [1.0]);
    }

    #[test]
    fn gpu_energy_is_known_without_the_processors_counters() {
        let energy_counters = ["package-0", "gpu-0", "gpu-1"]
            .map(|it| listed(it, (it == "package-0").then_some("permission denied")));
        let gpus = vec![Gpu::default(), Gpu { index: 1, ..Gpu::default() }];
        let without_root = Machine { energy_counters: energy_counters.to_vec(), gpus, ..Machine::default() };
        let idle = [Idle { energy: vec![energy("gpu-0", 1_000_000, S), energy("gpu-1", 2_000_000, S)] }];
        let sample = sample();
        let joules = |device: &str, machine: &Machine, drawn: Vec<Energy>, new_tokens| {
            let launch = launch(device, None);
            let pass = Pass { energy: drawn, new_tokens, ..Pass::default() };
            let bare = without_record(&sample, &launch);
            let observed = Observation { pass: Some(&pass), idle: &idle, machine: Some(machine), ..bare };
            (joules_per_token(&observed), gpu_joules_per_token(&observed))
        };
        let drawn = |elapsed_ns| {
            vec![energy("gpu-0", 90_000_000, elapsed_ns), energy("gpu-1", 20_000_000, elapsed_ns)]
        };
        // 20 J in 2 s, with 2 W when idle: 16 J over 8 tokens, without the other GPU.
        assert_eq!(joules("cuda:1", &without_root, drawn(2 * S), 8), (vec![], Some(2.0)));
        // The energy of the processors never counts as energy of the GPUs.
        let with_root = Machine { energy_counters: vec![listed("package-0", None)], ..without_root.clone() };
        let all = [drawn(2 * S), vec![energy("package-0", 9_000_000, 2 * S)]].concat();
        assert_eq!(joules("cuda:1", &with_root, all, 8).1, Some(2.0));
        assert_eq!(joules("cpu", &without_root, drawn(2 * S), 8), (vec![], None));
        assert_eq!(joules("cuda:1", &without_root, drawn(S / 2), 8).1, None);
        assert_eq!(joules("cuda:1", &without_root, drawn(2 * S), 0).1, None);
        assert_eq!(joules("cuda:1", &without_root, vec![energy("gpu-1", 2_000_000, 2 * S)], 8).1, None);
        assert_eq!(joules("cuda:0", &without_root, vec![energy("gpu-1", 90_000_000, 2 * S)], 8).1, None);
    }

    #[test]
    fn uncounted_energy_and_energy_at_idle_level_are_absent() {
        let (sample, launch) = (sample(), launch("cpu", None));
        let bare = without_record(&sample, &launch);
        let drawn = |microjoules| Pass {
            energy: vec![energy("package-0", microjoules, S)],
            new_tokens: 9,
            ..Pass::default()
        };
        let idle = [Idle { energy: vec![energy("package-0", 5_000_000, S)] }];
        let other_counter = [Idle { energy: vec![energy("package-1", 5_000_000, S)] }];
        let without_time = [Idle { energy: vec![energy("package-0", 5_000_000, 0)] }];
        let none = Pass { energy: Vec::new(), ..drawn(0) };
        let no_tokens = Pass { new_tokens: 0, ..drawn(9_000_000) };
        for (pass, idle) in [
            (&drawn(5_000_000), &idle[..]),
            (&drawn(9_000_000), &other_counter),
            (&drawn(9_000_000), &without_time),
            (&drawn(9_000_000), &[]),
            (&none, &idle),
            (&no_tokens, &idle),
        ] {
            let observed = Observation { pass: Some(pass), idle, ..bare };
            assert_eq!(joules_per_token(&observed), NO_VALUES, "{pass:?} {idle:?}");
        }
        assert_eq!((idle_watts(&[]), idle_watts(&without_time)), (None, None));
    }
}
