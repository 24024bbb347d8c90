//! The processor time that its processes had while they answered, against the threads that it says it computes with.

use super::{About, Doubt, Subject, time};
use crate::analysis::cores::CoresBusy;
use crate::text::three_digits;

/// Over less than this a kernel that counts in ticks says little.
const LEAST_NS: f64 = 5e8;
/// Processor time is read a little before a request and a little after its answer. Where requests are shorter on average, that
/// would show.
const SHORTEST_NS: f64 = 2e6;
/// Threads wait for one another and for memory; the best engines keep nine tenths of theirs busy. Below this share of what it
/// states, some of its threads did nothing.
const BUSY: f64 = 0.6;
/// A thread that reads requests, one that writes answers, a collector of garbage.
const BESIDES: f64 = 0.3;

/// Where its threads waited for more of a core than this, something else had the cores: others of them then wait for those,
/// and what it would have kept busy cannot be told.
const CROWDED: f64 = 0.1;

/// Of one case.
struct Busy {
    case: usize,
    busy: CoresBusy,
}

pub fn doubts(subject: &Subject, _: &[Subject]) -> Vec<Doubt> {
    if !subject.works_here() {
        return Vec::new();
    }
    let Some(stated) = subject.fact(|facts| facts.threads) else { return Vec::new() };
    let cases: Vec<Busy> = subject.cases().filter_map(|case| busy(subject, case)).collect();
    let more = cases.iter().filter(|it| it.busy.cores > f64::from(stated) + BESIDES);
    let more = more.max_by(|one, other| one.busy.cores.total_cmp(&other.busy.cores));
    let beyond = more.map(|most| {
        let cores = three_digits(most.busy.cores);
        let says = format!(
            "states {}, and kept {cores} cores busy in {} (processor time over {} of measured requests): it computes with \
             more than it states",
            threads(stated),
            subject.name_of(most.case),
            time(most.busy.elapsed_ns),
        );
        // Work by more threads than the others have is what a comparison must not reward.
        subject.doubt(About::Threads, true, threads(stated), format!("{cores} cores"), &says)
    });
    beyond.or_else(|| too_few(subject, stated, &cases)).into_iter().collect()
}

/// Every case is told in which threads were idle, in one sentence: many an engine is parallel in its prompt and serial in its
/// tokens, and a reader who compares per thread should know. It gains nothing by it.
fn too_few(subject: &Subject, stated: u32, cases: &[Busy]) -> Option<Doubt> {
    let allowed = subject.record.header.machine.cpu.allowed_cores;
    let bound = BUSY * f64::from(stated);
    if stated < 2 || allowed.is_some_and(|allowed| stated > allowed) {
        return None;
    }
    let told = cases.iter().filter(|it| it.busy.waited <= CROWDED);
    let (below, others): (Vec<&Busy>, Vec<&Busy>) = told.partition(|it| it.busy.cores < bound);
    let least = below.iter().map(|it| it.busy.cores).reduce(f64::min)?;
    let list = |of: &[&Busy]| -> String {
        let each =
            of.iter().map(|it| format!("{} in {}", three_digits(it.busy.cores), subject.name_of(it.case)));
        each.collect::<Vec<_>>().join(", ")
    };
    let elsewhere = if others.is_empty() { String::new() } else { format!("; elsewhere {}", list(&others)) };
    let over = time(below.iter().map(|it| it.busy.elapsed_ns).sum());
    let says = format!(
        "states {}, and kept fewer cores busy: {} (processor time over {over} of measured requests){elsewhere}",
        threads(stated),
        list(&below),
    );
    let seen = format!("{} cores", three_digits(least));
    Some(subject.doubt(About::Threads, false, threads(stated), seen, &says))
}

fn threads(stated: u32) -> String {
    format!("{stated} {}", if stated == 1 { "thread" } else { "threads" })
}

/// Over all launches together, where that is long enough to say something.
fn busy(subject: &Subject, case: usize) -> Option<Busy> {
    let busy = CoresBusy::of(subject.values.samples(case))?;
    let says = busy.elapsed_ns >= LEAST_NS && busy.elapsed_ns >= SHORTEST_NS * busy.requests as f64;
    says.then_some(Busy { case, busy })
}
