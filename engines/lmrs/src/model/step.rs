//! Which rows take part in a step, and which of them go through the network together.
//!
//! A request's ids must not depend on what else is under way. So rows that make the next token go in passes of at most `FEW`,
//! in which each is computed as it would be alone, and never in one with a long prompt; and the passes that read long prompts
//! have none but pieces of such.

use super::AT_ONCE;
use super::course::Course;
use super::decoder::{FEW, Wanted};
use super::stretch::{LEAST, stretch};
use crate::lookup;

/// Rows of prompts in a step in which others wait for their next token.
const BESIDE: usize = 128;

/// Who goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// The sequences of one request: all prompts are read before any sequence goes on, so that their tokens are then made
    /// together.
    Together,
    /// Several requests: each that decodes makes a token in every step, and prompts share what rows there are, so that a short
    /// one does not wait until a long one is read.
    Shared,
}

/// What a course does in a step.
#[derive(Debug)]
pub struct Part {
    pub which: usize,
    pub rows: usize,
    pub drafted: usize,
    pub wanted: Wanted,
    kind: Kind,
}

/// Passes are of one kind, and come in this order: who waits for a token does not wait for prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Every row makes a token, or checks a draft.
    Tokens,
    /// Prompts of a few rows, whole.
    Short,
    /// Pieces of longer ones.
    Long,
}

/// Kind by kind. Drafts are put behind the ids, where the network reads them.
pub fn plan<S>(courses: &mut [&mut Course<S>], pace: Pace) -> Vec<Part> {
    let begun = courses.iter().any(|course| course.made() > 0);
    let unread = courses.iter().any(|course| course.made() == 0);
    let holds_back = pace == Pace::Together && unread;
    let mut order: Vec<usize> = (0..courses.len()).collect();
    // Without the cache all rows of a sequence are read for each of its tokens: who has fewest is next.
    order.sort_by_key(|which| courses[*which].made());
    let mut reading = courses.iter().filter(|course| course.waiting() > FEW).count();
    let mut left = if pace == Pace::Shared && begun { BESIDE } else { AT_ONCE };
    let mut parts = Vec::with_capacity(courses.len());
    for which in order {
        let course = &mut *courses[which];
        if holds_back && course.made() > 0 {
            continue;
        }
        if course.waiting() <= FEW {
            parts.push(few(course, which));
            continue;
        }
        let share = if pace == Pace::Shared { (left / reading.max(1)).max(LEAST) } else { left };
        reading = reading.saturating_sub(1);
        let room = share.min(left);
        if room < LEAST && course.waiting() > room {
            continue;
        }
        let rows = stretch(course.waiting(), room);
        left -= rows;
        let wanted = if rows == course.waiting() { course.wanted() } else { Wanted::Nothing };
        parts.push(Part { which, rows, drafted: 0, wanted, kind: Kind::Long });
    }
    parts.sort_by_key(|part| (part.kind, part.which));
    parts
}

fn few<S>(course: &mut Course<S>, which: usize) -> Part {
    let rows = course.waiting();
    if rows > 1 {
        return Part { which, rows, drafted: 0, wanted: course.wanted(), kind: Kind::Short };
    }
    let most = course.may_draft();
    let drafted = lookup::draft(course.ids_mut(), most);
    let wanted = if drafted > 0 { Wanted::EveryLargest } else { course.wanted() };
    Part { which, rows: 1 + drafted, drafted, wanted, kind: Kind::Tokens }
}

/// How many of these parts, from the first, go through the network in one pass: of one kind, with no more than `FEW` rows that
/// are computed to their logits.
pub fn together(parts: &[Part]) -> usize {
    let mut rows = 0;
    let fits = |part: &&Part| {
        rows += match part.kind {
            Kind::Tokens | Kind::Short => part.rows,
            Kind::Long => usize::from(part.wanted != Wanted::Nothing),
        };
        part.kind == parts[0].kind && rows <= FEW
    };
    // A draft may be longer than that by itself.
    parts.iter().take_while(fits).count().max(1)
}
