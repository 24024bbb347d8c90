//! The resources that an engine needs beside time: memory of the host and of the device, energy, and cores. Engines and samplers
//! give the values. A value is absent where it was not counted or is not above zero.

use serde::Serialize;

use super::gpus::{self, OnGpus};
use super::observation::Observation;
use crate::machine::observed::{PACKAGE_PREFIX, gpu_counter};
use crate::record::{Energy, HeldMemory, Idle, Pass, Sample};

/// The shortest pass for a GPU's energy: its counter moves about ten times in a second, so over less it may be a tenth off.
const SHORTEST_ON_A_GPU_NS: u64 = 1_000_000_000;

/// The peak of resident memory, less the pages that were counted more than once.
pub fn peak_memory(observed: &Observation) -> Vec<f64> {
    above_zero(peak_bytes(observed))
}

/// The largest memory in one sample: in the sampled pass, or after an answer where that was more. Absent where another launch
/// of the case has the pass, because memory after an answer is below the peak of the request.
fn held(observed: &Observation) -> Option<HeldMemory> {
    if observed.pass_elsewhere.is_some_and(|pass| pass.held.is_some()) {
        return None;
    }
    let samples = [observed.pass.and_then(|pass| pass.held), observed.sample.held];
    samples.into_iter().flatten().max_by_key(|held| held.anonymous_bytes.saturating_add(held.file_bytes))
}

pub fn memory_anonymous(observed: &Observation) -> Vec<f64> {
    above_zero(held(observed).map(|held| held.anonymous_bytes as f64))
}

pub fn memory_file(observed: &Observation) -> Vec<f64> {
    above_zero(held(observed).map(|held| held.file_bytes as f64))
}

/// The memory beyond the weights: of the device, where the weights are on one.
pub fn memory_overhead(observed: &Observation) -> Vec<f64> {
    let peak = if observed.on_device() { device_bytes(observed) } else { peak_bytes(observed) };
    above_zero(peak.zip(weights_bytes(observed)).map(|(peak, weights)| peak - weights))
}

pub fn device_memory(observed: &Observation) -> Vec<f64> {
    above_zero(device_bytes(observed))
}

pub fn joules_per_token(observed: &Observation) -> Vec<f64> {
    let joules = observed.pass.and_then(|pass| {
        let drawn = joules_over_idle(observed, pass)?;
        (pass.new_tokens > 0).then(|| drawn / pass.new_tokens as f64)
    });
    above_zero(joules)
}

/// The energy of its GPUs alone for each token, for machines whose processor counters cannot be read (usual without root).
pub fn gpu_joules_per_token(observed: &Observation) -> Option<f64> {
    let pass = observed.pass.filter(|pass| pass.new_tokens > 0 && observed.on_device())?;
    let own = counters_of_gpus(observed)?;
    let drawn = own.iter().map(|name| pass.energy.iter().find(|drawn| drawn.counter == *name));
    let drawn: Vec<&Energy> = drawn.collect::<Option<_>>()?;
    let joules = over_idle(observed, &drawn)? / pass.new_tokens as f64;
    (joules > 0.0).then_some(joules)
}

/// The energy of a pass beyond that of the idle machine. `None` where a counter was not sampled, in the pass or idle, or could
/// not be read: the sum would lack it.
fn joules_over_idle(observed: &Observation, pass: &Pass) -> Option<f64> {
    let own: Vec<String> = if observed.on_device() { counters_of_gpus(observed)? } else { Vec::new() };
    let counts = |counter: &str| counter.starts_with(PACKAGE_PREFIX) || own.iter().any(|gpu| gpu == counter);
    let drawn: Vec<&Energy> = pass.energy.iter().filter(|drawn| counts(&drawn.counter)).collect();
    let listed = observed.machine.into_iter().flat_map(|machine| &machine.energy_counters);
    let mut wanted = listed.map(|it| &it.name).filter(|name| counts(name)).chain(&own);
    if !wanted.all(|name| drawn.iter().any(|drawn| drawn.counter == *name)) {
        return None;
    }
    over_idle(observed, &drawn)
}

