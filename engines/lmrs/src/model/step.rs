//! The rows of a step, and their grouping into passes through the network.
//!
//! A request's ids must not depend on other requests. So rows that make the next token go in passes of at most `FEW` rows,
//! where each row gets the same bits as alone. They never go together with a long prompt. Passes for long prompts contain only
//! parts of long prompts.

use super::AT_ONCE;
use super::course::Course;
use super::decoder::{FEW, Wanted};
use super::stretch::{LEAST, stretch};
use crate::lookup;

/// Rows of prompts in a step while other sequences wait for their next token.
const BESIDE: usize = 128;

/// The priority between prompts and tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// The sequences of one request: all prompts are read first, and then the tokens are made together.
    Together,
    /// Several requests: each decoding request makes a token in every step. Prompts share the remaining rows, so that a short
    /// prompt does not wait for a long one.
    Shared,
}

/// The part of a course in a step.
#[derive(Debug)]
pub struct Part {
    pub which: usize,
    pub rows: usize,
    pub drafted: usize,
    pub wanted: Wanted,
    kind: Kind,
}

/// The kind of a pass, in order of execution: tokens never wait for prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Each row makes a token, or checks a draft.
    Tokens,
    /// Whole prompts of a few rows.
    Short,
    /// Parts of longer prompts.
    Long,
}

/// Plans a step, sorted by kind. Drafts are appended to the ids, where the network reads them.
pub fn plan<S>(courses: &mut [&mut Course<S>], pace: Pace) -> Vec<Part> {
    let begun = courses.iter().any(|course| course.made() > 0);
    let unread = courses.iter().any(|course| course.made() == 0);
    let holds_back = pace == Pace::Together && unread;
    let mut order: Vec<usize> = (0..courses.len()).collect();
    // Without the cache, each token reads all rows of its sequence: the sequence with the fewest tokens is next.
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

/// The number of parts, from the first, in the next pass: of one kind, with at most `FEW` rows whose logits are computed.
pub fn together(parts: &[Part]) -> usize {
    let mut rows = 0;
    let fits = |part: &&Part| {
        rows += match part.kind {
            Kind::Tokens | Kind::Short => part.rows,
            Kind::Long => usize::from(part.wanted != Wanted::Nothing),
        };
        part.kind == parts[0].kind && rows <= FEW
    };
    // A single draft may exceed this limit.
    parts.iter().take_while(fits).count().max(1)
}
