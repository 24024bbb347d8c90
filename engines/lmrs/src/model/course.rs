//! A sequence on its way from the prompt to its last token, and the step that takes several of them on together.

use engine_kit::Job;
use engine_kit::sampling::{Rng, sample};
use protocol::{Failed, Sampling};

use super::decoder::{Decoder, Found, Span, Wanted};
use crate::lookup;

pub struct Course<S> {
    sequence: S,
    /// The prompt, and what was made of it.
    ids: Vec<u32>,
    /// How many of them the sequence holds. All but the last when a token is made; none, without the cache.
    standing: usize,
    /// How many ids there can ever be.
    most: usize,
    /// `None` is greedy.
    sampling: Option<Sampling>,
    rng: Rng,
    use_cache: bool,
    lookup: usize,
    done: bool,
}

impl<S> Course<S> {
    /// `index` is the sequence's place in its job. Ids are drafted for greedy sequences with a cache and no others: a draft is
    /// held against the likeliest id.
    pub fn new(sequence: S, prompt: &[u32], index: usize, job: &Job, lookup: usize) -> Self {
        let most = prompt.len() + job.max_new_tokens as usize;
        let may_draft = job.sampling.is_none() && job.use_cache;
        Self {
            sequence,
            ids: prompt.to_vec(),
            standing: 0,
            most,
            sampling: job.sampling,
            rng: Rng::for_sequence(&job.sampling, index),
            use_cache: job.use_cache,
            lookup: if may_draft { lookup } else { 0 },
            done: false,
        }
    }

    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Whether its next step is one row that makes a token.
    pub fn is_decoding(&self) -> bool {
        self.waiting() == 1
    }

    pub fn into_sequence(self) -> S {
        self.sequence
    }

    /// Ids that the sequence does not hold yet.
    fn waiting(&self) -> usize {
        self.ids.len() - self.standing
    }

    fn wanted(&self) -> Wanted {
        if self.sampling.is_some() { Wanted::Logits } else { Wanted::Largest }
    }
}

/// What a course does in a step.
struct Part {
    which: usize,
    rows: usize,
    drafted: usize,
    wanted: Wanted,
}

/// One step: every course that decodes makes a token; of the prompts `at_once` rows go along, the first courses' first. Calls
/// `push(course, id)` for every new token, until it answers that the course is done.
pub fn advance<D: Decoder>(
    decoder: &mut D,
    courses: &mut [&mut Course<D::Sequence>],
    at_once: usize,
    found: &mut Found,
    push: &mut dyn FnMut(usize, u32) -> bool,
) -> Result<(), Failed> {
    let parts = plan(courses, at_once);
    if parts.is_empty() {
        return Ok(());
    }
    let mut planned = parts.iter().peekable();
    let mut spans = Vec::with_capacity(parts.len());
    for (which, course) in courses.iter_mut().enumerate() {
        let Some(part) = planned.next_if(|part| part.which == which) else { continue };
        let ids = &course.ids[course.standing..][..part.rows];
        spans.push(Span { sequence: &mut course.sequence, ids, wanted: part.wanted });
    }
    decoder.forward(&mut spans, found)?;
    let (mut ids, mut row) = (found.ids.iter().copied(), 0);
    for part in &parts {
        let course = &mut *courses[part.which];
        course.standing += part.rows;
        match part.wanted {
            Wanted::Nothing | Wanted::EveryLogits => continue,
            Wanted::Logits => {
                let id = sample(found.logits.row(row), &course.sampling, &mut course.rng);
                row += 1;
                course.take(id, part.which, push);
            }
            Wanted::Largest => {
                ids.by_ref().take(1).for_each(|id| course.take(id, part.which, push));
            }
            Wanted::EveryLargest => {
                let likeliest: Vec<u32> = ids.by_ref().take(part.rows).collect();
                course.verify(&likeliest, part, push);
            }
        }
        let stands = if course.use_cache { course.ids.len() - 1 } else { 0 };
        if course.standing != stands {
            course.standing = stands;
            decoder.truncate(&mut course.sequence, stands);
        }
    }
    Ok(())
}

/// Drafts are put behind the ids, where the network reads them.
fn plan<S>(courses: &mut [&mut Course<S>], at_once: usize) -> Vec<Part> {
    let (mut parts, mut left) = (Vec::with_capacity(courses.len()), at_once);
    for (which, course) in courses.iter_mut().enumerate() {
        if course.is_decoding() {
            // The last of the tokens that may still come needs no draft: it is never fed.
            let most = course.lookup.min(course.most.saturating_sub(course.ids.len() + 1));
            let drafted = lookup::draft(&mut course.ids, most);
            let wanted = if drafted > 0 { Wanted::EveryLargest } else { course.wanted() };
            parts.push(Part { which, rows: 1 + drafted, drafted, wanted });
            continue;
        }
        let rows = course.waiting().min(left);
        left -= rows;
        if rows > 0 {
            let wanted = if rows == course.waiting() { course.wanted() } else { Wanted::Nothing };
            parts.push(Part { which, rows, drafted: 0, wanted });
        }
    }
    parts
}

impl<S> Course<S> {
    fn take(&mut self, id: u32, which: usize, push: &mut dyn FnMut(usize, u32) -> bool) {
        self.ids.push(id);
        self.done = !push(which, id);
    }

    /// Takes the likeliest ids for as long as they are what was drafted, and the one after.
    fn verify(&mut self, likeliest: &[u32], part: &Part, push: &mut dyn FnMut(usize, u32) -> bool) {
        let drafts = self.ids.split_off(self.ids.len() - part.drafted);
        for (place, &id) in likeliest.iter().enumerate() {
            self.take(id, part.which, push);
            if self.done || drafts.get(place) != Some(&id) {
                return;
            }
        }
    }
}