fn over_idle(observed: &Observation, drawn: &[&Energy]) -> Option<f64> {
    let over = |drawn: &&Energy| {
        if !drawn.counter.starts_with(PACKAGE_PREFIX) && drawn.elapsed_ns < SHORTEST_ON_A_GPU_NS {
            return None;
        }
        let idle = watts(idle_of(observed.idle, &drawn.counter)?)?;
        Some(drawn.microjoules as f64 / 1e6 - idle * drawn.elapsed_ns as f64 / 1e9)
    };
    let each: Option<Vec<f64>> = drawn.iter().map(over).collect();
    each.filter(|each| !each.is_empty()).map(|each| each.iter().sum())
}

/// The energy counters of the GPUs that it computes on. A part of a GPU (MIG) has none of its own.
fn counters_of_gpus(observed: &Observation) -> Option<Vec<String>> {
    let indices = gpus::indices(observed)?;
    let cut_up = |index: &u32| {
        let gpus = observed.machine.into_iter().flat_map(|machine| &machine.gpus);
        gpus.filter(|gpu| gpu.index == *index).any(|gpu| gpu.is_partitioned())
    };
    if indices.iter().any(cut_up) {
        return None;
    }
    Some(indices.into_iter().map(gpu_counter).collect())
}

fn idle_of<'a>(idle: &'a [Idle], counter: &str) -> Option<&'a Energy> {
    idle.iter().flat_map(|idle| &idle.energy).find(|energy| energy.counter == counter)
}

/// The power of the idle machine, over all counters.
pub fn idle_watts(idle: &[Idle]) -> Option<f64> {
    let all = idle.iter().flat_map(|idle| &idle.energy).filter_map(watts);
    all.reduce(|sum, watts| sum + watts)
}

fn watts(energy: &Energy) -> Option<f64> {
    (energy.elapsed_ns > 0).then(|| energy.microjoules as f64 * 1e3 / energy.elapsed_ns as f64)
}

fn peak_bytes(observed: &Observation) -> Option<f64> {
    let peak = observed.sample.peak_resident_bytes?;
    Some(peak.saturating_sub(observed.counted_twice_bytes) as f64)
}

pub fn weights_bytes(observed: &Observation) -> Option<f64> {
    let stated = observed.launch.loaded.as_ref()?.facts.weights_bytes;
    stated.filter(|&bytes| bytes > 0).map(|bytes| bytes as f64)
}

/// The source of a value of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Known {
    /// The engine reports it.
    Stated,
    /// The driver counts it for the engine's processes.
    Processes,
    /// The driver counts it for the whole device: the growth since just before the launch.
    Growth,
}

/// The larger of reported and counted memory: the engine knows its own allocator, the driver also the memory of libraries. Absent
/// where another launch of the case counted it, because only that launch has both.
pub fn device_memory_known(observed: &Observation) -> Option<(f64, Known)> {
    let is_counted = |pass: &Pass| {
        pass.gpus.iter().any(|gpu| gpu.process_bytes.is_some() || gpu.memory_used_bytes.is_some())
    };
    if !observed.on_device() || observed.pass_elsewhere.is_some_and(is_counted) {
        return None;
    }
    let on_gpus = OnGpus::of(observed);
    let kind = if on_gpus.as_ref().is_some_and(|gpus| gpus.process_bytes.is_some()) {
        Known::Processes
    } else {
        Known::Growth
    };
    let counted = on_gpus.and_then(|gpus| gpus.counted_bytes()).map(|bytes| (bytes as f64, kind));
    let stated = stated_device_bytes(observed).map(|bytes| (bytes, Known::Stated));
    let known = [counted, stated].into_iter().flatten().filter(|(bytes, _)| *bytes > 0.0);
    known.reduce(|one, other| if other.0 > one.0 { other } else { one })
}

fn device_bytes(observed: &Observation) -> Option<f64> {
    device_memory_known(observed).map(|(bytes, _)| bytes)
}

/// The largest device memory that the engine reports.
pub fn stated_device_bytes(observed: &Observation) -> Option<f64> {
    let at_load = observed.launch.loaded.as_ref().and_then(|loaded| loaded.facts.device_memory.as_ref());
    let stated =
        [at_load, observed.sample.device_memory.as_ref()].into_iter().flatten().map(|it| it.peak_bytes);
    stated.max().map(|bytes| bytes as f64)
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
    pub elapsed_ns: f64,
}

