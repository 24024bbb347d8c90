//! The requests of the output check on one model: windows of text to score, and a prompt to continue. They are the same in
//! every run, so that answers can be stored and used again.

use serde::{Deserialize, Serialize};

use super::Prompts;

const WINDOWS: usize = 4;
const WINDOW_TOKENS: usize = 128;
/// The length of the additional long window. Errors in the scaling of positions show only from about 1,000 tokens on.
const LONG_WINDOW_TOKENS: usize = 1152;
const PROMPT_TOKENS: usize = 48;
const MAX_NEW_TOKENS: usize = 48;

/// The requests of the output check on one model, sent before the first block.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldOut {
    /// The model's path, as in configurations.
    pub model: String,
    /// Windows of text that the embedded model was not trained on, as ids.
    pub sequences: Vec<Vec<u32>>,
    /// Ids of the prompt to continue. Decoding is greedy and ignores EOS.
    pub prompt: Vec<u32>,
    pub max_new_tokens: u32,
    /// The bytes of each window's text after its first id. Older records lack them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub text_bytes: Vec<u64>,
}

impl Prompts {
    /// Makes the requests. Windows are in order of length, begin with the tokenizer's BOS ids, and fit the model's context.
    pub fn held_out(&self, model: &str) -> HeldOut {
        let context = self.context_tokens.map_or(usize::MAX, |tokens| tokens as usize);
        let window = WINDOW_TOKENS.min(context);
        let long = LONG_WINDOW_TOKENS.min(context.saturating_sub(1));
        let mut lengths = vec![window; WINDOWS];
        lengths.extend((long > window).then_some(long));
        let prompt = PROMPT_TOKENS.min(context / 2);
        // The windows are spread over the text, so that their subjects differ.
        let parts = lengths.len() + 1;
        let cut = |part: usize, tokens: usize| self.window(self.text_ids.len() * part / parts, tokens);
        let sequences: Vec<Vec<u32>> =
            lengths.iter().enumerate().map(|(part, &tokens)| cut(part, tokens)).collect();
        let bytes = |ids: &Vec<u32>| self.tokenizer.decode(ids.get(1..).unwrap_or_default()).len() as u64;
        HeldOut {
            model: model.into(),
            text_bytes: sequences.iter().map(bytes).collect(),
            sequences,
            prompt: cut(parts - 1, prompt),
            max_new_tokens: MAX_NEW_TOKENS.min(context.saturating_sub(prompt)) as u32,
        }
    }

    fn window(&self, start: usize, tokens: usize) -> Vec<u32> {
        let text = self.text_ids.iter().cycle().skip(start);
        self.bos.iter().chain(text).take(tokens).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts() -> Prompts {
        Prompts::open(&model_files::resolve(None).unwrap().to_string_lossy()).unwrap()
    }

    fn lengths(prompts: &Prompts) -> (Vec<usize>, usize, u32) {
        let held_out = prompts.held_out("m");
        let sequences = held_out.sequences.iter().map(Vec::len).collect();
        (sequences, held_out.prompt.len(), held_out.max_new_tokens)
    }

    #[test]
    fn the_longest_held_out_text_has_over_a_thousand_tokens_and_each_begins_with_bos() {
        let prompts = prompts();
        assert_eq!(lengths(&prompts), (vec![128, 128, 128, 128, 1152], 48, 48));
        let held_out = prompts.held_out("m");
        let all = || held_out.sequences.iter().chain([&held_out.prompt]);
        assert!(all().all(|ids| ids.starts_with(&prompts.bos)));
        // No two windows begin with the same text.
        let starts: std::collections::BTreeSet<&[u32]> =
            all().map(|ids| &ids[prompts.bos.len()..][..8]).collect();
        assert_eq!(starts.len(), held_out.sequences.len() + 1);
        assert_eq!(held_out, prompts.held_out("m"));
    }

    #[test]
    fn held_out_texts_and_prompt_fit_a_small_context() {
        let with = |tokens| Prompts { context_tokens: Some(tokens), ..prompts() };
        assert_eq!(lengths(&with(600)), (vec![128, 128, 128, 128, 599], 48, 48));
        assert_eq!(lengths(&with(100)), (vec![100; 4], 48, 48));
        assert_eq!(lengths(&with(64)), (vec![64; 4], 32, 32));
    }

    #[test]
    fn a_tokenizer_that_makes_few_tokens_repeats_its_text() {
        let few = Prompts { text_ids: vec![7, 8, 9], ..prompts() };
        assert_eq!(lengths(&few), (vec![128, 128, 128, 128, 1152], 48, 48));
        assert_eq!(few.held_out("m").sequences[0][few.bos.len()..][..4], [7, 8, 9, 7]);
    }
}
