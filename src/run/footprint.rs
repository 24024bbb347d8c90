//! The expected memory of an engine, estimated before its start.

use anyhow::Result;
use model_files::size;

use super::blocking::off_thread;
use super::memory_groups::Member;
use crate::machine::memory;
use crate::plan::dtype;
use crate::plan::{Configuration, Plan, Role};
use crate::record::{Launch, RunRecord};

/// The estimate without any measurement: the weights' file, the weights in memory, and the program. Without a dtype the weights
/// in memory are the file times this factor.
const WIDENED_TIMES: u64 = 2;
const PROGRAM_BYTES: u64 = 500_000_000;
const F32_BYTES: u64 = 4;

/// The known facts of a configuration before a block.
pub(super) async fn member(plan: &Plan, record: &RunRecord, configuration: usize) -> Result<Member> {
    let planned = &plan.configurations[configuration];
    let of_it = record.samples.iter().filter(|it| plan.cases[it.case].configuration == configuration);
    let bytes = match of_it.filter_map(|sample| sample.peak_resident_bytes).max() {
        Some(most) => most,
        None => guess(planned).await?,
    };
    // Processes elsewhere cannot be paused from here.
    let elsewhere = |it: &Launch| it.loaded.as_ref().is_some_and(|loaded| !loaded.pids.is_empty());
    let mut launches = record.launches.iter().filter(|it| it.configuration == configuration);
    let alone = planned.alone || launches.any(elsewhere);
    Ok(Member { configuration, bytes, alone })
}

async fn guess(planned: &Configuration) -> Result<u64> {
    let path = planned.model.path.clone();
    let weights = || model_files::ModelFolder::open(path).map(|it| it.weights_bytes());
    let file = off_thread(weights).await?.unwrap_or(0);
    let bits = planned.dtype.as_deref().and_then(dtype::bits);
    let made = planned.model.sizes.zip(bits).map(|(it, bits)| it.parameters as f64 * bits / 8.0);
    let made = made.map_or(file.saturating_mul(WIDENED_TIMES), |bytes| bytes as u64);
    Ok(file.saturating_add(made).saturating_add(PROGRAM_BYTES))
}

/// The reason why an unmeasured verifier is not started: in f32 it may need many times the memory of the measured engines.
pub(super) fn exceeds_memory(configuration: &Configuration) -> Option<String> {
    let is_verifier = configuration.role == Some(Role::Verifier);
    let parameters = configuration.model.sizes.filter(|_| is_verifier)?.parameters;
    let needs = parameters.saturating_mul(F32_BYTES).saturating_add(PROGRAM_BYTES);
    let available = memory::available_bytes().filter(|&available| needs > available)?;
    let label = &configuration.label;
    let (needs, available) = (size(needs), size(available));
    Some(format!("{label}: in f32 it needs about {needs}, and {available} of memory are free"))
}
