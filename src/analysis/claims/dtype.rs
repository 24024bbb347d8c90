//! Compares the dtype that an engine reports with the memory of its processes and with its scores. Weights that are read for
//! every token are resident, as a private copy or as pages of a file. Rounding to a narrow dtype shows in the scores.

use super::configuration_data::{About, ConfigurationData, Contradiction, bytes};
use crate::analysis::agreement::{Against, two_digits};
use crate::plan::dtype;
use crate::record::Sample;

/// The least bytes of weights. Smaller weights are hidden by the other memory of a program: code, libraries, buffers.
const MIN_WEIGHTS_BYTES: f64 = (64 << 20) as f64;
/// The least resident share of the weights: the other fifth allows for parts that are never touched (rows of tables, padding)
/// and for different ways to count.
const MIN_RESIDENT_SHARE: f64 = 0.8;
/// The least difference between the sizes in f32 and in the reported dtype. A smaller difference may be other memory:
/// interpreters and frameworks need 200 to 400 MB, and packed copies of single matrices come and go.
const MIN_F32_EXCESS_BYTES: f64 = (512 << 20) as f64;
/// The bits of a number in f32.
const F32_BITS: f64 = 32.0;
/// The assumed bits of a number in a cache of keys and values whose dtype is not reported.
const WIDEST_KV_BITS: f64 = 32.0;
/// The largest difference between engines in f32 that add in different orders (root mean square over tokens, in
/// nats). The finest rounding of weights, f16 for f32, gives a larger difference.
const MAX_RMS_OF_F32: f64 = 3e-5;
/// The least difference that shows rounding: `agreement/MEASURED.md` has 0.001 for f16, the finest below f32, and 1e-6 for f32.
const MIN_RMS_OF_ROUNDING: f64 = 2e-4;
/// The least number of scored tokens: over fewer, a difference may be chance.
const MIN_TOKENS: usize = 64;

pub fn contradictions(subject: &ConfigurationData, _: &[ConfigurationData]) -> Vec<Contradiction> {
    let weights = Weights::reported(subject).filter(|_| subject.all_work_is_observed());
    let by_memory = weights.into_iter().flat_map(|it| [too_small(subject, &it), too_large(subject, &it)]);
    by_memory.flatten().chain(unrounded_scores(subject).or_else(|| rounded_scores(subject))).collect()
}

/// The weights that an engine reports.
struct Weights {
    dtype: String,
    bits: Option<f64>,
    bytes: f64,
    /// The source of the bytes: `reported bytes` or `for 1.24 billion parameters`.
    source: String,
}

impl Weights {
    fn reported(subject: &ConfigurationData) -> Option<Self> {
        let dtype = subject.fact(|facts| facts.weights_dtype.clone());
        let bits = dtype.as_deref().and_then(dtype::bits);
        let parameters = subject.configuration.model.sizes.map(|sizes| sizes.parameters as f64);
        let of_dtype = bits.zip(parameters).map(|(bits, parameters)| bits / 8.0 * parameters);
        let reported = subject.fact(|facts| facts.weights_bytes).map(|bytes| bytes as f64);
        // A wide dtype and few bytes contradict each other: the larger size counts.
        let bytes = [reported, of_dtype].into_iter().flatten().reduce(f64::max)?;
        let source = match reported.filter(|reported| *reported >= bytes) {
            Some(_) => "reported bytes".to_string(),
            None => format!("for {:.2} billion parameters", parameters.unwrap_or(0.0) / 1e9),
        };
        Some(Self { dtype: dtype.unwrap_or_else(|| "unreported".into()), bits, bytes, source })
    }

    fn describe(&self) -> String {
        format!("`{}` weights of {} ({})", self.dtype, bytes(self.bytes), self.source)
    }
}

/// A contradiction if the processes hold too little memory for the weights.
fn too_small(subject: &ConfigurationData, weights: &Weights) -> Option<Contradiction> {
    let sizes = subject.configuration.model.sizes.filter(|sizes| sizes.parameters > 0);
    // File pages of lookup tables and of unused experts may never be read.
    let read_share =
        sizes.map_or(1.0, |sizes| sizes.read_per_token as f64 / sizes.parameters as f64).min(1.0);
    let machine = &subject.record.header.machine;
    let memory = [machine.memory_bytes, machine.memory_limit_bytes].into_iter().flatten().min();
    // Weights that do not fit are read again and again, by a correct engine too.
    let fits = memory.is_none_or(|memory| weights.bytes <= MIN_RESIDENT_SHARE * memory as f64);
    let passes = subject.record.passes.iter().filter(|pass| subject.launches.contains_key(&pass.launch));
    let resident =
        |it: &&Sample| it.peak_resident_bytes.into_iter().chain(it.held.map(|held| held.resident_bytes));
    let held = subject.samples.iter().flat_map(resident);
    let held = held.chain(passes.filter_map(|pass| pass.held.map(|held| held.resident_bytes)));
    let largest = held.max()? as f64;
    if weights.bytes < MIN_WEIGHTS_BYTES
        || !fits
        || largest >= MIN_RESIDENT_SHARE * read_share * weights.bytes
    {
        return None;
    }
    let observed = bytes(largest);
    let message = format!(
        "reports {}, but its processes never held more than {observed} (resident, over {} answers)",
        weights.describe(),
        subject.samples.len()
    );
    Some(subject.contradiction(About::Dtype, weights.describe(), observed, &message))
}

