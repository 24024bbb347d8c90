//! The memory groups of a block: configurations that can be resident together. A paused engine keeps its memory, and engines
//! that do not fit would swap or be killed. The members of a group are interleaved round by round, and the groups follow each
//! other.

use anyhow::Result;
use model_files::size;

use super::blocking::off_thread;
use super::launch::Launched;
use crate::machine::memory;
use crate::plan::dtype;
use crate::plan::{Configuration, Plan, Role};
use crate::record::{Launch, RunRecord};

/// The known facts of a configuration before a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    pub configuration: usize,
    /// The largest memory of the member's processes so far, or an estimate.
    pub bytes: u64,
    /// The configuration cannot share a group.
    pub alone: bool,
}

/// The share of the available memory that is left free.
const FREE_SHARE: f64 = 0.1;
/// The estimated ratio of the weights in memory to the weights' file, if the dtype is unknown. The estimate of an
/// engine's memory is the sum of the file, the weights in memory, and the program.
const MEMORY_PER_FILE_BYTE: u64 = 2;
const PROGRAM_BYTES: u64 = 500_000_000;
const F32_BYTES: u64 = 4;

/// The memory that a configuration needs, as known before a block.
pub(super) async fn member(plan: &Plan, record: &RunRecord, configuration: usize) -> Result<Member> {
    let planned = &plan.configurations[configuration];
    let bytes = match known_peak(plan, record, configuration) {
        Some(peak) => peak,
        None => estimate(planned).await?,
    };
    // The orchestrator cannot pause the processes in `pids`, because they are no descendants of the engine. So this engine is
    // alone in its group.
    let has_other_processes = |it: &Launch| it.loaded.as_ref().is_some_and(|loaded| !loaded.pids.is_empty());
    let mut launches = record.launches.iter().filter(|it| it.configuration == configuration);
    let alone = planned.alone || launches.any(has_other_processes);
    Ok(Member { configuration, bytes, alone })
}

/// The peak memory of a configuration's requests, or else of its output check.
fn known_peak(plan: &Plan, record: &RunRecord, configuration: usize) -> Option<u64> {
    let samples = record.samples.iter().filter(|it| plan.cases[it.case].configuration == configuration);
    let scored = record.scored.iter().filter(|it| it.configuration == configuration);
    let of_samples = samples.filter_map(|sample| sample.peak_resident_bytes).max();
    of_samples.or_else(|| scored.filter_map(|scored| scored.peak_resident_bytes).max())
}

async fn estimate(planned: &Configuration) -> Result<u64> {
    let path = planned.model.path.clone();
    let weights = || model_files::ModelFolder::open(path).map(|it| it.weights_bytes());
    let file = off_thread(weights).await?.unwrap_or(0);
    let bits = planned.dtype.as_deref().and_then(dtype::bits);
    let weights = planned.model.sizes.zip(bits).map(|(it, bits)| it.parameters as f64 * bits / 8.0);
    let weights = weights.map_or(file.saturating_mul(MEMORY_PER_FILE_BYTE), |bytes| bytes as u64);
    Ok(file.saturating_add(weights).saturating_add(PROGRAM_BYTES))
}

/// The reason why a verifier that is not measured cannot start: in f32 it may need far more memory than the measured engines.
/// `None` for other configurations, and if the memory is enough.
pub(super) fn memory_shortage(configuration: &Configuration) -> Option<String> {
    let is_verifier = configuration.role == Some(Role::Verifier);
    let parameters = configuration.model.sizes.filter(|_| is_verifier)?.parameters;
    let needs = parameters.saturating_mul(F32_BYTES).saturating_add(PROGRAM_BYTES);
    let available = memory::available_bytes().filter(|&available| needs > available)?;
    let (label, needs, available) = (&configuration.label, size(needs), size(available));
    Some(format!(
        "{label} was not started: in f32 it needs about {needs} of memory, and {available} are free"
    ))
}

