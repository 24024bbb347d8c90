//! Prompts whose next token depends on their first half. On most text, the next token depends only on the last few hundred
//! tokens. So an engine that computes a part of each prompt gives the same tokens as others, and is faster. These prompts show
//! the difference. The verifier finds them once for each model.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{PromptKey, Prompts, SALT_TOKENS, hash, random};
use crate::plan::axes::Shape;
use crate::plan::scenario::{SCENARIOS, SUITES, Suite};
use crate::plan::{Kind, Prompt, RequestKind, Workload};

pub const FILE_NAME: &str = "dependent-prompts.json";
/// Shorter prompts are cheap, so an engine gains little by computing a part of them.
const MIN_TOKENS: u32 = 64;
/// The positions of the random numbers that choose which requests of a block have a dependent prompt (`PARITY`), and which
/// prompt it is (`CHOICE`). Lower positions are for the window and the salt.
const PARITY: u64 = 1 << 10;
const CHOICE: u64 = PARITY + 1;

/// The token after a prompt, and the tokens after parts of it, as a verifier gives them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NextToken {
    pub token: u32,
    /// Every other token is less likely than `token` by at least this, in nats.
    pub margin: f64,
    /// The likeliest tokens after parts of the prompt. None of them is `token`.
    pub after_parts: Vec<u32>,
}

/// A prompt with a dependent next token. Its first half repeats a short pattern of the text. Then one token is repeated, and the
/// beginning of the pattern is at the end. Small models too are sure of the next token, because nothing else comes in between.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DependentPrompt {
    pub tokens: u32,
    /// The first id of the pattern in the text, and the number of its ids.
    pub pattern: usize,
    pub pattern_tokens: usize,
    /// The id in the text that is repeated after the first half.
    pub filler: usize,
    /// The number of the pattern's ids at the end of the prompt.
    pub end_tokens: usize,
    pub next: NextToken,
}

/// The prompts of a model: a file beside it, or a file of the data folder that is named by the model's identity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DependentPrompts {
    /// The engine that gave the tokens, and its version.
    pub by: String,
    /// The identity of the weights, as in the plan.
    pub identity: Option<String>,
    /// The digest of the text's ids.
    pub text: String,
    /// The lengths for which the search is over, in tokens. It may have found nothing.
    pub searched: Vec<u32>,
    pub prompts: Vec<DependentPrompt>,
}

impl DependentPrompts {
    /// The stored prompts of a model, if they belong to this text and these weights. Weights of unknown identity are accepted.
    pub fn find(folder: &Path, text_ids: &[u32], identity: Option<&str>) -> Self {
        let (text, identity) = (hash(text_ids), identity.map(String::from));
        let in_data = identity.as_deref().and_then(stored_path);
        let paths = [Some(folder.join(FILE_NAME)), in_data];
        let files = paths.into_iter().flatten().filter_map(|path| {
            let file: Self = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
            let same_weights = file.identity.as_ref().zip(identity.as_ref()).is_none_or(|(it, of)| it == of);
            let in_text = |it: &DependentPrompt| it.pattern.max(it.filler) < text_ids.len();
            (same_weights && file.text == text && file.prompts.iter().all(in_text)).then_some(file)
        });
        let none = Self { identity: identity.clone(), text: text.clone(), ..Self::default() };
        files.fold(none, Self::with)
    }

    /// Adds the prompts of lengths that were not searched yet.
    pub fn with(mut self, other: Self) -> Self {
        let is_new = |tokens: &u32| !self.searched.contains(tokens);
        let prompts: Vec<_> = other.prompts.into_iter().filter(|it| is_new(&it.tokens)).collect();
        let searched: Vec<u32> = other.searched.into_iter().filter(is_new).collect();
        self.prompts.extend(prompts);
        self.searched.extend(searched);
        if self.by.is_empty() {
            self.by = other.by;
        }
        self
    }

    /// The prompts of this length.
    pub fn of_length(&self, tokens: u32) -> impl Iterator<Item = &DependentPrompt> {
        self.prompts.iter().filter(move |it| it.tokens == tokens)
    }

    /// The file's text, with a line for each prompt.
    pub fn text(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string(self)?.replace(":[{", ":[\n{").replace("},{", "},\n{") + "\n")
    }
}

/// The file of the data folder for the model with this identity.
pub fn stored_path(identity: &str) -> Option<PathBuf> {
    let is_name = !identity.is_empty() && identity.bytes().all(|it| it.is_ascii_alphanumeric());
    let folder = paths::data_dir().ok().filter(|_| is_name)?;
    Some(folder.join("dependent-prompts").join(format!("{identity}.json")))
}

impl DependentPrompt {
    /// The parts of a prompt that an engine could compute in place of all of it: its last half; its first four ids and its last
    /// half; its last 200 ids; its last 64 ids. The last two are left out unless they are shorter than half of the prompt.
    pub fn parts(ids: &[u32]) -> Vec<Vec<u32>> {
        let (half, start) = (&ids[ids.len() / 2..], &ids[..ids.len().min(4)]);
        let last = |tokens: usize| (ids.len() > 2 * tokens).then(|| ids[ids.len() - tokens..].to_vec());
        [half.to_vec(), [start, half].concat()].into_iter().chain(last(200)).chain(last(64)).collect()
    }
}

