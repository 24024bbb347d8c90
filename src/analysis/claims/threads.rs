//! Compares the CPU time of an engine's processes while they answered with the threads that it states.

use super::subject::{About, Contradiction, Subject, time};
use crate::analysis::metric::CoresBusy;
use crate::text::three_digits;

/// The least time of all requests: over less, a kernel that counts in ticks is not precise.
const MIN_NS: f64 = 5e8;
/// The least mean time of a request: CPU time is read a little before it and a little after its answer.
const MIN_MEAN_NS: f64 = 2e6;
/// The least share of busy threads. Threads wait for one another and for memory; the best engines keep nine tenths of theirs
/// busy. Below this share, some of the reported threads did nothing.
const BUSY: f64 = 0.6;
/// Cores for other threads: one that reads requests, one that writes answers, a garbage collector.
const OTHER_THREADS: f64 = 0.3;
/// If its threads waited for more cores than this, other programs had the cores. The cores that it would have used are then
/// unknown.
const CROWDED: f64 = 0.1;

/// A case with its busy cores.
type Busy = (usize, CoresBusy);

pub fn contradictions(subject: &Subject, _: &[Subject]) -> Vec<Contradiction> {
    if !subject.works_here() {
        return Vec::new();
    }
    let Some(reported) = subject.fact(|facts| facts.threads) else { return Vec::new() };
    let cases: Vec<Busy> = subject.cases().filter_map(|case| Some((case, busy(subject, case)?))).collect();
    let more = cases.iter().filter(|(_, busy)| busy.cores > f64::from(reported) + OTHER_THREADS);
    let more = more.max_by(|(_, one), (_, other)| one.cores.total_cmp(&other.cores));
    let beyond = more.map(|(case, busy)| {
        let cores = three_digits(busy.cores);
        let message = format!(
            "states {}, but kept {cores} cores busy in {} (CPU time over {} of measured requests)",
            threads(reported),
            subject.case_name(*case),
            time(busy.elapsed_ns),
        );
        // A comparison must not reward more threads than the others have.
        subject.contradiction(About::Threads, true, threads(reported), format!("{cores} cores"), &message)
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
    let known = cases.iter().filter(|(_, busy)| busy.waited <= CROWDED);
    let (below, others): (Vec<Busy>, Vec<Busy>) = known.partition(|(_, busy)| busy.cores < bound);
    let least = below.iter().map(|(_, busy)| busy.cores).reduce(f64::min)?;
    let list = |of: &[Busy]| -> String {
        let cell =
            |(case, busy): &Busy| format!("{} in {}", three_digits(busy.cores), subject.case_name(*case));
        of.iter().map(cell).collect::<Vec<_>>().join(", ")
    };
    let elsewhere = if others.is_empty() { String::new() } else { format!("; elsewhere {}", list(&others)) };
    let over = time(below.iter().map(|(_, busy)| busy.elapsed_ns).sum());
    let message = format!(
        "states {}, but kept fewer cores busy: {} (CPU time over {over} of measured requests){elsewhere}",
        threads(reported),
        list(&below),
    );
    let observed = format!("{} cores", three_digits(least));
    Some(subject.contradiction(About::Threads, false, threads(reported), observed, &message))
}

fn threads(reported: u32) -> String {
    format!("{reported} {}", if reported == 1 { "thread" } else { "threads" })
}

/// The busy cores over all launches together; `None` where their time is too short.
fn busy(subject: &Subject, case: usize) -> Option<CoresBusy> {
    let busy = CoresBusy::of(subject.values.samples(case))?;
    let is_precise = busy.elapsed_ns >= MIN_NS && busy.elapsed_ns >= MIN_MEAN_NS * busy.requests as f64;
    is_precise.then_some(busy)
}
