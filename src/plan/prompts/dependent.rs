//! Prompts whose next token depends on their first half. On most text, the next token depends only on the last few hundred
//! tokens. So an engine that computes a part of each prompt gives the same tokens as others, and is faster. After these
//! prompts, its tokens differ from the verifier's.
//!
//! Each one is drawn for one request, with the nonce of the run. So an engine cannot know its answer from an earlier run.

use super::{PromptKey, Prompts, random};
use crate::plan::scenario::Kind;
use crate::plan::{Prompt, RequestKind, Workload};
use stats::Random;

/// Shorter prompts are cheap, so an engine gains little by computing a part of them.
const MIN_TOKENS: u32 = 64;
/// The positions of the random numbers that choose which requests have a dependent prompt (`PARITY`), and how it is made
/// (`CHOICE`). Lower positions are for the window and the salt.
const PARITY: u64 = 1 << 31;
const CHOICE: u64 = PARITY + 1;
/// The numbers of ids of a pattern. A longer one is repeated less often, and small models then ignore it.
const PATTERN_TOKENS: [usize; 3] = [8, 12, 24];
/// The number of attempts to find a prompt whose text has as many tokens as the prompt has ids.
const ATTEMPTS: usize = 20;
/// The number of copies of the filler by which an attempt is judged. The tokenizer may join several copies to one token.
const JUDGED_FILLERS: usize = 8;

/// How a dependent prompt is made. First a short pattern is repeated. Then one id is repeated, and the beginning of the pattern
/// is at the end. Small models too continue the pattern, because nothing else comes in between.
struct Construction {
    pattern: Vec<u32>,
    filler: u32,
    /// The end of the repeated pattern, in eighths of the prompt: 2 to 4, so it is in the first half.
    pattern_end_eighths: usize,
    /// The number of the pattern's ids at the end of the prompt.
    end_tokens: usize,
}

impl Prompts {
    /// Whether a workload may have dependent prompts. Its prompt is one long prompt, and its result depends on all of it: the
    /// output is one greedy token, or the depth is what the workload measures.
    pub fn can_depend(workload: &Workload) -> bool {
        let is_long = matches!(workload.prompt, Prompt::Tokens(tokens) if tokens >= MIN_TOKENS);
        let is_measured = workload.max_new_tokens == 1 || workload.shape.depth > 0;
        let is_plain = workload.kind != Kind::Speculative;
        is_long && is_measured && is_plain && workload.is_greedy() && workload.shape.is_one_cached_sequence()
    }

    /// Whether a request has a dependent prompt: every second measured request, if its workload can. A random number decides
    /// whether the first request has one. The next block begins with the other kind.
    pub fn is_dependent(workload: &Workload, key: PromptKey) -> bool {
        let of_run = PromptKey { block: 0, index: 0, ..key };
        let order = random(&workload.label, of_run, PARITY) ^ u64::from(key.block) ^ u64::from(key.index);
        key.kind == RequestKind::Measured && Self::can_depend(workload) && order & 1 == 0
    }

    /// The ids of the dependent prompt of a request, with this salt after the tokenizer's BOS ids.
    pub(super) fn dependent_ids(
        &self,
        workload: &Workload,
        key: PromptKey,
        tokens: usize,
        salt: &[u32],
    ) -> Vec<u32> {
        let mut numbers = Random::seeded(random(&workload.label, key, CHOICE));
        let mut construction = self.draw_construction(&mut numbers);
        for _ in 1..ATTEMPTS {
            if self.keeps_its_length_as_text(&construction) {
                break;
            }
            construction = self.draw_construction(&mut numbers);
        }
        let start: Vec<u32> = self.bos.iter().chain(salt).copied().collect();
        construction.ids(start, tokens)
    }

    fn draw_construction(&self, numbers: &mut Random) -> Construction {
        let any_id = |numbers: &mut Random| self.text_ids[numbers.below(self.text_ids.len())];
        let length = PATTERN_TOKENS[numbers.below(PATTERN_TOKENS.len())];
        // Words of the text, or random ids, which no engine can guess from the words before them.
        let pattern = match numbers.below(2) {
            0 => {
                let start = numbers.below(self.text_ids.len());
                self.text_ids.iter().cycle().skip(start).take(length).copied().collect()
            }
            _ => (0..length).map(|_| any_id(numbers)).collect(),
        };
        Construction {
            pattern,
            filler: any_id(numbers),
            pattern_end_eighths: 2 + numbers.below(3),
            end_tokens: 2 + numbers.below(length - 2),
        }
    }

    /// Whether the tokenizer makes as many tokens of the prompt's text as the prompt has ids. Engines that take text encode it
    /// themselves. The check uses a short prompt of the same construction.
    fn keeps_its_length_as_text(&self, construction: &Construction) -> bool {
        let tokens = 4 * construction.pattern.len() + construction.end_tokens + JUDGED_FILLERS;
        let ids = construction.ids(self.bos.clone(), tokens);
        self.tokenizer.encode(&self.tokenizer.decode(&ids)).is_ok_and(|encoded| encoded.len() == ids.len())
    }
}