/// Divides members into memory groups. One after the other, each member joins the first group in which it fits, or begins a new
/// one.
pub fn memory_groups(members: &[Member], available_bytes: u64) -> Vec<Vec<usize>> {
    let usable = (available_bytes as f64 * (1.0 - FREE_SHARE)) as u64;
    let mut groups: Vec<Vec<Member>> = Vec::new();
    for member in members {
        let fits = |group: &&mut Vec<Member>| {
            let mut bytes = group.iter().chain([member]).map(|it| it.bytes);
            !member.alone
                && !group[0].alone
                && bytes.try_fold(0, u64::checked_add).is_some_and(|it| it <= usable)
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(*member),
            // A configuration larger than the memory is started too, so that a row shows its failure.
            None => groups.push(vec![*member]),
        }
    }
    groups.into_iter().map(|group| group.iter().map(|it| it.configuration).collect()).collect()
}

/// A configuration of a group. `launched` is `None` if its engine has ended or was not started yet.
pub(super) struct Slot {
    pub configuration: usize,
    pub launched: Option<Launched>,
}

/// The members of one group. All are resident, and at most one is running.
#[derive(Default)]
pub(super) struct MemoryGroup {
    pub slots: Vec<Slot>,
}

impl MemoryGroup {
    pub fn of(configurations: &[usize]) -> Self {
        let slot = |&configuration: &usize| Slot { configuration, launched: None };
        Self { slots: configurations.iter().map(slot).collect() }
    }

    /// Resumes the engine of one slot and pauses all others. Returns whether the resumed engine was paused.
    pub async fn resume_only(&mut self, at: usize) -> bool {
        for (other, slot) in self.slots.iter_mut().enumerate() {
            if let Some(launched) = slot.launched.as_mut().filter(|it| other != at && !it.is_paused) {
                launched.conversation.process.pause().await;
                launched.is_paused = true;
            }
        }
        let launched = self.slots.get_mut(at).and_then(|slot| slot.launched.as_mut());
        launched.is_some_and(|launched| {
            launched.conversation.process.resume();
            std::mem::take(&mut launched.is_paused)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::HeldOutScores;

    fn member(configuration: usize, bytes: u64) -> Member {
        Member { configuration, bytes, alone: false }
    }

    #[test]
    fn engines_that_fit_together_share_a_group_and_a_tenth_stays_free() {
        let members = [member(2, 30), member(0, 30), member(1, 30)];
        assert_eq!(memory_groups(&members, 100), [vec![2, 0, 1]]);
        assert_eq!(memory_groups(&members, 99), [vec![2, 0], vec![1]]);
    }

    #[test]
    fn before_the_first_block_the_memory_is_that_of_the_output_check() {
        let (plan, mut record) = (Plan::default(), RunRecord::default());
        assert_eq!(known_peak(&plan, &record, 1), None);
        let scored = |configuration, bytes| HeldOutScores {
            configuration,
            peak_resident_bytes: Some(bytes),
            ..HeldOutScores::default()
        };
        record.scored = vec![scored(0, 900), scored(1, 70), scored(1, 80)];
        assert_eq!(known_peak(&plan, &record, 1), Some(80));
    }

    #[test]
    fn a_member_larger_than_memory_has_its_own_group() {
        let members = [member(0, 10), member(1, 900), member(2, 10)];
        assert_eq!(memory_groups(&members, 100), [vec![0, 2], vec![1]]);
    }

    #[test]
    fn a_member_that_must_be_alone_shares_no_group() {
        let members = [member(0, 1), Member { alone: true, ..member(1, 1) }, member(2, 1)];
        assert_eq!(memory_groups(&members, 100), [vec![0, 2], vec![1]]);
        let alone: Vec<Member> = (0..3).map(|it| Member { alone: true, ..member(it, 1) }).collect();
        assert_eq!(memory_groups(&alone, 100), [[0], [1], [2]]);
    }
}
