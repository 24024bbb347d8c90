//! The memory groups of a block: configurations that can be resident together.
//!
//! A paused engine keeps its memory, and engines that do not fit would swap or be killed. So a block is divided into memory
//! groups. The members of a group are interleaved round by round, and the groups follow each other.

use super::launch::Launched;

/// The known facts of a configuration before a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    pub configuration: usize,
    /// The most memory that it held so far, or an estimate.
    pub bytes: u64,
    /// It cannot share a group.
    pub alone: bool,
}

/// The share of the available memory that is left free.
const MARGIN: f64 = 0.1;

/// Memory groups in the members' order, each as full as possible.
pub fn memory_groups(members: &[Member], available_bytes: u64) -> Vec<Vec<usize>> {
    let room = (available_bytes as f64 * (1.0 - MARGIN)) as u64;
    let mut groups: Vec<(Vec<usize>, u64, bool)> = Vec::new();
    for member in members {
        let fits = |(_, taken, closed): &&mut (Vec<usize>, u64, bool)| {
            !*closed && !member.alone && taken.saturating_add(member.bytes) <= room
        };
        match groups.iter_mut().find(|group| fits(group)) {
            Some((filled, taken, _)) => {
                filled.push(member.configuration);
                *taken += member.bytes;
            }
            // A configuration that fits nowhere is tried too: its failure is a row.
            None => groups.push((vec![member.configuration], member.bytes, member.alone)),
        }
    }
    groups.into_iter().map(|(filled, ..)| filled).collect()
}

/// A configuration's slot. It is empty if its engine has died or was not started yet.
pub(super) struct Slot {
    pub configuration: usize,
    pub launched: Option<Launched>,
}

/// The members of one group: all resident, one running.
#[derive(Default)]
pub(super) struct MemoryGroup {
    pub slots: Vec<Slot>,
}

impl MemoryGroup {
    pub fn of(configurations: &[usize]) -> Self {
        let slot = |&configuration: &usize| Slot { configuration, launched: None };
        Self { slots: configurations.iter().map(slot).collect() }
    }

    /// Pauses every engine but this one, and resumes this one. True if it was paused.
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