impl Prompts {
    /// Whether a workload may have dependent prompts: its output is one greedy token, its prompt is long, and its shape is
    /// the default.
    pub fn can_depend(workload: &Workload) -> bool {
        let is_long = matches!(workload.prompt, Prompt::Tokens(tokens) if tokens >= MIN_TOKENS);
        workload.max_new_tokens == 1 && workload.is_greedy() && is_long && workload.shape == Shape::default()
    }

    /// The dependent prompt of a request. Every second measured request has one, if its workload can and the model has dependent
    /// prompts of this length. A random number decides in each block whether the first request has one.
    pub fn dependent(&self, workload: &Workload, key: PromptKey) -> Option<&DependentPrompt> {
        let Prompt::Tokens(tokens) = workload.prompt else { return None };
        if key.kind != RequestKind::Measured || !Self::can_depend(workload) {
            return None;
        }
        let of_block = PromptKey { index: 0, ..key };
        if (random(&workload.label, of_block, PARITY) ^ u64::from(key.index)) & 1 == 1 {
            return None;
        }
        let fitting: Vec<&DependentPrompt> = self.dependent.of_length(tokens).collect();
        let choice = random(&workload.label, key, CHOICE) as usize;
        fitting.get(choice % fitting.len().max(1)).copied()
    }

    /// The dependent prompts of the model that are known so far.
    pub fn dependent_prompts(&self) -> &DependentPrompts {
        &self.dependent
    }

    pub fn set_dependent_prompts(&mut self, prompts: DependentPrompts) {
        self.dependent = prompts;
    }

    /// The ids of a dependent prompt with this salt after the tokenizer's BOS ids.
    pub fn dependent_ids(&self, prompt: &DependentPrompt, salt: &[u32]) -> Vec<u32> {
        let pattern =
            || self.text_ids.iter().cycle().skip(prompt.pattern).take(prompt.pattern_tokens).copied();
        let tokens = prompt.tokens as usize;
        let mut ids: Vec<u32> = self.bos.iter().chain(salt).copied().collect();
        let repeated: Vec<u32> = pattern().collect();
        ids.extend(repeated.iter().cycle().take((tokens / 2).saturating_sub(ids.len())));
        let filler = tokens.saturating_sub(ids.len() + prompt.end_tokens);
        ids.extend(std::iter::repeat_n(self.text_ids[prompt.filler], filler));
        ids.extend(pattern().take(prompt.end_tokens));
        ids
    }

    /// The prompt lengths for which dependent prompts are searched: those of warm scenarios, alone or in suites, whose output is
    /// one token. Short lengths and those that do not fit the model's context are left out.
    pub fn dependent_lengths(&self) -> Vec<u32> {
        let of_suites = SUITES.iter().flat_map(Suite::scenarios);
        let scenarios = SCENARIOS.iter().copied().chain(of_suites);
        let with_one_token = scenarios.filter(|it| it.kind == Kind::Warm && it.axes.new_tokens == [1]);
        let lengths = with_one_token.flat_map(|it| it.axes.prompt_tokens).copied();
        let fits = |&tokens: &u32| self.context_tokens.is_none_or(|context| tokens < context);
        let lengths: BTreeSet<u32> = lengths.filter(|&it| it >= MIN_TOKENS).filter(fits).collect();
        lengths.into_iter().collect()
    }

    /// A prompt of this length to try. Engines that take text encode it themselves, so several attempts look for a prompt that
    /// has as many tokens as text as it has ids.
    pub fn candidate(&self, tokens: u32, random: &mut stats::Random) -> DependentPrompt {
        /// Models are surest of the next token in long patterns. Shorter ones are repeated more often.
        const PATTERN_TOKENS: [usize; 2] = [12, 24];
        const ATTEMPTS: usize = 20;
        let mut candidate = DependentPrompt::default();
        for _ in 0..ATTEMPTS {
            let pattern_tokens = PATTERN_TOKENS[random.below(PATTERN_TOKENS.len())];
            candidate = DependentPrompt {
                tokens,
                pattern: random.below(self.text_ids.len()),
                pattern_tokens,
                filler: random.below(self.text_ids.len()),
                end_tokens: pattern_tokens,
                ..DependentPrompt::default()
            };
            if self.keeps_its_length_as_text(&candidate) {
                break;
            }
        }
        candidate
    }

    fn keeps_its_length_as_text(&self, prompt: &DependentPrompt) -> bool {
        let ids = self.dependent_ids(prompt, &[]);
        self.tokenizer.encode(&self.tokenizer.decode(&ids)).is_ok_and(|encoded| encoded.len() == ids.len())
    }