/// A contradiction if the processes hold as much memory as f32 needs, although the engine reports a narrower dtype.
fn too_large(subject: &ConfigurationData, weights: &Weights) -> Option<Contradiction> {
    let bits = weights.bits.filter(|bits| *bits < F32_BITS)?;
    let f32_bytes = weights.bytes * F32_BITS / bits;
    // The memory after each answer counts: weights are held between requests.
    let least = subject.measured().filter_map(|sample| Some(sample.held?.anonymous_bytes)).min()? as f64;
    let cache = kv_cache_bytes(subject);
    if f32_bytes - weights.bytes < MIN_F32_EXCESS_BYTES || least - cache < f32_bytes {
        return None;
    }
    let in_cache = (cache > 0.0).then(|| format!(", of which {} may be keys and values", bytes(cache)));
    let in_cache = in_cache.unwrap_or_default();
    let observed = bytes(least);
    let message = format!(
        "reports {}, but its processes always held {observed} that no file backs{in_cache}: as much as f32 needs ({})",
        weights.describe(),
        bytes(f32_bytes)
    );
    Some(subject.contradiction(About::Dtype, weights.describe(), observed, &message))
}

/// The bytes of a cache of keys and values for the whole reported context, for each sequence of the largest batch.
fn kv_cache_bytes(subject: &ConfigurationData) -> f64 {
    let numbers = subject.configuration.model.sizes.map_or(0, |sizes| sizes.kv_numbers_per_position);
    let positions = subject.fact(|facts| facts.context_tokens).unwrap_or(0);
    let bits = subject.fact(|facts| facts.kv_dtype.as_deref()).and_then(dtype::bits);
    let sequences = subject.measured().map(|it| it.iteration.sequences.len()).max().unwrap_or(1);
    sequences as f64 * numbers as f64 * f64::from(positions) * bits.unwrap_or(WIDEST_KV_BITS) / 8.0
}

/// A contradiction if the engine reports f32 arithmetic with the model's own numbers, but scores as a narrower dtype does.
fn rounded_scores(subject: &ConfigurationData) -> Option<Contradiction> {
    let is_wide = |dtype: &str| dtype::bits(dtype).is_some_and(|bits| bits >= 32.0);
    let on_disk = subject.configuration.model.dtype.as_deref()?;
    // An engine may round activations to multiply them with quantization blocks, whatever dtype it reports.
    let has_plain_weights = dtype::bits(on_disk).is_some_and(|bits| bits >= 16.0);
    let weights = subject.fact(|facts| facts.weights_dtype.as_deref())?;
    let has_own_numbers = is_wide(weights) || dtype::has_same_numbers(weights, on_disk);
    let compute = subject.fact(|facts| facts.compute_dtype.as_deref()).filter(|dtype| is_wide(dtype))?;
    let has_wide_cache = subject.fact(|facts| facts.kv_dtype.as_deref()).is_none_or(is_wide);
    let rms = rms(subject)
        .filter(|rms| has_plain_weights && has_own_numbers && has_wide_cache && *rms > MIN_RMS_OF_ROUNDING)?;
    let difference = two_digits(rms);
    let message = format!(
        "reports that it computes in `{compute}`, but its log-probabilities differ from those of f32 by {difference} nats (root \
         mean square): it computes in a narrower dtype, or another model"
    );
    let observed = format!("{difference} nats from f32");
    Some(subject.contradiction(About::Dtype, compute.into(), observed, &message))
}

/// The difference of scores from another engine. The verifier's difference from itself proves nothing.
fn rms(subject: &ConfigurationData) -> Option<f64> {
    let is_another =
        matches!(subject.agreement.against, Against::Engine { .. } | Against::ReferenceAnswers { .. });
    let scores = subject.agreement.scores.as_ref();
    scores.filter(|scores| is_another && scores.tokens >= MIN_TOKENS).map(|scores| scores.rms)
}

/// A contradiction if the engine reports a narrower dtype than f32, but scores as f32 does.
fn unrounded_scores(subject: &ConfigurationData) -> Option<Contradiction> {
    let on_disk = subject.configuration.model.dtype.as_deref();
    let weights = subject.fact(|facts| facts.weights_dtype.as_deref());
    let compute = subject.fact(|facts| facts.compute_dtype.as_deref());
    // bf16 weights are exact in f32: only a dtype narrower than the dtype of the file rounds weights.
    let weights =
        weights.filter(|weights| on_disk.is_some_and(|on_disk| dtype::is_narrower(weights, on_disk)));
    let compute = compute.filter(|compute| dtype::is_narrower(compute, "f32"));
    let (verb, reported) = match (compute, weights) {
        (Some(compute), _) => ("computes in", compute),
        (None, Some(weights)) => ("holds its weights in", weights),
        (None, None) => return None,
    };
    let rms = rms(subject).filter(|rms| *rms < MAX_RMS_OF_F32)?;
    let difference = two_digits(rms);
    let message = format!(
        "reports that it {verb} `{reported}`, but its log-probabilities are those of f32 (they differ by {difference} nats, root \
         mean square): it does not round"
    );
    let observed = format!("{difference} nats from f32");
    Some(subject.contradiction(About::Dtype, reported.into(), observed, &message))
}
