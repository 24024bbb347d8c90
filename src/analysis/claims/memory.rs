//! Compares the memory of an engine's processes with the weights that it states. Weights that are read for every token are
//! resident, as a copy of its own or as pages of a file.

use super::subject::{About, Contradiction, Subject, bytes};
use crate::plan::dtype;
use crate::record::Sample;

/// The least bytes of weights: below this, a program's other memory (itself, its libraries, its buffers) hides them.
const MIN_WEIGHTS: f64 = (64 << 20) as f64;
/// The least resident share of the weights. The other fifth allows for parts that are never touched (rows of tables, padding) and
/// for different ways to count.
const RESIDENT: f64 = 0.8;
/// A program's memory beside its weights: interpreters and frameworks need 200 to 400 MB, and packed copies of single matrices
/// come and go. A smaller difference proves nothing.
const BESIDES: f64 = (512 << 20) as f64;
/// The bits of the widest dtype.
const WIDE: f64 = 32.0;
/// The bits of a number in a cache of keys and values, where its dtype is not reported.
const WIDEST_KV_BITS: f64 = 32.0;

pub fn contradictions(subject: &Subject, _: &[Subject]) -> Vec<Contradiction> {
    if !subject.works_here() {
        return Vec::new();
    }
    let Some(weights) = Weights::reported(subject) else { return Vec::new() };
    too_small(subject, &weights).into_iter().chain(too_large(subject, &weights)).collect()
}

/// The weights that an engine states.
struct Weights {
    dtype: String,
    bits: Option<f64>,
    bytes: f64,
    /// The source of the bytes: `as it states them` or `for 1.24 billion parameters`.
    because: String,
}

impl Weights {
    fn reported(subject: &Subject) -> Option<Self> {
        let dtype = subject.fact(|facts| facts.weights_dtype.clone());
        let bits = dtype.as_deref().and_then(dtype::bits);
        let parameters = subject.configuration.model.sizes.map(|sizes| sizes.parameters as f64);
        let of_dtype = bits.zip(parameters).map(|(bits, parameters)| bits / 8.0 * parameters);
        let reported = subject.fact(|facts| facts.weights_bytes).map(|bytes| bytes as f64);
        // A wide dtype and few bytes contradict each other: the larger size counts.
        let bytes = [reported, of_dtype].into_iter().flatten().reduce(f64::max)?;
        let because = match reported.filter(|reported| *reported >= bytes) {
            Some(_) => "as it states them".to_string(),
            None => format!("for {:.2} billion parameters", parameters.unwrap_or(0.0) / 1e9),
        };
        Some(Self { dtype: dtype.unwrap_or_else(|| "unstated".into()), bits, bytes, because })
    }

    fn describe(&self) -> String {
        format!("`{}` weights of {} ({})", self.dtype, bytes(self.bytes), self.because)
    }
}

fn too_small(subject: &Subject, weights: &Weights) -> Option<Contradiction> {
    let sizes = subject.configuration.model.sizes.filter(|sizes| sizes.parameters > 0);
    // File pages of lookup tables and of unused experts may never be read.
    let touched = sizes.map_or(1.0, |sizes| sizes.read_per_token as f64 / sizes.parameters as f64).min(1.0);
    let machine = &subject.record.header.machine;
    let room = [machine.memory_bytes, machine.memory_limit_bytes].into_iter().flatten().min();
    // Weights that do not fit are read again and again, by a correct engine too.
    let fits = room.is_none_or(|room| weights.bytes <= RESIDENT * room as f64);
    let passes = subject.record.passes.iter().filter(|pass| subject.launches.contains_key(&pass.launch));
    let held = subject.samples.iter().flat_map(|sample| most(sample));
    let held = held.chain(passes.filter_map(|pass| pass.held.map(|held| held.resident_bytes)));
    let most = held.max()? as f64;
    if weights.bytes < MIN_WEIGHTS || !fits || most >= RESIDENT * touched * weights.bytes {
        return None;
    }
    let observed = bytes(most);
    let message = format!(
        "states {}, but its processes never held more than {observed} (resident, over {} answers)",
        weights.describe(),
        subject.samples.len()
    );
    Some(subject.contradiction(About::Dtype, true, weights.describe(), observed, &message))
}

fn most(sample: &Sample) -> impl Iterator<Item = u64> {
    sample.peak_resident_bytes.into_iter().chain(sample.held.map(|held| held.resident_bytes))
}

fn too_large(subject: &Subject, weights: &Weights) -> Option<Contradiction> {
    let bits = weights.bits.filter(|bits| *bits < WIDE)?;
    let wide = weights.bytes * WIDE / bits;
    // After each answer: memory that comes and goes within a request is no weight.
    let least = subject.measured().filter_map(|sample| Some(sample.held?.anonymous_bytes)).min()? as f64;
    let cache = cache_bytes(subject);
    if wide - weights.bytes < BESIDES || least - cache < wide {
        return None;
    }
    let in_cache = (cache > 0.0).then(|| format!(", of which {} may be keys and values", bytes(cache)));
    let in_cache = in_cache.unwrap_or_default();
    let observed = bytes(least);
    let message = format!(
        "states {}, but its processes always held {observed} that no file backs{in_cache}: as much as f32 needs ({})",
        weights.describe(),
        bytes(wide)
    );
    Some(subject.contradiction(About::Dtype, true, weights.describe(), observed, &message))
}

/// The bytes of a cache of keys and values for the whole reported context.
fn cache_bytes(subject: &Subject) -> f64 {
    let numbers = subject.configuration.model.sizes.map_or(0, |sizes| sizes.kv_numbers_per_position);
    let positions = subject.fact(|facts| facts.context_tokens).unwrap_or(0);
    let bits = subject.fact(|facts| facts.kv_dtype.as_deref()).and_then(dtype::bits);
    numbers as f64 * f64::from(positions) * bits.unwrap_or(WIDEST_KV_BITS) / 8.0
}