impl Construction {
    fn ids(&self, start: Vec<u32>, tokens: usize) -> Vec<u32> {
        let mut ids = start;
        let repeated = tokens * self.pattern_end_eighths / 8;
        ids.extend(self.pattern.iter().cycle().take(repeated.saturating_sub(ids.len())));
        let filler = tokens.saturating_sub(ids.len() + self.end_tokens);
        ids.extend(std::iter::repeat_n(self.filler, filler));
        ids.extend(&self.pattern[..self.end_tokens]);
        ids
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::plan::axes::Shape;

    fn prompts() -> Prompts {
        Prompts::open(&model_files::resolve(None).unwrap().to_string_lossy()).unwrap()
    }

    fn workload(tokens: u32) -> Workload {
        Workload { max_new_tokens: 1, ..Workload::specimen(Prompt::Tokens(tokens)) }
    }

    fn key(nonce: u64, kind: RequestKind, block: u32, index: u32) -> PromptKey {
        PromptKey { seed: 0, nonce: Some(nonce), block, kind, index, sequence: 0 }
    }

    #[test]
    fn every_second_measured_prompt_depends_on_its_first_half_and_prompts_of_the_recipe_never_do() {
        let prompts = prompts();
        let workload = workload(128);
        let measured = |nonce, block, index| key(nonce, RequestKind::Measured, block, index);
        let depends = |key| Prompts::is_dependent(&workload, key);
        for (block, index) in (0..4).flat_map(|block| (0..5).map(move |index| (block, index))) {
            assert_ne!(depends(measured(3, block, index)), depends(measured(3, block, index + 1)));
            assert_ne!(depends(measured(3, block, index)), depends(measured(3, block + 1, index)));
        }
        assert!(!depends(key(3, RequestKind::Warmup, 0, 0)) && !depends(key(3, RequestKind::Warmup, 0, 1)));
        let first = (0..40).filter(|&nonce| depends(measured(nonce, 0, 0))).count();
        assert!((8..33).contains(&first), "{first}");
        for index in 0..4 {
            let key = measured(3, 0, index);
            let recipe = prompts.recipe_batch(&workload, key).unwrap().remove(0);
            assert_eq!(recipe, prompts.text_windows(&workload, key.without_nonce()).unwrap()[0]);
            let ids = prompts.batch(&workload, key).unwrap().remove(0);
            assert_eq!(ids.len(), 128);
            assert_eq!(ids == prompts.text_windows(&workload, key).unwrap()[0], !depends(key));
        }
    }

    #[test]
    fn prompts_depend_only_where_the_result_depends_on_one_long_prompt() {
        let depth = |depth| Shape { depth, ..Shape::default() };
        let deep = Workload { max_new_tokens: 32, shape: depth(1024), ..workload(1056) };
        assert!(Prompts::can_depend(&workload(64)) && Prompts::can_depend(&deep));
        assert!(!Prompts::can_depend(&workload(63)));
        assert!(!Prompts::can_depend(&Workload { shape: depth(0), ..deep }));
        let batch = Shape { batch: 2, ..Shape::default() };
        assert!(!Prompts::can_depend(&Workload { shape: batch, ..workload(64) }));
    }

    #[test]
    fn a_dependent_prompt_has_its_pattern_in_the_first_half_and_at_the_end() {
        let construction = Construction {
            pattern: vec![1, 2, 3, 4, 5, 6, 7, 8],
            filler: 9,
            pattern_end_eighths: 4,
            end_tokens: 3,
        };
        let ids = construction.ids(vec![0, 50, 51, 52, 53], 64);
        assert_eq!(
            (ids.len(), &ids[..5], &ids[5..13]),
            (64, &[0, 50, 51, 52, 53][..], &construction.pattern[..])
        );
        assert!(ids[32..61].iter().all(|&id| id == 9) && ids[31] != 9);
        assert_eq!(ids[61..], [1, 2, 3]);
        let half = Construction { pattern_end_eighths: 2, ..construction }.ids(vec![0], 64);
        assert!(half[16..61].iter().all(|&id| id == 9) && half[15] != 9);
    }

    #[test]
    fn no_two_requests_have_the_same_pattern_and_end() {
        let prompts = prompts();
        let workload = workload(512);
        let keys = (0..8).flat_map(|nonce| {
            (0..4).flat_map(move |block| {
                (0..5).map(move |index| key(nonce, RequestKind::Measured, block, index))
            })
        });
        let dependent: Vec<PromptKey> = keys.filter(|key| Prompts::is_dependent(&workload, *key)).collect();
        let without_salt = |key: &PromptKey| prompts.batch(&workload, *key).unwrap()[0][5..].to_vec();
        let distinct: BTreeSet<Vec<u32>> = dependent.iter().map(without_salt).collect();
        assert_eq!((dependent.len(), distinct.len()), (80, 80));
        let ends: BTreeSet<Vec<u32>> = distinct.iter().map(|ids| ids[ids.len() - 2..].to_vec()).collect();
        assert!(ends.len() > 75, "{}", ends.len());
    }

    #[test]
    fn most_dependent_prompts_keep_their_length_as_text() {
        let prompts = prompts();
        let workload = workload(128);
        let lengths = (0..100).map(|nonce| {
            let ids = prompts.dependent_ids(&workload, key(nonce, RequestKind::Measured, 0, 0), 128, &[]);
            prompts.tokenizer.encode(&prompts.tokenizer.decode(&ids)).unwrap().len()
        });
        let kept = lengths.filter(|&length| length == 128).count();
        assert!(kept > 80, "{kept}");
    }
}
