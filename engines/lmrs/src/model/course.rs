//! The state of a sequence from its prompt to its last token, and the step that advances several sequences together.

use std::slice;

use engine_kit::Job;
use engine_kit::sampling::{Rng, sample};
use protocol::{Failed, Sampling};

use super::decoder::{Decoder, Found, Span, Wanted};
use super::step::{self, Pace, Part};

pub struct Course<S> {
    sequence: S,
    ids: Vec<u32>,
    prompt: usize,
    /// Ids that the sequence's cache holds: all but the last when a token is made, and 0 without the cache.
    standing: usize,
    /// The most ids that there can be.
    most: usize,
    /// `None` means greedy.
    sampling: Option<Sampling>,
    rng: Rng,
    use_cache: bool,
    lookup: usize,
    done: bool,
}

impl<S> Course<S> {
    /// The state before the first step. `index` is the sequence's index in its job. Only greedy sequences with a cache draft
    /// ids, because a draft is compared with the likeliest id.
    pub fn new(sequence: S, prompt: &[u32], index: usize, job: &Job, lookup: usize) -> Self {
        let most = prompt.len() + job.max_new_tokens as usize;
        let may_draft = job.sampling.is_none() && job.use_cache;
        Self {
            sequence,
            ids: prompt.to_vec(),
            prompt: prompt.len(),
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

    pub fn into_sequence(self) -> S {
        self.sequence
    }

    /// Generated tokens.
    pub fn made(&self) -> usize {
        self.ids.len() - self.prompt
    }

    /// Ids that the sequence does not hold yet.
    pub fn waiting(&self) -> usize {
        self.ids.len() - self.standing
    }

    pub fn wanted(&self) -> Wanted {
        if self.sampling.is_some() { Wanted::Logits } else { Wanted::Largest }
    }

    /// The most ids that may be drafted now. The last possible token needs no draft: it never enters the network.
    pub fn may_draft(&self) -> usize {
        self.lookup.min(self.most.saturating_sub(self.ids.len() + 1))
    }

    pub fn ids_mut(&mut self) -> &mut Vec<u32> {
        &mut self.ids
    }
}

/// A callback for each new token of a course, or for its failure. It returns whether the course continues.
pub type Take<'a> = dyn FnMut(usize, Result<u32, Failed>) -> bool + 'a;

/// Runs one step of all courses.
pub fn advance<D: Decoder>(
    decoder: &mut D,
    courses: &mut [&mut Course<D::Sequence>],
    pace: Pace,
    found: &mut Found,
    take: &mut Take,
) {
    let parts = step::plan(courses, pace);
    let mut left = parts.as_slice();
    while !left.is_empty() {
        let (now, later) = left.split_at(step::together(left));
        attempt(decoder, courses, now, found, take);
        left = later;
    }
}

/// Runs one pass. If it fails, each part runs alone, and only parts that fail alone have failed.
fn attempt<D: Decoder>(
    decoder: &mut D,
    courses: &mut [&mut Course<D::Sequence>],
    parts: &[Part],
    found: &mut Found,
    take: &mut Take,
) {
    let Err(failed) = pass(decoder, courses, parts, found, take) else { return };
    if let [part] = parts {
        courses[part.which].done = true;
        take(part.which, Err(failed));
        return;
    }
    for part in parts {
        let course = &mut *courses[part.which];
        decoder.truncate(&mut course.sequence, course.standing);
        attempt(decoder, courses, slice::from_ref(part), found, take);
    }
}

/// Runs one pass through the network. `parts` are in the order of the courses.
fn pass<D: Decoder>(
    decoder: &mut D,
    courses: &mut [&mut Course<D::Sequence>],
    parts: &[Part],
    found: &mut Found,
    take: &mut Take,
) -> Result<(), Failed> {
    let mut planned = parts.iter().peekable();
    let mut spans = Vec::with_capacity(parts.len());
    for (which, course) in courses.iter_mut().enumerate() {
        let Some(part) = planned.next_if(|part| part.which == which) else { continue };
        let ids = &course.ids[course.standing..][..part.rows];
        spans.push(Span { sequence: &mut course.sequence, ids, wanted: part.wanted });
    }
    decoder.forward(&mut spans, found)?;
    let (mut ids, mut row) = (found.ids.iter().copied(), 0);
    for part in parts {
        let course = &mut *courses[part.which];
        course.standing += part.rows;
        match part.wanted {
            Wanted::Nothing => continue,
            Wanted::Logits => {
                let id = sample(found.logits.row(row), &course.sampling, &mut course.rng);
                row += 1;
                course.push(id, part.which, take);
            }
            Wanted::Largest => {
                ids.by_ref().take(1).for_each(|id| course.push(id, part.which, take));
            }
            Wanted::EveryLargest => {
                let likeliest: Vec<u32> = ids.by_ref().take(part.rows).collect();
                course.verify(&likeliest, part, take);
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

impl<S> Course<S> {
    fn push(&mut self, id: u32, which: usize, take: &mut Take) {
        self.ids.push(id);
        self.done = !take(which, Ok(id));
    }

    /// Accepts the likeliest ids as long as they equal the drafts, and one more.
    fn verify(&mut self, likeliest: &[u32], part: &Part, take: &mut Take) {
        let drafts = self.ids.split_off(self.ids.len() - part.drafted);
        for (place, &id) in likeliest.iter().enumerate() {
            self.push(id, part.which, take);
            if self.done || drafts.get(place) != Some(&id) {
                return;
            }
        }
    }
}
