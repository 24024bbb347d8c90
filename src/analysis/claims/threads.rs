//! Compares the CPU time of an engine's processes while they answered with the threads that it states.

use super::contradiction::{About, Contradiction, time};
use super::subject::Subject;
use crate::analysis::cores::CoresBusy;
use crate::text::three_digits;

/// The least time of all requests: over less, a kernel that counts in ticks is not precise.
const MIN_NS: f64 = 5e8;
/// The least mean time of a request: CPU time is read a little before it and a little after its answer.
const SHORTEST_NS: f64 = 2e6;
/// The least share of busy threads. Threads wait for one another and for memory; the best engines keep nine tenths of theirs
/// busy. Below this share, some of the reported threads did nothing.
const BUSY: f64 = 0.6;
/// Cores for other threads: one that reads requests, one that writes answers, a garbage collector.
const BESIDES: f64 = 0.3;

/// If its threads waited for more cores than this, other programs had the cores. The cores that it would have used are then
/// unknown.
const CROWDED: f64 = 0.1;

/// The busy cores of one case.
struct Busy {
    case: usize,
    busy: CoresBusy,
}

pub fn contradictions(subject: &Subject, _: &[Subject]) -> Vec<Contradiction> {
    if !subject.works_here() {
        return Vec::new();
    }
    let Some(reported) = subject.fact(|facts| facts.threads) else { return Vec::new() };
    let cases: Vec<Busy> = subject.cases().filter_map(|case| busy(subject, case)).collect();
    let more = cases.iter().filter(|it| it.busy.cores > f64::from(reported) + BESIDES);
    let more = more.max_by(|one, other| one.busy.cores.total_cmp(&other.busy.cores));
    let beyond = more.map(|most| {
        let cores = three_digits(most.busy.cores);
        let says = format!(
            "states {}, but kept {cores} cores busy in {} (CPU time over {} of measured requests)",
            threads(reported),
            subject.name_of(most.case),
            time(most.busy.elapsed_ns),
        );
        // A comparison must not reward more threads than the others have.
        subject.contradiction(About::Threads, true, threads(reported), format!("{cores} cores"), &says)
    });
    beyond.or_else(|| too_few(subject, reported, &cases)).into_iter().collect()
}

/// One sentence on all cases with idle threads. Many engines are parallel in prefill and serial in decode, and readers who
/// compare per thread should know. The engine gains nothing by it.
fn too_few(subject: &Subject, reported: u32, cases: &[Busy]) -> Option<Contradiction> {
    let allowed = subject.record.header.machine.cpu.allowed_cores;
    let bound = BUSY * f64::from(reported);
    if reported < 2 || allowed.is_some_and(|allowed| reported > allowed) {
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
        "states {}, but kept fewer cores busy: {} (CPU time over {over} of measured requests){elsewhere}",
        threads(reported),
        list(&below),
    );
    let observed = format!("{} cores", three_digits(least));
    Some(subject.contradiction(About::Threads, false, threads(reported), observed, &says))
}

fn threads(reported: u32) -> String {
    format!("{reported} {}", if reported == 1 { "thread" } else { "threads" })
}

/// The busy cores over all launches together; `None` where their time is too short.
fn busy(subject: &Subject, case: usize) -> Option<Busy> {
    let busy = CoresBusy::of(subject.values.samples(case))?;
    let says = busy.elapsed_ns >= MIN_NS && busy.elapsed_ns >= SHORTEST_NS * busy.requests as f64;
    says.then_some(Busy { case, busy })
}
