//! Compares the number of threads that an engine reports with the CPU time of its processes during requests.

use super::configuration_data::{About, ConfigurationData, Contradiction, time};
use crate::analysis::metric::CoresBusy;
use crate::text::three_digits;

/// The least time of all requests together: a kernel that counts ticks is not precise over less time.
const MIN_TOTAL_NS: f64 = 5e8;
/// The least mean time of a request: CPU time is read a little before the request and a little after the answer.
const MIN_MEAN_NS: f64 = 2e6;
/// The least share of busy threads. Threads wait for one another and for memory; the best engines keep nine tenths of their
/// threads busy. Below this share, some of the reported threads did nothing.
const MIN_BUSY_SHARE: f64 = 0.6;
/// The cores that additional threads may use: a thread that reads requests, a thread that writes answers, a garbage collector.
const MAX_EXTRA_CORES: f64 = 0.3;
/// The largest mean number of threads that were ready but waited for a core. If more threads waited, other programs used the
/// cores, and the number of busy cores proves nothing.
const MAX_WAITING_THREADS: f64 = 0.1;

/// A case with its busy cores.
type CaseCores = (usize, CoresBusy);

pub fn contradictions(subject: &ConfigurationData, _: &[ConfigurationData]) -> Vec<Contradiction> {
    // More threads than reported are an advantage over the other engines.
    BusyCores::of(subject).and_then(|busy| busy.more_than_reported(subject)).into_iter().collect()
}

/// One sentence on all cases with idle threads. Many correct engines are parallel in prefill and serial in decode, and idle
/// threads are no advantage. But a reader who compares speeds per thread should know it.
pub fn remark(subject: &ConfigurationData) -> Option<String> {
    let busy = BusyCores::of(subject)?;
    if busy.more_than_reported(subject).is_some() { None } else { busy.fewer_than_reported(subject) }
}

/// The busy cores of the cases of an engine, and the threads that it reports.
struct BusyCores {
    reported: u32,
    cases: Vec<CaseCores>,
}

impl BusyCores {
    fn of(subject: &ConfigurationData) -> Option<Self> {
        let reported = subject.fact(|facts| facts.threads).filter(|_| subject.all_work_is_observed())?;
        let cases = subject.cases().filter_map(|case| Some((case, busy(subject, case)?))).collect();
        Some(Self { reported, cases })
    }

    fn more_than_reported(&self, subject: &ConfigurationData) -> Option<Contradiction> {
        let reported = self.reported;
        let is_more = |(_, busy): &&CaseCores| busy.cores > f64::from(reported) + MAX_EXTRA_CORES;
        let too_many = self.cases.iter().filter(is_more);
        let (case, busy) = too_many.max_by(|(_, a), (_, b)| a.cores.total_cmp(&b.cores))?;
        let cores = three_digits(busy.cores);
        let message = format!(
            "reports {}, but kept {cores} cores busy in {} (CPU time over {} of measured requests)",
            threads(reported),
            subject.case_name(*case),
            time(busy.elapsed_ns),
        );
        Some(subject.contradiction(About::Threads, threads(reported), format!("{cores} cores"), &message))
    }

    fn fewer_than_reported(&self, subject: &ConfigurationData) -> Option<String> {
        let reported = self.reported;
        let allowed = subject.record.header.machine.cpu.allowed_cores;
        let min_cores = MIN_BUSY_SHARE * f64::from(reported);
        if reported < 2 || allowed.is_some_and(|allowed| reported > allowed) {
            return None;
        }
        // Between requests that arrive at their own times, an engine has nothing to do.
        let is_idle = |case: usize| subject.record.header.plan.cases[case].workload.shape.has_arrivals();
        let undisturbed =
            self.cases.iter().filter(|(case, busy)| busy.waited <= MAX_WAITING_THREADS && !is_idle(*case));
        let (below, others): (Vec<CaseCores>, Vec<CaseCores>) =
            undisturbed.partition(|(_, busy)| busy.cores < min_cores);
        if below.is_empty() {
            return None;
        }
        let list = |cases: &[CaseCores]| -> String {
            let cell = |(case, busy): &CaseCores| {
                format!("{} in {}", three_digits(busy.cores), subject.case_name(*case))
            };
            cases.iter().map(cell).collect::<Vec<_>>().join(", ")
        };
        let elsewhere =
            if others.is_empty() { String::new() } else { format!("; elsewhere {}", list(&others)) };
        let over = time(below.iter().map(|(_, busy)| busy.elapsed_ns).sum());
        Some(format!(
            "reports {}, but kept fewer cores busy: {} (CPU time over {over} of measured requests){elsewhere}",
            threads(reported),
            list(&below),
        ))
    }
}

fn threads(reported: u32) -> String {
    format!("{reported} {}", if reported == 1 { "thread" } else { "threads" })
}

/// The busy cores of a case over all launches together; `None` if its requests are too short, each or in total.
fn busy(subject: &ConfigurationData, case: usize) -> Option<CoresBusy> {
    let busy = CoresBusy::of(subject.values.samples(case))?;
    let is_precise = busy.elapsed_ns >= MIN_TOTAL_NS && busy.elapsed_ns >= MIN_MEAN_NS * busy.requests as f64;
    is_precise.then_some(busy)
}
