//! From logits to a token, the same way in every engine that has logits on the host.

use protocol::Sampling;

/// A small generator of pseudo-random numbers (SplitMix64): the same seed gives the same numbers everywhere.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator for each sequence of a batch, so that a sequence's tokens do not depend on its neighbours.
    pub fn for_sequence(sampling: &Option<Sampling>, sequence: usize) -> Self {
        let seed = sampling.as_ref().map_or(0, |sampling| sampling.seed);
        Self(seed ^ (sequence as u64).wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    /// In [0, 1), with the 53 bits that an f64 holds.
    pub fn next_f64(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The next token. `None`, or a temperature of 0, is `greedy`.
pub fn sample(logits: &[f32], sampling: &Option<Sampling>, rng: &mut Rng) -> u32 {
    match sampling {
        Some(sampling) if sampling.temperature > 0.0 => draw(logits, sampling, rng),
        _ => greedy(logits),
    }
}

/// The largest logit, the lowest id among equals. NaN is never chosen; where there is nothing else, 0 is.
pub fn greedy(logits: &[f32]) -> u32 {
    // Two passes without a branch on the index are faster than one with it: both vectorise.
    let largest = largest(logits);
    logits.iter().position(|&logit| logit == largest).unwrap_or(0) as u32
}

/// The natural logarithm of the probability of `id`, in f64. Minus infinity where `id` is outside the logits.
pub fn log_softmax_at(logits: &[f32], id: u32) -> f64 {
    let Some(&at) = logits.get(id as usize) else { return f64::NEG_INFINITY };
    let largest = f64::from(largest(logits));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    f64::from(at) - largest - sum.ln()
}

fn largest(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = logits.chunks_exact(lanes.len());
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    lanes
        .iter()
        .chain(rest)
        .fold(f32::NEG_INFINITY, |largest, &logit| if logit > largest { logit } else { largest })
}

/// Temperature, then top-k, then top-p, in the order that most samplers share.
fn draw(logits: &[f32], sampling: &Sampling, rng: &mut Rng) -> u32 {
    let largest = f64::from(largest(logits));
    let weigh = |(id, &logit): (usize, &f32)| {
        let weight = ((f64::from(logit) - largest) / sampling.temperature).exp();
        (id as u32, if weight.is_nan() { 0.0 } else { weight })
    };
    let mut weights: Vec<(u32, f64)> = logits.iter().enumerate().map(weigh).collect();
    let top_p = sampling.top_p.filter(|&top_p| top_p < 1.0);
    if sampling.top_k > 0 || top_p.is_some() {
        weights.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    }
    if sampling.top_k > 0 {
        weights.truncate(sampling.top_k as usize);
    }
    if let Some(top_p) = top_p {
        let enough = top_p * weights.iter().map(|(_, weight)| weight).sum::<f64>();
        let mut sum = 0.0;
        // The token that crosses the bound stays.
        let kept = weights.iter().position(|(_, weight)| {
            sum += weight;
            sum >= enough
        });
        weights.truncate(kept.map_or(weights.len(), |last| last + 1));
    }
    let mut left = rng.next_f64() * weights.iter().map(|(_, weight)| weight).sum::<f64>();
    for (id, weight) in &weights {
        left -= weight;
        if left < 0.0 {
            return *id;
        }
    }
    // Rounding can leave a crumb; the last token that has any weight takes it.
    weights.iter().rfind(|(_, weight)| *weight > 0.0).map_or(0, |(id, _)| *id)
}