impl CoresBusy {
    /// `None` if these requests took no time, or there are none.
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
    const NOTHING: [f64; 0] = [];

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

    fn alone<'a>(sample: &'a Sample, launch: &'a Launch) -> Observation<'a> {
        Observation::alone(sample, launch, Kind::Warm, Mode::Warm)
    }

    fn energy(counter: &str, microjoules: u64, elapsed_ns: u64) -> Energy {
        Energy { counter: counter.into(), microjoules, elapsed_ns }
    }

    #[test]
    fn shared_pages_count_once_and_the_remainder_is_over_the_weights() {
        let (sample, launch) = (sample(), launch("cpu", Some(90)));
        let alone = alone(&sample, &launch);
        let observed = Observation { counted_twice_bytes: 120, ..alone };
        assert_eq!((peak_memory(&alone), peak_memory(&observed)), (vec![300.0], vec![180.0]));
        assert_eq!((memory_anonymous(&observed), memory_file(&observed)), (vec![110.0], vec![30.0]));
        assert_eq!((memory_overhead(&observed), device_memory(&observed)), (vec![90.0], vec![]));
    }

    #[test]
    fn memory_of_a_request_counts_and_unsampled_launches_are_left_out() {
        let (sample, launch) = (sample(), launch("cpu", Some(90)));
        let sampled = |anonymous_bytes, file_bytes| Pass {
            held: Some(HeldMemory { anonymous_bytes, file_bytes, ..HeldMemory::default() }),
            ..Pass::default()
        };
        let parts = |observed: &Observation| (memory_anonymous(observed), memory_file(observed));
        let alone = alone(&sample, &launch);
        let (more, less, blind) = (sampled(200, 20), sampled(100, 20), Pass::default());
        for (pass, expected) in [(&more, (200.0, 20.0)), (&less, (110.0, 30.0)), (&blind, (110.0, 30.0))] {
            let observed = Observation { pass: Some(pass), ..alone };
            assert_eq!(parts(&observed), (vec![expected.0], vec![expected.1]), "{pass:?}");
        }
        assert_eq!(parts(&Observation { pass_elsewhere: Some(&more), ..alone }), (vec![], vec![]));
        assert_eq!(parts(&Observation { pass_elsewhere: Some(&blind), ..alone }), (vec![110.0], vec![30.0]));
    }

    #[test]
    fn unstated_or_too_large_weights_give_no_memory_over_weights() {
        let sample = sample();
        for weights in [None, Some(0), Some(300), Some(u64::MAX)] {
            let launch = launch("cpu", weights);
            assert_eq!(memory_overhead(&alone(&sample, &launch)), NOTHING, "{weights:?}");
        }
    }

    #[test]
    fn device_memory_is_the_larger_of_stated_and_counted() {
        let (mut sample, launch) = (sample(), launch("cuda:0", Some(90)));
        sample.device_memory = Some(DeviceMemory { peak_bytes: 400, ..DeviceMemory::default() });
        let gpu = |index| GpuPass { index, process_bytes: Some(300), ..GpuPass::default() };
        let pass = Pass { gpus: vec![gpu(0), gpu(1)], ..Pass::default() };
        let alone = alone(&sample, &launch);
        assert_eq!((device_memory(&alone), memory_overhead(&alone)), (vec![400.0], vec![310.0]));
        let observed = Observation { pass: Some(&pass), ..alone };
        assert_eq!((device_memory(&observed), memory_overhead(&observed)), (vec![600.0], vec![510.0]));
        let elsewhere = Observation { pass_elsewhere: Some(&pass), ..alone };
        assert_eq!((device_memory(&elsewhere), memory_overhead(&elsewhere)), (vec![], vec![]));
    }

