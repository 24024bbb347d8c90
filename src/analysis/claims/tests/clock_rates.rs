//! The rates of the checks of clocks, over simulated runs: how many correct engines are contradicted, and how many false clocks are
//! found. The busy machine is that of `tests/records/default-suite.jsonl`: half of the requests of about 40 ms were answered more
//! than 2 ms after their stamped end. The crowded machine runs eight compilers on two cores: 85 % of the requests above 20 ms,
//! and 15 % of the shorter ones, were answered 2 to 14 ms late.

use super::*;
use stats::Random;

const RUNS: u64 = 300;
const MS: f64 = 1e6;

/// The load of the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Machine {
    Quiet,
    Busy,
    Crowded,
}

impl Machine {
    /// The longest stall after each three milliseconds of work.
    fn max_stall_ns(self) -> f64 {
        match self {
            Machine::Quiet => 0.0,
            Machine::Busy => 3.0 * MS,
            Machine::Crowded => 9.0 * MS,
        }
    }

    /// The delay of the answer to a request of this length.
    fn delay_ns(self, length_ns: f64, random: &mut Random) -> f64 {
        let is_long = length_ns >= 20.0 * MS;
        match self {
            Machine::Busy if random.chance(if is_long { 0.8 } else { 0.4 }) => -4.0 * MS * random.unit().ln(),
            Machine::Crowded if random.chance(if is_long { 0.85 } else { 0.15 }) => {
                (2.0 + 12.0 * random.unit()) * MS
            }
            _ => 0.0,
        }
    }
}

/// How an engine stamps the times of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Clock {
    Correct,
    /// Times are this share of the true times, in requests under 40 ms.
    Early(f64),
    /// The first token is stamped at this share of its time, and the end is true.
    EarlyFirstToken(f64),
    /// Tokens are stamped in groups of four, each group with the time of its first token.
    Groups,
}

/// A record of five blocks in which beacon has this clock. `time_factor` multiplies all its times.
fn simulated(template: &RunRecord, machine: Machine, clock: Clock, time_factor: f64, seed: u64) -> RunRecord {
    let mut record = template.clone();
    let mut random = Random::seeded(seed);
    // Reading a request and writing an answer: 0.05 ms in a compiled engine, 2.5 ms in Python.
    let overhead_ns = 0.05 * MS * 50f64.powf(random.unit());
    let is_busy = machine != Machine::Quiet;
    for sample in samples(&mut record) {
        let slowdown = time_factor * if is_busy { 1.0 + 0.3 * random.unit() } else { 1.0 };
        let start_ns = sample.iteration.start_ns;
        let sequence = &mut sample.iteration.sequences[0];
        let times = sequence.token_ns.as_mut().unwrap();
        let mut stalled_ns = 0.0;
        // The scheduler of a busy machine lets an engine run for some milliseconds, then other programs.
        let mut slice_ns = 3.0 * MS * random.unit();
        let mut previous = start_ns;
        for ns in times.iter_mut() {
            let gap_ns = (*ns - previous) as f64 * slowdown * (0.05 * random.normal()).exp();
            previous = *ns;
            slice_ns -= gap_ns;
            while is_busy && slice_ns < 0.0 {
                slice_ns += 3.0 * MS;
                stalled_ns += machine.max_stall_ns() * random.unit();
            }
            *ns = start_ns + ((previous - start_ns) as f64 * slowdown + stalled_ns) as u64;
        }
        let true_end_ns = times[times.len() - 1] + 5_000;
        let length_ns = (true_end_ns - start_ns) as f64;
        let share = |ns: u64, share: f64| start_ns + ((ns - start_ns) as f64 * share) as u64;
        let mut end_ns = true_end_ns;
        match clock {
            Clock::Early(early) if length_ns < 40.0 * MS => {
                times.iter_mut().for_each(|ns| *ns = share(*ns, early));
                end_ns = share(end_ns, early);
            }
            Clock::EarlyFirstToken(early) => times[0] = share(times[0], early),
            Clock::Groups => times.chunks_mut(4).for_each(|group| group.fill(group[0])),
            Clock::Correct | Clock::Early(_) => {}
        }
        let delay_ns = machine.delay_ns(length_ns, &mut random);
        let own_overhead_ns = overhead_ns * (0.15 * random.normal()).exp() + 0.003 * length_ns;
        sample.iteration.end_ns = end_ns;
        sample.answered_ns = sample.sent_ns + true_end_ns + (own_overhead_ns + delay_ns) as u64;
        let elapsed_ns = sample.elapsed_ns();
        sample.cpu_ns = Some(2 * elapsed_ns);
        // Two threads wait.
        sample.waited_ns = Some(2 * stalled_ns as u64);
    }
    record
}

/// The messages that contradict beacon's clock in `RUNS` simulated runs, at most one for each run.
fn contradicted(machine: Machine, clock: Clock, time_factors: [f64; 2]) -> Vec<String> {
    let template = record_of_blocks(5, &["ttft", "prefill", "decode"], |_| {});
    let [shortest, longest] = time_factors.map(f64::ln);
    let accusation = |run: u64| {
        let time_factor = (shortest + (longest - shortest) * (run as f64 / RUNS as f64)).exp();
        let record = simulated(&template, machine, clock, time_factor, run);
        let mut all = contradictions(&record).into_iter();
        all.find(|it| (it.configuration, it.about) == (BEACON_INDEX, About::Clock)).map(|it| it.message)
    };
    (0..RUNS).filter_map(accusation).collect()
}

/// Factors with which requests take from a tenth of a millisecond to seconds.
const ALL_LENGTHS: [f64; 2] = [0.02, 20.0];
/// Factors with which some requests take 5 to 40 ms. In shorter requests, a share of the time is less than
/// the noise.
const SHORT_REQUESTS: [f64; 2] = [0.3, 3.0];

#[test]
fn correct_clocks_are_contradicted_in_no_simulated_run() {
    for machine in [Machine::Quiet, Machine::Busy, Machine::Crowded] {
        assert_eq!(contradicted(machine, Clock::Correct, ALL_LENGTHS), Vec::<String>::new(), "{machine:?}");
    }
}

#[test]
fn early_stamps_are_found_in_almost_every_simulated_run() {
    for (machine, at_least) in [(Machine::Quiet, RUNS as usize), (Machine::Busy, RUNS as usize * 95 / 100)] {
        for clock in [Clock::Early(0.5), Clock::Early(0.75), Clock::EarlyFirstToken(0.75)] {
            let found = contradicted(machine, clock, SHORT_REQUESTS).len();
            assert!(found >= at_least, "{machine:?} {clock:?}: {found} of {RUNS}");
        }
    }
}

#[test]
fn tokens_stamped_in_groups_are_found_in_every_simulated_run() {
    for machine in [Machine::Quiet, Machine::Busy] {
        assert_eq!(contradicted(machine, Clock::Groups, ALL_LENGTHS).len(), RUNS as usize, "{machine:?}");
    }
}
