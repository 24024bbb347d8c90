//! Spans of a request that should be close to zero: time before `start_ns` and after `end_ns`, time after the last token, the
//! delay of streamed tokens.

use super::super::configuration_data::ConfigurationData;
use crate::record::Sample;

/// The length of a span in nanoseconds, if the request has one.
pub type Length = fn(&ConfigurationData, &Sample) -> Option<u64>;

/// The time of a request before `start_ns` and after `end_ns`.
pub fn left_out(subject: &ConfigurationData, sample: &Sample) -> Option<u64> {
    // Without `hello`, the model is loaded in the first request before its `start_ns`, so this request has no such span.
    let is_loaded = subject.launches.get(&sample.launch).is_some_and(|launch| launch.hello.is_some());
    let counted = sample.iteration.end_ns.saturating_sub(sample.iteration.start_ns);
    (is_loaded || sample.index > 0).then(|| sample.elapsed_ns().saturating_sub(counted))
}

/// The time from the last token to `end_ns`.
pub fn after_last(_: &ConfigurationData, sample: &Sample) -> Option<u64> {
    let sequences = sample.iteration.sequences.iter();
    let last = sequences.filter_map(|sequence| match (&sequence.token_ns, &sequence.chunks) {
        (Some(times), _) => times.last().copied(),
        (None, chunks) => chunks.as_ref()?.last().map(|chunk| chunk.ns),
    });
    last.max().map(|last_ns| sample.iteration.end_ns.saturating_sub(last_ns))
}

/// The larger of the delays of the first token and of the median token: an engine may stamp only the first token early.
pub fn token_delay(_: &ConfigurationData, sample: &Sample) -> Option<u64> {
    let late = sample.late?;
    Some(u64::try_from(late.first_ns.max(late.median_ns)).unwrap_or(0))
}
