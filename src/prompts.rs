//! Prompts as token ids: windows of real text, another one for each sample, the same ones for every engine.

use anyhow::{Context, Result, bail};
use model_files::{ModelFolder, Tokenizer, embedded};
use protocol::{Capabilities, Generate, Id};

use crate::plan::{Prompt, Workload};
use crate::record::Role;

/// What prompts for one model are made from.
pub struct Prompts {
    tokenizer: Tokenizer,
    /// What the tokenizer puts before every text.
    bos: Vec<u32>,
    text_ids: Vec<u32>,
}

/// Which sample a prompt is for. Engines are no part of it.
#[derive(Debug, Clone, Copy)]
pub struct Which {
    pub seed: u64,
    pub round: u32,
    pub role: Role,
    pub index: u32,
}

impl Prompts {
    pub fn of_model(path: &str) -> Result<Self> {
        let folder = ModelFolder::open(path)?;
        let tokenizer = folder.tokenizer()?;
        let bos = tokenizer.encode("")?;
        let text_ids = tokenizer.encode(&embedded::heldout_text()?)?.split_off(bos.len());
        if text_ids.is_empty() {
            bail!("the tokenizer of `{path}` makes no tokens of English text");
        }
        Ok(Self { tokenizer, bos, text_ids })
    }

    /// The ids for a sample of a workload.
    pub fn ids(&self, workload: &Workload, which: Which) -> Result<Vec<u32>> {
        let tokens = match &workload.prompt {
            Prompt::Text(text) => return self.tokenizer.encode(text),
            Prompt::Tokens(tokens) => *tokens as usize,
        };
        let body = tokens.checked_sub(self.bos.len()).filter(|&body| body > 0);
        let body = body.with_context(|| format!("a prompt of {tokens} tokens has no room for text"))?;
        let start = window(which) as usize % self.text_ids.len();
        let text = self.text_ids.iter().cycle().skip(start).take(body);
        Ok(self.bos.iter().chain(text).copied().collect())
    }

    /// The request for these ids, in the form that the engine takes. Without capabilities: the form every engine knows.
    pub fn request(
        &self,
        workload: &Workload,
        ids: &[u32],
        capabilities: Option<&Capabilities>,
        id: u64,
    ) -> Generate {
        let takes_ids = capabilities.is_some_and(|capabilities| capabilities.prompt_ids);
        let text = match &workload.prompt {
            Prompt::Text(text) => text.clone(),
            Prompt::Tokens(_) => self.tokenizer.decode(ids),
        };
        Generate {
            // The smallest engine need not know what an id is: it gets one request at a time.
            id: capabilities.map(|_| Id::Number(id)),
            prompt: (!takes_ids).then_some(text),
            prompt_ids: takes_ids.then(|| ids.to_vec()),
            max_new_tokens: workload.max_new_tokens,
            ignore_eos: workload.ignore_eos,
            sampling: workload.sampling,
            ..Generate::default()
        }
    }
}

/// Names what was asked: the ids as they were sent.
pub fn hash(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    places::digest(&bytes)
}

/// Where a sample's window starts: spread over the text by splitmix64's finaliser. All warm-up requests of a launch read
/// the same window, so that a second answer can be held against the first; no two measured ones do.
fn window(which: Which) -> u64 {
    let index = match which.role {
        Role::Warmup => u64::MAX,
        Role::Measured => u64::from(which.index),
    };
    let mut state =
        which.seed ^ u64::from(which.round).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.rotate_left(32);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn which(round: u32, role: Role, index: u32) -> Which {
        Which { seed: 0, round, role, index }
    }

    #[test]
    fn measured_windows_differ_and_warm_up_windows_are_one() {
        let mut starts: Vec<u64> = (0..3)
            .flat_map(|round| (0..20).map(move |index| window(which(round, Role::Measured, index))))
            .collect();
        starts.sort();
        starts.dedup();
        assert_eq!(starts.len(), 60);
        assert_eq!(window(which(1, Role::Warmup, 0)), window(which(1, Role::Warmup, 1)));
    }

    #[test]
    fn a_prompt_has_exactly_the_tokens_asked_and_begins_as_the_tokenizer_begins() {
        let path = model_files::resolve(None).unwrap();
        let prompts = Prompts::of_model(&path.to_string_lossy()).unwrap();
        let workload = crate::run::example_workload(Prompt::Tokens(128));
        let ids = prompts.ids(&workload, which(0, Role::Measured, 3)).unwrap();
        assert_eq!(ids.len(), 128);
        assert_eq!(ids[..prompts.bos.len()], prompts.bos[..]);
        assert_ne!(ids, prompts.ids(&workload, which(0, Role::Measured, 4)).unwrap());
        assert_eq!(ids, prompts.ids(&workload, which(0, Role::Measured, 3)).unwrap());
    }
}