    /// The tokenizer's BOS ids and the beginning of the text: `tokens` ids together.
    pub fn text_start(&self, tokens: usize) -> Vec<u32> {
        self.bos.iter().chain(&self.text_ids).take(tokens).copied().collect()
    }

    /// Random ids for the search, in place of the salt of a request.
    pub fn random_salt(&self, random: &mut stats::Random) -> Vec<u32> {
        (0..SALT_TOKENS).map(|_| self.text_ids[random.below(self.text_ids.len())]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts() -> Prompts {
        let mut prompts = Prompts::open(&model_files::resolve(None).unwrap().to_string_lossy()).unwrap();
        let prompt = |pattern| DependentPrompt {
            tokens: 128,
            pattern,
            pattern_tokens: 6,
            filler: 500,
            end_tokens: 3,
            ..Default::default()
        };
        prompts.dependent.prompts = vec![prompt(100), prompt(200), prompt(300)];
        prompts
    }

    fn workload(tokens: u32) -> Workload {
        Workload { max_new_tokens: 1, ..Workload::specimen(Prompt::Tokens(tokens)) }
    }

    fn key(nonce: Option<u64>, kind: RequestKind, index: u32) -> PromptKey {
        PromptKey { seed: 0, nonce, block: 0, kind, index, sequence: 0 }
    }

    #[test]
    fn every_second_measured_prompt_depends_on_its_first_half_and_the_recipe_never_does() {
        let prompts = prompts();
        let (workload, measured) = (workload(128), |index| key(Some(3), RequestKind::Measured, index));
        let depends = |index| prompts.dependent(&workload, measured(index)).is_some();
        assert!((0..20).all(|index| depends(index) != depends(index + 1)));
        assert!(prompts.dependent(&workload, key(Some(3), RequestKind::Warmup, 0)).is_none());
        assert!(prompts.dependent(&self::workload(256), measured(0)).is_none());
        let firsts = (0..40).map(|nonce| key(Some(nonce), RequestKind::Measured, 0));
        let first = firsts.filter(|&key| prompts.dependent(&workload, key).is_some()).count();
        assert!((8..33).contains(&first), "{first}");
        let without = Prompts { dependent: DependentPrompts::default(), ..self::prompts() };
        for index in 0..4 {
            let recipe =
                |prompts: &Prompts| prompts.recipe_batch(&workload, measured(index)).unwrap().remove(0);
            assert_eq!(recipe(&prompts), recipe(&without));
            let ids = prompts.batch(&workload, measured(index)).unwrap().remove(0);
            assert_eq!(ids.len(), 128);
            assert_eq!(ids == without.batch(&workload, measured(index)).unwrap()[0], !depends(index));
        }
    }

    #[test]
    fn a_dependent_prompt_has_its_pattern_in_the_first_half_and_at_the_end() {
        let prompts = prompts();
        let (pattern, salt) = (&prompts.text_ids[100..106], [7, 8, 9, 10]);
        let ids = prompts.dependent_ids(&prompts.dependent.prompts[0], &salt);
        let begin = prompts.bos.len() + 4;
        assert_eq!((ids.len(), &ids[begin - 4..begin], &ids[125..]), (128, &salt[..], &pattern[..3]));
        assert_eq!((&ids[begin..begin + 6], &ids[begin + 6..begin + 12]), (pattern, pattern));
        assert!(ids[64..125].iter().all(|&id| id == prompts.text_ids[500]));
        let lengths = |ids: &[u32]| DependentPrompt::parts(ids).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!((lengths(&ids), lengths(&[0; 1024])), (vec![64, 68], vec![512, 516, 200, 64]));
    }

    #[test]
    fn the_embedded_model_has_dependent_prompts_of_each_length_of_the_default_suite() {
        let prompts = Prompts::open(&model_files::resolve(None).unwrap().to_string_lossy()).unwrap();
        for tokens in [128, 512, 1024] {
            let count = prompts.dependent.of_length(tokens).count();
            assert!(count >= 2, "{count} of {tokens} tokens");
        }
        let differs = |it: &DependentPrompt| !it.next.after_parts.contains(&it.next.token);
        assert!(prompts.dependent.prompts.iter().all(differs));
    }

    #[test]
    fn stored_prompts_are_found_by_model_identity_and_never_replace_prompts_of_the_same_length() {
        let found = |by: &str, searched: &[u32]| DependentPrompts {
            by: by.into(),
            searched: searched.to_vec(),
            prompts: searched
                .iter()
                .map(|&tokens| DependentPrompt { tokens, ..Default::default() })
                .collect(),
            ..DependentPrompts::default()
        };
        let both = found("first", &[128]).with(found("second", &[128, 512]));
        assert_eq!((both.by.as_str(), &both.searched[..]), ("first", &[128, 512][..]));
        assert_eq!([128, 512].map(|tokens| both.of_length(tokens).count()), [1, 1]);
        assert_eq!(stored_path("../x"), None);
        assert!(stored_path("ab12").is_none_or(|path| path.ends_with("dependent-prompts/ab12.json")));
    }
}
