//! Conversations: a request repeats the one before it, followed by the engine's own answer and a new text of the user. So the prompts
//! follow from the texts of the plan and from the answers, and the record has both.

use protocol::Sequence;

use super::Prompts;
use crate::plan::Workload;

impl Prompts {
    /// The prompts of all requests of a window. `texts`: the first prompt of each conversation, and the new texts of its later turns.
    /// `answers`: those of the same requests.
    pub fn conversations(
        &self,
        workload: &Workload,
        texts: Vec<Vec<u32>>,
        answers: &[Sequence],
    ) -> Vec<Vec<u32>> {
        let mut prompts: Vec<Vec<u32>> = Vec::new();
        for (text, index) in texts.into_iter().zip(0..) {
            let before = workload.shape.turn_before(index).map(|it| it as usize);
            let before = before.and_then(|it| Some((prompts.get(it)?, answers.get(it)?)));
            let prompt = before.map(|(prompt, answer)| self.next_turn(prompt, answer, &text));
            prompts.push(prompt.unwrap_or(text));
        }
        prompts
    }

    /// The prompt of the turn after this one, with a new text.
    pub fn next_turn(&self, prompt: &[u32], answer: &Sequence, text: &[u32]) -> Vec<u32> {
        let answer_ids = match (&answer.output_ids, &answer.chunks) {
            (Some(ids), _) => ids.clone(),
            (None, Some(chunks)) => {
                let answer: String = chunks.iter().map(|chunk| chunk.text.as_str()).collect();
                self.ids_after(prompt, &answer)
            }
            (None, None) => Vec::new(),
        };
        [prompt, &answer_ids, text].concat()
    }

    /// The ids of a text that follows a prompt. Some tokenizers put a space before each text that they encode, so a text that begins with
    /// a space may have one too many: those ids count which give the text after the last token of the prompt.
    fn ids_after(&self, prompt: &[u32], text: &str) -> Vec<u32> {
        let last = &prompt[prompt.len().saturating_sub(1)..];
        let before = self.decode_output(last);
        let mut divisions = [text, text.trim_start()].map(|it| self.encode_output(it)).into_iter();
        let is_text = |ids: &Vec<u32>| {
            self.decode_output(&[last, ids].concat()).strip_prefix(&before).is_some_and(|it| it == text)
        };
        let first = divisions.clone().next().unwrap_or_default();
        divisions.find(is_text).unwrap_or(first)
    }
}

#[cfg(test)]
mod tests {
    use protocol::Chunk;

    use super::*;
    use crate::plan::axes::Shape;
    use crate::plan::prompts::PromptKey;
    use crate::plan::{Prompt, RequestKind};

    #[test]
    fn each_turn_repeats_the_one_before_with_its_answer() {
        let path = model_files::resolve(None).unwrap();
        let prompts = Prompts::open(&path.to_string_lossy()).unwrap();
        let shape = Shape { requests: Some(5), turns: 3, shared_prefix: 8, ..Shape::default() };
        let workload = Workload { shape, ..Workload::specimen(Prompt::Tokens(24)) };
        let key =
            PromptKey { seed: 0, nonce: None, block: 0, kind: RequestKind::Measured, index: 0, sequence: 0 };
        let texts = prompts.batch(&workload, key).unwrap();
        // Two conversations, whose first prompts share the prefix.
        assert_eq!(texts.iter().map(Vec::len).collect::<Vec<_>>(), [24, 12, 8, 12, 16, 12]);
        assert_eq!((texts[0][..8] == texts[3][..8], texts[0][..8] == texts[1][..8]), (true, false));
        let of_ids = |ids: &[u32]| Sequence { output_ids: Some(ids.to_vec()), ..Sequence::default() };
        let chunk = |text: &str| Chunk { text: text.into(), ..Chunk::default() };
        let of_text = Sequence { chunks: Some(vec![chunk(" the"), chunk(" end")]), ..Sequence::default() };
        let answers = [of_ids(&[5, 6]), of_text, of_ids(&[7]), of_ids(&[8]), of_ids(&[9])];
        let all = prompts.conversations(&workload, texts.clone(), &answers);
        assert_eq!(all[1], [&texts[0][..], &[5, 6], &texts[1]].concat());
        let end = prompts.decode_output(&all[2][all[1].len() - 1..all[2].len() - texts[2].len()]);
        assert_eq!(end, prompts.decode_output(&texts[1][texts[1].len() - 1..]) + " the end");
        assert!(all[2].starts_with(&all[1]) && all[2].ends_with(&texts[2]));
        assert_eq!((&all[3], &all[4]), (&texts[3], &[&texts[3][..], &[8], &texts[4]].concat()));
        // The longest prompt has all texts and answers.
        assert_eq!(workload.longest_prompt(|_| None), Some(24 + 2 * (16 + 8)));
        let lengths = |answer: Option<u32>| shape.length_with_history(24, 2, |_| answer);
        assert_eq!((lengths(Some(8)), lengths(None)), (Some(24 + 12 + 8 + 2 * 8), None));
    }
}
