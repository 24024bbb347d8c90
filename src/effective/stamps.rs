//! When its tokens were made, against when it says that they were. A request for one token, and the same for many: what the
//! second takes longer, on the orchestrator's clock, is what the others took. Whoever makes all of them first and stamps them
//! together at the end has a decode that no clock inside the request can doubt.

use protocol::Stamp;

use super::{About, Doubt, Subject, elapsed_ns, time};
use crate::record::Sample;

/// Stamps of an honest engine lie as far apart as its tokens; half of that is beyond what a machine's moods explain.
const HONEST: f64 = 0.5;
/// Shorter spans are of the size of what reading and writing an answer take.
const LEAST_NS: f64 = 5e6;
/// Beside a prompt that takes long, the time of few tokens drowns in how much longer it may take another time.
const LEAST_SHARE: f64 = 0.25;
/// Of fewer requests the shortest may not be a quiet one.
const LEAST_SAMPLES: usize = 3;

pub fn doubts(subject: &Subject, _: &[Subject]) -> Vec<Doubt> {
    let stamp = subject.launches.values().find_map(|launch| launch.hello.as_ref()).map(|hello| hello.stamp);
    if stamp == Some(Stamp::End) {
        return Vec::new();
    }
    subject
        .cases()
        .into_iter()
        .find_map(|(case, samples)| doubt(subject, case, &samples))
        .into_iter()
        .collect()
}

fn doubt(subject: &Subject, case: usize, samples: &[&Sample]) -> Option<Doubt> {
    let of_it = subject.record.passes.iter();
    let of_it = of_it.filter(|pass| pass.case == case && subject.launches.contains_key(&pass.launch));
    let one_ns = of_it.filter_map(|pass| pass.one_token_ns).min()? as f64;
    // The quietest request of many, as that for one token was.
    let quietest = samples.iter().min_by_key(|sample| elapsed_ns(sample))?;
    let made_ns = elapsed_ns(quietest) as f64 - one_ns;
    let stamped_ns = stamped_ns(quietest)? as f64;
    let tells = samples.len() >= LEAST_SAMPLES && made_ns > LEAST_NS && made_ns > LEAST_SHARE * one_ns;
    if !tells || stamped_ns >= HONEST * made_ns {
        return None;
    }
    let (stated, seen) = (time(stamped_ns), time(made_ns));
    let says = format!(
        "stamps its tokens in {} within {stated}, and a request for them takes {seen} longer than one for the first of them \
         alone: they were not made when it says",
        subject.name_of(case)
    );
    Some(subject.doubt(About::Clock, true, stated, seen, &says))
}

/// From its first token to its last, by its own stamps.
fn stamped_ns(sample: &Sample) -> Option<u64> {
    let [sequence] = sample.iteration.sequences.as_slice() else { return None };
    let times = sequence.token_ns.as_deref()?;
    times.last()?.checked_sub(*times.first()?)
}
