//! A loaded model: prompts in, tokens out, step by step. `decoder` is its interface to a network.
//!
//! ```text
//! generate  a job's sequences, together in every step     score  logits of all rows, a part at a time
//! slots     the sequences of several requests at once
//!     \        /
//!      course::advance   one step: a token for each sequence past its prompt, a part of the prompt for the others
//!      step              the rows of a step, and their grouping into passes through the network
//! ```

pub mod course;
pub mod decoder;
mod score;
mod slots;
mod step;
mod stretch;
#[cfg(test)]
mod tests;

use engine_kit::{Flow, Job, Model, Slots, Tokens};
use protocol::{Facts, Failed};

use course::Course;
use decoder::{Decoder, Found};
use step::Pace;

/// Rows of prompts in one pass while no sequence waits for its next token. Requests can be cancelled between two such steps.
pub(crate) const AT_ONCE: usize = 256;

/// The network, and the state of the current requests.
pub struct LoadedModel<D: Decoder> {
    decoder: D,
    facts: Facts,
    /// The most tokens that prompt lookup drafts; 0 disables it.
    lookup: usize,
    /// Sequences of the last requests, emptied, for reuse of their memory. The next request drops those that it does not need,
    /// so that one large batch does not keep its memory for ever.
    spare: Vec<D::Sequence>,
    /// Sequences of overlapping requests, each with its slot and its index in the request.
    admitted: Vec<(usize, usize, Course<D::Sequence>)>,
    found: Found,
}

impl<D: Decoder> LoadedModel<D> {
    pub fn new(decoder: D, facts: Facts, lookup: usize) -> Self {
        Self { decoder, facts, lookup, spare: Vec::new(), admitted: Vec::new(), found: Found::default() }
    }

    fn courses(&mut self, job: &Job) -> Result<Vec<Course<D::Sequence>>, Failed> {
        self.spare.truncate(job.prompts.len());
        // One size for all sequences of a job, so that their memory is interchangeable.
        let longest = job.prompts.iter().map(Vec::len).max().unwrap_or_default();
        let room = longest + job.max_new_tokens as usize;
        let course = |(index, prompt): (usize, &Vec<u32>)| {
            Ok(Course::new(self.sequence(room)?, prompt, index, job, self.lookup))
        };
        job.prompts.iter().enumerate().map(course).collect()
    }

    /// An empty sequence with room for this number of ids. A spare one that is too small is dropped, to free its memory.
    fn sequence(&mut self, ids: usize) -> Result<D::Sequence, Failed> {
        if let Some(roomy) = self.spare.iter().rposition(|spare| self.decoder.room(spare) >= ids) {
            return Ok(self.spare.swap_remove(roomy));
        }
        self.spare.pop();
        self.decoder.start(ids)
    }

    fn keep(&mut self, mut sequence: D::Sequence) {
        self.decoder.truncate(&mut sequence, 0);
        self.spare.push(sequence);
    }
}

impl<D: Decoder> Model for LoadedModel<D> {
    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    /// Padding of a batch makes no difference: rows of several lengths are computed side by side, without pad tokens.
    fn generate(&mut self, job: &Job, tokens: &mut Tokens) -> Result<(), Failed> {
        let mut courses = self.courses(job)?;
        while !tokens.all_done() && !tokens.is_cancelled() {
            let mut under_way: Vec<_> =
                courses.iter_mut().enumerate().filter(|(_, it)| !it.is_done()).collect();
            let places: Vec<usize> = under_way.iter().map(|(place, _)| *place).collect();
            let mut these: Vec<_> = under_way.iter_mut().map(|(_, course)| &mut **course).collect();
            let mut failed = None;
            let take = &mut |which: usize, id: Result<u32, Failed>| match id {
                Ok(id) => tokens.push(places[which], id) == Flow::More,
                Err(fault) => {
                    failed = Some(fault);
                    false
                }
            };
            course::advance(&mut self.decoder, &mut these, Pace::Together, &mut self.found, take);
            failed.map_or(Ok(()), Err)?;
        }
        courses.into_iter().for_each(|course| self.keep(course.into_sequence()));
        Ok(())
    }

    fn score(&mut self, ids: &[u32]) -> Result<Vec<f64>, Failed> {
        self.spare.truncate(1);
        let mut sequence = self.sequence(ids.len())?;
        let scores = score::score(&mut self.decoder, &mut sequence, ids);
        self.keep(sequence);
        scores
    }

    fn slots(&mut self) -> Option<&mut dyn Slots> {
        Some(self)
    }
}
