//! The bytes that its decoding would have moved, against the most that this machine was seen to read: weights are read once
//! for every token, so a rate has a ceiling that no engine passes.

use super::{About, Doubt, Subject};
use crate::metric::{self, Surroundings, three_digits};
use crate::record::Role;
use crate::stats::median;

/// The metric that says which share of the machine's bandwidth a request used; absent where no share means anything.
const SHARE: &str = "bandwidth_share";
/// Probes and requests see the machine at two times, and caches keep a little.
const IMPOSSIBLE: f64 = 1.15;

pub fn doubts(subject: &Subject, _: &[Subject]) -> Vec<Doubt> {
    let Some(metric) = metric::named(SHARE) else { return Vec::new() };
    let around = Surroundings::of(subject.record);
    let worst = subject.cases().into_iter().filter_map(|(case, samples)| {
        let measured = samples.into_iter().filter(|sample| sample.role == Role::Measured);
        let shares: Vec<f64> = measured.flat_map(|sample| subject.values(&around, sample, metric)).collect();
        Some((case, median(&shares).filter(|share| share.is_finite())?))
    });
    let worst = worst.max_by(|one, other| one.1.total_cmp(&other.1));
    worst.and_then(|(case, share)| doubt(subject, case, share)).into_iter().collect()
}

/// `share` is the median over the requests of the case.
fn doubt(subject: &Subject, case: usize, share: f64) -> Option<Doubt> {
    if share <= IMPOSSIBLE {
        return None;
    }
    let stated = subject.fact(|facts| facts.weights_dtype.clone()).unwrap_or_else(|| "unstated".into());
    let seen = format!("{}x", three_digits(share));
    let says = format!(
        "states `{stated}` weights, and to give its tokens in {} as fast as it says it would read {seen} as many bytes as \
         this machine can: its times are too early, or its weights are fewer bytes",
        subject.name_of(case)
    );
    Some(subject.doubt(About::Dtype, true, stated, seen, &says))
}

#[cfg(test)]
mod tests {
    use super::super::specimen::decoding;
    use super::super::subjects;
    use super::*;

    #[test]
    fn a_rate_beyond_what_the_machine_can_read_is_told_and_one_at_its_limit_is_not() {
        let record = decoding(|_| {});
        let subjects = subjects(&record);
        assert_eq!(doubt(&subjects[1], 1, 1.1), None);
        let doubt = doubt(&subjects[1], 1, 1.6).unwrap();
        assert_eq!((doubt.stated.as_str(), doubt.seen.as_str()), ("f32", "1.60x"));
        assert!(doubt.message.starts_with("beacon: states `f32` weights") && doubt.unseats, "{doubt:?}");
    }
}