    #[test]
    fn device_memory_has_its_source() {
        let (mut sample, mut launch) = (sample(), launch("cuda:0", Some(90)));
        launch.gpus_before = vec![UsedGpuMemory { index: 0, memory_used_bytes: 1000 }];
        let known = |sample: &Sample, process_bytes| {
            let gpu =
                GpuPass { process_bytes, memory_used_bytes: Some(1500), samples: 1, ..GpuPass::default() };
            let pass = Pass { gpus: vec![gpu], ..Pass::default() };
            device_memory_known(&Observation { pass: Some(&pass), ..alone(sample, &launch) })
        };
        assert_eq!(known(&sample, Some(450)), Some((450.0, Known::Processes)));
        assert_eq!(known(&sample, None), Some((500.0, Known::Growth)));
        sample.device_memory = Some(DeviceMemory { peak_bytes: 480, ..DeviceMemory::default() });
        assert_eq!(known(&sample, Some(450)), Some((480.0, Known::Stated)));
        assert_eq!(known(&sample, None), Some((500.0, Known::Growth)));
        assert_eq!(device_memory_known(&alone(&sample, &launch)), Some((480.0, Known::Stated)));
    }

    #[test]
    fn a_part_of_a_gpu_and_a_short_pass_have_no_energy() {
        let cut = |mig| {
            let gpus = vec![Gpu { mig: Some(mig), ..Gpu::default() }];
            Machine { gpus, ..Machine::default() }
        };
        let (sample, launch) = (sample(), launch("cuda", None));
        let idle = [Idle { energy: vec![energy("gpu-0", 0, S)] }];
        let joules = |machine: &Machine, elapsed_ns| {
            let drawn = vec![energy("gpu-0", 9_000_000, elapsed_ns)];
            let pass = Pass { energy: drawn, new_tokens: 9, ..Pass::default() };
            let sampled = Observation { pass: Some(&pass), idle: &idle, ..alone(&sample, &launch) };
            joules_per_token(&Observation { machine: Some(machine), ..sampled })
        };
        assert_eq!(joules(&cut(false), S), [1.0]);
        assert_eq!(joules(&cut(true), S), NOTHING);
        assert_eq!(joules(&cut(false), S - 1), NOTHING);
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
        let alone = alone(&sample, &launch);
        let joules =
            |pass: &Pass, idle: &[Idle]| joules_per_token(&Observation { pass: Some(pass), idle, ..alone });
        assert_eq!(joules(&pass, &idle), [3.0]);
        assert_eq!(idle_watts(&idle), Some(5.0));
        assert_eq!(joules_per_token(&alone), NOTHING);
    }

    #[test]
    fn energy_of_unused_gpus_is_not_counted() {
        let drawn =
            ["package-0", "package-0 dram", "gpu-0", "gpu-1"].map(|name| energy(name, 9_000_000, S)).to_vec();
        let still = drawn.iter().map(|drawn| energy(&drawn.counter, 0, S)).collect();
        let (idle, sample) = ([Idle { energy: still }], sample());
        let gpu = |index, process_bytes| GpuPass { index, process_bytes, ..GpuPass::default() };
        let unseen = vec![gpu(0, None), gpu(1, None)];
        for (device, gpus, expected) in [
            ("cpu", unseen.clone(), vec![2.0]),
            ("cuda:1", unseen.clone(), vec![3.0]),
            ("cuda:0", vec![gpu(0, None), gpu(1, Some(7))], vec![3.0]),
            ("cuda:0", vec![gpu(0, Some(7)), gpu(1, Some(7))], vec![4.0]),
            // The GPU is not known.
            ("metal", unseen.clone(), vec![]),
            ("cuda:2", unseen, vec![]),
        ] {
            let launch = launch(device, None);
            let pass = Pass { energy: drawn.clone(), gpus, new_tokens: 9, ..Pass::default() };
            let observed = Observation { pass: Some(&pass), idle: &idle, ..alone(&sample, &launch) };
            assert_eq!(joules_per_token(&observed), expected, "{device} {:?}", pass.gpus);
        }
    }

    #[test]
    fn energy_is_absent_if_any_counter_cannot_be_read() {
        let energy_counters = vec![listed("package-0", None), listed("package-1", Some("permission denied"))];
        let half = Machine { energy_counters, ..Machine::default() };
        let other = Machine { energy_counters: vec![listed("gpu-0", None)], ..Machine::default() };
        let (sample, launch) = (sample(), launch("cpu", None));
        let pass = Pass { energy: vec![energy("package-0", 9_000_000, S)], new_tokens: 9, ..Pass::default() };
        let idle = [Idle { energy: vec![energy("package-0", 0, S)] }];
        let observed = Observation { pass: Some(&pass), idle: &idle, ..alone(&sample, &launch) };
        assert_eq!(joules_per_token(&Observation { machine: Some(&half), ..observed }), NOTHING);
        assert_eq!(joules_per_token(&Observation { machine: Some(&other), ..observed }), [1.0]);
    }

