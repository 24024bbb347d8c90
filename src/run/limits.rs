//! The machine's limits, probed before each block and once after the last one, because they change. No engine of this run is
//! running during a probe, and the probe's memory is freed before the memory of an engine is measured. A GPU's limits do not
//! change, so they are probed once, in a separate process: a context in this process would occupy device memory.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use machine_limits::{ProbeSettings, buffer_bytes, probe};

use super::blocking::off_thread;
use super::journal::Journal;
use crate::machine::cpu::{last_level_cache_bytes, min_uncached_bytes};
use crate::machine::{Cpu, gpu_limits, memory};
use crate::plan::{Configuration, Plan, VERIFIER_DTYPE};
use crate::record::{Entry, Limits};

/// The probe's time for each number of threads in the plan. A tenth of it is needed to write the buffer once. In the rest, each
/// setting of the probe is measured about ten times.
const PROBE_TIME: Duration = Duration::from_millis(300);

pub(super) async fn probe_limits(plan: &Plan, journal: &mut Journal<'_>, block: u32) -> Result<()> {
    let record = journal.record();
    let settings = settings(plan, &record.header.machine.cpu, memory::available_bytes());
    let mut probed = match settings {
        Some(settings) => Some(off_thread(move || probe(&settings)).await?),
        None => None,
    };
    let has_gpu_result = |it: &machine_limits::Limits| !it.gpus.is_empty() || !it.absent.is_empty();
    let gpus = gpus_to_probe(plan);
    if !gpus.is_empty() && !record.limits.iter().any(|limits| has_gpu_result(&limits.probed)) {
        let run = record.header.id.clone();
        let result = off_thread(move || gpu_limits::probe_separately(&gpus, Some(&run))).await?;
        let probed = probed.get_or_insert_default();
        (probed.gpus, probed.absent) = (result.gpus, result.absent);
    }
    match probed {
        Some(probed) => journal.take(Entry::Limits(Limits { block, probed })),
        None => Ok(()),
    }
}

