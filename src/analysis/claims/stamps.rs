//! Checks the time stamps of tokens. A request for many tokens takes longer than one for one token, on the orchestrator's clock.
//! The difference is the time of the other tokens. An engine that makes all tokens first and stamps them together at the end
//! states a decode that no clock inside the request can refute.

use protocol::Stamp;

use super::contradiction::{About, Contradiction, time};
use super::subject::Subject;
use crate::record::Sample;

/// The least share of this time between a correct engine's stamps. The missing half is more than a machine's noise explains.
const MIN_STAMPED_SHARE: f64 = 0.5;
/// The least time of the other tokens: a busy machine may delay every request by less, as in `clock`.
const MIN_NS: f64 = 20e6;
/// The least ratio of this time to that of one token: the noise of a long prompt hides the time of few tokens.
const MIN_SHARE: f64 = 0.25;
/// The least number of requests: of fewer, even the shortest may be delayed.
const MIN_SAMPLES: usize = 3;

pub fn contradictions(subject: &Subject, _: &[Subject]) -> Vec<Contradiction> {
    let stamp = subject.launches.values().find_map(|launch| launch.hello.as_ref()).map(|hello| hello.stamp);
    if stamp == Some(Stamp::End) {
        return Vec::new();
    }
    subject.cases().find_map(|case| contradiction(subject, case)).into_iter().collect()
}

fn contradiction(subject: &Subject, case: usize) -> Option<Contradiction> {
    let samples: Vec<&Sample> = subject.values.samples(case).collect();
    let of_it = subject.record.passes.iter();
    let of_it = of_it.filter(|pass| pass.case == case && subject.launches.contains_key(&pass.launch));
    let one_ns = of_it.filter_map(|pass| pass.one_token_ns).min()? as f64;
    // The shortest of many requests, as for one token.
    let quietest = samples.iter().min_by_key(|sample| sample.elapsed_ns())?;
    let made_ns = quietest.elapsed_ns() as f64 - one_ns;
    let stamped_ns = stamped_ns(quietest)? as f64;
    let tells = samples.len() >= MIN_SAMPLES && made_ns > MIN_NS && made_ns > MIN_SHARE * one_ns;
    if !tells || stamped_ns >= MIN_STAMPED_SHARE * made_ns {
        return None;
    }
    let (reported, observed) = (time(stamped_ns), time(made_ns));
    let says = format!(
        "stamps its tokens in {} within {reported}, but a request for them takes {observed} longer than a request for one \
         token: the stamps are wrong",
        subject.name_of(case)
    );
    Some(subject.contradiction(About::Clock, true, reported, observed, &says))
}

/// The time from its first token to its last, by its own stamps.
fn stamped_ns(sample: &Sample) -> Option<u64> {
    let [sequence] = sample.iteration.sequences.as_slice() else { return None };
    let times = sequence.token_ns.as_deref()?;
    times.last()?.checked_sub(*times.first()?)
}

#[cfg(test)]
mod tests {
    use super::super::specimen::{BEACONS, contradictions, decoding, measured_samples};
    use crate::record::Pass;

    /// Whether the check reports requests that take this much longer than one for one token, with no time between their tokens.
    fn is_told(longer_ns: u64) -> bool {
        let record = decoding(|record| {
            let case = record.header.plan.cases_of(BEACONS)[0];
            let launch = record.launches.iter().find(|it| it.configuration == BEACONS).unwrap().launch;
            record.passes.push(Pass { launch, case, one_token_ns: Some(10_000_000), ..Pass::default() });
            for sample in measured_samples(record) {
                sample.answered_ns = sample.sent_ns + 10_000_000 + longer_ns;
                let times = sample.iteration.sequences[0].token_ns.as_mut().unwrap();
                let last = times[times.len() - 1];
                times.fill(last);
            }
        });
        contradictions(&record).iter().any(|it| it.message.contains("the stamps are wrong"))
    }

    #[test]
    fn tokens_stamped_together_are_reported_beyond_the_noise_of_a_machine() {
        assert!(is_told(100_000_000));
        assert!(!is_told(15_000_000));
    }
}