    #[test]
    fn gpu_energy_is_known_without_the_processors_counters() {
        let energy_counters = ["package-0", "gpu-0", "gpu-1"]
            .map(|it| listed(it, (it == "package-0").then_some("permission denied")));
        let gpus = vec![Gpu::default(), Gpu { index: 1, ..Gpu::default() }];
        let bare = Machine { energy_counters: energy_counters.to_vec(), gpus, ..Machine::default() };
        let idle = [Idle { energy: vec![energy("gpu-0", 1_000_000, S), energy("gpu-1", 2_000_000, S)] }];
        let sample = sample();
        let joules = |device: &str, machine: &Machine, drawn: Vec<Energy>, new_tokens| {
            let launch = launch(device, None);
            let pass = Pass { energy: drawn, new_tokens, ..Pass::default() };
            let alone = alone(&sample, &launch);
            let observed = Observation { pass: Some(&pass), idle: &idle, machine: Some(machine), ..alone };
            (joules_per_token(&observed), gpu_joules_per_token(&observed))
        };
        let drawn = |elapsed_ns| {
            vec![energy("gpu-0", 90_000_000, elapsed_ns), energy("gpu-1", 20_000_000, elapsed_ns)]
        };
        // 20 J in 2 s, with 2 W when idle: 16 J over 8 tokens, without the other GPU.
        assert_eq!(joules("cuda:1", &bare, drawn(2 * S), 8), (vec![], Some(2.0)));
        // Readable processor counters are part of the first value and never of the second.
        let root = Machine { energy_counters: vec![listed("package-0", None)], ..bare.clone() };
        let all = [drawn(2 * S), vec![energy("package-0", 9_000_000, 2 * S)]].concat();
        assert_eq!(joules("cuda:1", &root, all, 8).1, Some(2.0));
        assert_eq!(joules("cpu", &bare, drawn(2 * S), 8), (vec![], None));
        assert_eq!(joules("cuda:1", &bare, drawn(S / 2), 8).1, None);
        assert_eq!(joules("cuda:1", &bare, drawn(2 * S), 0).1, None);
        assert_eq!(joules("cuda:1", &bare, vec![energy("gpu-1", 2_000_000, 2 * S)], 8).1, None);
        assert_eq!(joules("cuda:0", &bare, vec![energy("gpu-1", 90_000_000, 2 * S)], 8).1, None);
    }

    #[test]
    fn uncounted_energy_and_energy_at_idle_level_are_absent() {
        let (sample, launch) = (sample(), launch("cpu", None));
        let alone = alone(&sample, &launch);
        let drawn = |microjoules| Pass {
            energy: vec![energy("package-0", microjoules, S)],
            new_tokens: 9,
            ..Pass::default()
        };
        let idle = [Idle { energy: vec![energy("package-0", 5_000_000, S)] }];
        let other = [Idle { energy: vec![energy("package-1", 5_000_000, S)] }];
        let timeless = [Idle { energy: vec![energy("package-0", 5_000_000, 0)] }];
        let none = Pass { energy: Vec::new(), ..drawn(0) };
        let no_tokens = Pass { new_tokens: 0, ..drawn(9_000_000) };
        for (pass, idle) in [
            (&drawn(5_000_000), &idle[..]),
            (&drawn(9_000_000), &other),
            (&drawn(9_000_000), &timeless),
            (&drawn(9_000_000), &[]),
            (&none, &idle),
            (&no_tokens, &idle),
        ] {
            let observed = Observation { pass: Some(pass), idle, ..alone };
            assert_eq!(joules_per_token(&observed), NOTHING, "{pass:?} {idle:?}");
        }
        assert_eq!((idle_watts(&[]), idle_watts(&timeless)), (None, None));
    }
}