/// The GPUs of configurations that can be compared with a limit. Small models count too, because the size of a GPU's caches is
/// known only after the probe.
fn gpus_to_probe(plan: &Plan) -> Vec<u32> {
    let measured = plan.cases.iter().map(|case| &plan.configurations[case.configuration]);
    let comparable = measured.filter(|it| it.unavailable.is_none() && it.model.sizes.is_some());
    comparable.filter_map(|it| it.device.cuda_index()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The settings of the CPU's probe. `None` if no limit applies: no engine on the CPU has a model that is known to be too large
/// for the caches.
fn settings(plan: &Plan, cpu: &Cpu, available: Option<u64>) -> Option<ProbeSettings> {
    let measured = plan.cases.iter().map(|case| &plan.configurations[case.configuration]);
    let threads: BTreeSet<u32> =
        measured.filter(|it| may_reach_limit(it, cpu)).map(|it| it.threads).collect();
    let max_threads = *threads.last()?;
    let buffer_bytes = buffer_bytes(last_level_cache_bytes(cpu, max_threads), available).unwrap_or(0);
    let budget = PROBE_TIME * u32::try_from(threads.len()).unwrap_or(u32::MAX);
    Some(ProbeSettings { threads: threads.into_iter().collect(), buffer_bytes, budget })
}

fn may_reach_limit(configuration: &Configuration, cpu: &Cpu) -> bool {
    // Without a requested dtype, the engine may choose the widest, f32.
    let dtype = configuration.dtype.as_deref().unwrap_or(VERIFIER_DTYPE);
    let sizes = configuration.model.sizes.as_ref();
    let weights = sizes.and_then(|sizes| sizes.weight_bytes(dtype));
    configuration.unavailable.is_none()
        && configuration.device.is_cpu()
        && weights.is_some_and(|bytes| bytes >= min_uncached_bytes(cpu, configuration.threads))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::cpu::Cache;
    use crate::plan::{Case, Model, Prompt, Sizes, Workload};
    use crate::shell::Unavailable;

    const GIB: u64 = 1 << 30;

    fn cpu() -> Cpu {
        let cache = Cache { level: 3, kind: "Unified".into(), size_bytes: 32 << 20, shared_by: 8 };
        Cpu { logical_cores: Some(8), caches: vec![cache], ..Cpu::default() }
    }

    fn configuration(threads: u32, parameters: u64) -> Configuration {
        let sizes = Sizes { parameters, read_per_token: parameters, ..Sizes::default() };
        let model = Model { sizes: Some(sizes), ..Model::default() };
        Configuration { device: "cpu".into(), threads, model, ..Configuration::default() }
    }

    fn plan(configurations: Vec<Configuration>) -> Plan {
        let case = |configuration| Case { configuration, workload: Workload::specimen(Prompt::Tokens(8)) };
        let cases = (0..configurations.len()).map(case).collect();
        Plan { configurations, cases, ..Plan::default() }
    }

    #[test]
    fn limits_are_probed_for_each_thread_count_of_a_large_model() {
        let plan = plan([4, 1, 4].map(|threads| configuration(threads, 1 << 30)).into());
        let settings = settings(&plan, &cpu(), Some(16 * GIB)).unwrap();
        // Four times the cache would be less than the smallest buffer.
        assert_eq!((settings.threads, settings.buffer_bytes), (vec![1, 4], 256 << 20));
        assert_eq!(settings.budget, 2 * PROBE_TIME);
    }

    #[test]
    fn with_little_memory_only_the_arithmetic_units_are_probed() {
        let plan = plan(vec![configuration(2, 1 << 30)]);
        assert_eq!(settings(&plan, &cpu(), Some(GIB / 2)).map(|settings| settings.buffer_bytes), Some(0));
    }

    #[test]
    fn nothing_is_probed_when_no_row_can_reach_a_limit() {
        let is_probed =
            |it: &Configuration| settings(&plan(vec![it.clone()]), &cpu(), Some(16 * GIB)).is_some();
        // 32 Mi weights are 128 MiB of f32, four times the cache.
        let large = configuration(2, 32 << 20);
        assert!(is_probed(&large));
        assert!(is_probed(&Configuration { device: "cpu:0".into(), ..large.clone() }));
        assert!(!is_probed(&configuration(2, (32 << 20) - 1)));
        assert!(!is_probed(&Configuration { dtype: Some("bf16".into()), ..large.clone() }));
        assert!(!is_probed(&Configuration { device: "cuda".into(), ..large.clone() }));
        assert!(!is_probed(&Configuration { unavailable: Some(Unavailable::default()), ..large.clone() }));
        assert!(!is_probed(&Configuration { model: Model::default(), ..large.clone() }));
        // A verifier has no cases.
        let mut verifier = plan(vec![large]);
        verifier.cases.clear();
        assert_eq!(settings(&verifier, &cpu(), Some(16 * GIB)), None);
    }

    #[test]
    fn each_gpu_of_a_measured_row_is_probed_once() {
        let on = |device: &str| Configuration { device: device.into(), ..configuration(1, 1) };
        let all = plan(["cuda:1", "cpu", "cuda", "metal", "cuda:1", "cuda:0"].map(on).into());
        assert_eq!(gpus_to_probe(&all), [0, 1]);
        let unavailable = Configuration { unavailable: Some(Unavailable::default()), ..on("cuda") };
        let unknown = Configuration { model: Model::default(), ..on("cuda") };
        assert_eq!(gpus_to_probe(&plan(vec![unavailable, unknown, on("cpu")])), [0_u32; 0]);
        let mut verifier = plan(vec![on("cuda")]);
        verifier.cases.clear();
        assert_eq!(gpus_to_probe(&verifier), [0_u32; 0]);
    }
}
