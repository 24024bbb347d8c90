//! Finds tokens that are stamped in groups by an engine that reports exact times of each token. Nearly no time passes between
//! the tokens of a group, so the inter-token latency is close to zero, though no token was that fast.
//!
//! On a busy machine the tokens of a correct engine come in groups too: a scheduler lets it run for some milliseconds, then
//! pauses it. Then only much smaller gaps count.

use protocol::Stamp;

use super::super::configuration_data::{About, ConfigurationData, Contradiction, time};
use crate::analysis::metric::{self, MetricId};
use crate::record::Sample;
use crate::text::plural;
use stats::quantile;

/// The quantile of the gaps that is compared with the mean gap. In groups of two, half of the gaps are small.
const SMALL_QUANTILE: f64 = 0.45;
/// The least ratio of the quantile `SMALL_QUANTILE` to the mean gap for an engine that stamps each token. With simulated
/// engines that share each core with one other program, the ratio falls to 0.5.
const MIN_RATIO: f64 = 0.25;
/// The least ratio on a busy machine. With simulated engines that share each core with eight other programs, the ratio
/// falls to 0.12.
const MIN_RATIO_IF_BUSY: f64 = 0.05;
/// The largest mean number of an engine's threads that wait for a core on a quiet machine; the same as in `threads.rs`.
const MAX_WAITING_THREADS: f64 = 0.1;
/// The number of longest gaps of each sequence that the mean gap of a request leaves out: a correct engine may pause, to extend
/// its cache or to collect garbage.
const LEFT_OUT_GAPS: usize = 2;
/// The least number of gaps of a request.
const MIN_GAPS: usize = 8;
/// The least number of requests.
const MIN_REQUESTS: usize = 3;

/// The false claim of an engine that stamps the tokens of a case in groups.
pub fn contradiction(subject: &ConfigurationData, case: usize) -> Option<Contradiction> {
    let stamp = subject.launches.values().find_map(|launch| launch.hello.as_ref()).map(|hello| hello.stamp);
    let inter_token = metric::by_id(MetricId::INTER_TOKEN);
    let requests = subject.values.samples(case).map(|sample| {
        let mut gaps = subject.values.of_request(sample, inter_token);
        gaps.sort_unstable_by(f64::total_cmp);
        // In a batch, each sequence may wait for the prompts of the others.
        let left_out = LEFT_OUT_GAPS * sample.iteration.sequences.len().max(1);
        (gaps, left_out)
    });
    let requests: Vec<(Vec<f64>, usize)> =
        requests.filter(|(gaps, left_out)| gaps.len() >= MIN_GAPS && gaps.len() > 2 * left_out).collect();
    if stamp != Some(Stamp::Token) || requests.len() < MIN_REQUESTS {
        return None;
    }
    let mean_gap = |(gaps, left_out): &(Vec<f64>, usize)| {
        let counted = &gaps[..gaps.len() - left_out];
        counted.iter().sum::<f64>() / counted.len() as f64
    };
    // The fastest request is the one that other programs disturbed least.
    let mean_ns = requests.iter().map(mean_gap).reduce(f64::min)?;
    let mut gaps: Vec<f64> = requests.into_iter().flat_map(|(gaps, _)| gaps).collect();
    gaps.sort_unstable_by(f64::total_cmp);
    let is_quiet = is_quiet(subject.values.samples(case));
    let bound_ns = mean_ns * if is_quiet { MIN_RATIO } else { MIN_RATIO_IF_BUSY };
    if quantile(&gaps, SMALL_QUANTILE)? >= bound_ns {
        return None;
    }
    let small = gaps.iter().filter(|gap| **gap < bound_ns).count();
    let (mean, count) = (time(mean_ns), plural(gaps.len(), "gap"));
    let message = format!(
        "stamps its tokens in {} in groups: {small} of {count} between its tokens are below {}, and the mean gap is {mean}: these \
         are no times of single tokens; hint: report `\"stamp\":\"chunk\"`",
        subject.case_name(case),
        time(bound_ns)
    );
    let reported = "the time of each token".to_string();
    Some(subject.contradiction(
        About::Clock,
        reported,
        format!("{small} of {count} below {}", time(bound_ns)),
        &message,
    ))
}

/// Whether the threads of the engine got a core when they needed one. False if the kernel does not count their waiting.
fn is_quiet<'a>(mut samples: impl Iterator<Item = &'a Sample>) -> bool {
    let sums = samples.try_fold((0.0, 0.0), |(waited, elapsed), sample| {
        Some((waited + sample.waited_ns? as f64, elapsed + sample.elapsed_ns() as f64))
    });
    sums.is_some_and(|(waited, elapsed)| waited <= MAX_WAITING_THREADS * elapsed)
}
