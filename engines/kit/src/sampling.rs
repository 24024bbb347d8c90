//! Chooses a token from logits on the host. The Python kit chooses the same token from the same seed and the same
//! logits, unless these have NaN.

use std::cell::RefCell;
use std::cmp::Ordering;

use protocol::Sampling;

/// A small generator of pseudo-random numbers (SplitMix64): the same seed gives the same numbers everywhere.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator of one sequence of a batch, independent of the others. The constant spreads the index over all bits.
    pub fn for_sequence(sampling: &Option<Sampling>, sequence: usize) -> Self {
        let seed = sampling.as_ref().map_or(0, |sampling| sampling.seed);
        Self(seed ^ (sequence as u64).wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    /// A number in [0, 1), with the 53 bits of an f64.
    pub fn next_f64(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The lowest temperature that samples. Below this temperature, a logit divided by the temperature can overflow an f32, and
/// only the largest logit has any weight.
pub const GREEDY_BELOW: f64 = 1e-30;

/// Whether the temperature is 0, or so small that it counts as 0.
pub fn is_greedy(sampling: &Sampling) -> bool {
    sampling.temperature < GREEDY_BELOW
}

/// The next token: `greedy` without sampling, and at a temperature that counts as 0.
pub fn sample(logits: &[f32], sampling: &Option<Sampling>, rng: &mut Rng) -> u32 {
    match sampling {
        Some(sampling) if !is_greedy(sampling) => draw(logits, sampling, rng),
        _ => greedy(logits),
    }
}

/// The id of the largest logit, the lowest id among equals. NaN is ignored; if all logits are NaN, the id is 0.
pub fn greedy(logits: &[f32]) -> u32 {
    // Two passes vectorise and are faster than one pass that also tracks the index.
    let largest = largest(logits);
    logits.iter().position(|&logit| logit == largest).unwrap_or(0) as u32
}

/// The natural logarithm of the probability of `id`, in f64. Minus infinity if `id` is outside the logits.
pub fn log_softmax_at(logits: &[f32], id: u32) -> f64 {
    let Some(&logit) = logits.get(id as usize) else { return f64::NEG_INFINITY };
    let largest = f64::from(largest(logits));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    f64::from(logit) - largest - sum.ln()
}

/// The largest logit, computed in lanes that the compiler vectorises.
fn largest(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = logits.chunks_exact(lanes.len());
    let remainder = chunks.remainder();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    lanes
        .iter()
        .chain(remainder)
        .fold(f32::NEG_INFINITY, |largest, &logit| if logit > largest { logit } else { largest })
}

thread_local! {
    /// The buffer of `draw`: as large as a vocabulary, so the thread reuses it.
    static WEIGHTS: RefCell<Vec<Weight>> = const { RefCell::new(Vec::new()) };
}

/// An id and its relative probability.
type Weight = (u32, f64);

/// Draws a token: temperature, then top-k, then top-p, the order of most samplers.
fn draw(logits: &[f32], sampling: &Sampling, rng: &mut Rng) -> u32 {
    WEIGHTS.with_borrow_mut(|weights| {
        weights.clear();
        weights.extend(softmax_weights(logits, sampling.temperature));
        if sampling.top_k > 0 {
            keep_top_k(weights, sampling.top_k as usize);
        }
        if let Some(top_p) = sampling.top_p.filter(|&top_p| top_p < 1.0) {
            keep_top_p(weights, top_p);
        }
        pick(weights, rng)
    })
}

fn softmax_weights(logits: &[f32], temperature: f64) -> impl Iterator<Item = Weight> {
    let largest = f64::from(largest(logits));
    logits.iter().enumerate().map(move |(id, &logit)| {
        let weight = ((f64::from(logit) - largest) / temperature).exp();
        (id as u32, if weight.is_nan() { 0.0 } else { weight })
    })
}

/// Orders by descending probability, then by ascending id, so that the order is always the same.
fn by_probability(left: &Weight, right: &Weight) -> Ordering {
    right.1.total_cmp(&left.1).then(left.0.cmp(&right.0))
}

/// Keeps the `k` most probable weights, sorted by probability.
fn keep_top_k(weights: &mut Vec<Weight>, k: usize) {
    if k < weights.len() {
        weights.select_nth_unstable_by(k, by_probability);
        weights.truncate(k);
    }
    weights.sort_unstable_by(by_probability);
}

/// The number of weights in the first part that `keep_top_p` sorts. Top-p mostly keeps fewer.
const FIRST_PART_LENGTH: usize = 256;

/// Keeps the most probable weights, sorted by probability, until their sum reaches `share` of the total. Sorts one part
/// after the other, and only as many parts as the share needs.
fn keep_top_p(weights: &mut Vec<Weight>, share: f64) {
    let target = share * sum(weights);
    let (mut sorted, mut reached, mut part_length) = (0, 0.0, FIRST_PART_LENGTH);
    while sorted < weights.len() {
        let unsorted = &mut weights[sorted..];
        let count = part_length.min(unsorted.len());
        if count < unsorted.len() {
            unsorted.select_nth_unstable_by(count, by_probability);
        }
        unsorted[..count].sort_unstable_by(by_probability);
        for (_, weight) in &unsorted[..count] {
            reached += weight;
            sorted += 1;
            if reached >= target {
                return weights.truncate(sorted);
            }
        }
        part_length *= 4;
    }
}

fn pick(weights: &[Weight], rng: &mut Rng) -> u32 {
    let mut remainder = rng.next_f64() * sum(weights);
    for (id, weight) in weights {
        remainder -= weight;
        if remainder < 0.0 {
            return *id;
        }
    }
    // Rounding can leave a small remainder; the last token with any weight takes it.
    weights.iter().rfind(|(_, weight)| *weight > 0.0).map_or(0, |(id, _)| *id)
}

fn sum(weights: &[Weight]) -> f64 {
    weights.iter().map(|(_, weight)| weight).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling(temperature: f64, top_k: u32, top_p: Option<f64>) -> Option<Sampling> {
        Some(Sampling { temperature, top_k, top_p, seed: 7 })
    }

    /// The count of each id in 4000 draws.
    fn draws(logits: &[f32], sampling: Option<Sampling>) -> Vec<usize> {
        let mut rng = Rng::for_sequence(&sampling, 0);
        let mut counts = vec![0; logits.len()];
        (0..4000).for_each(|_| counts[sample(logits, &sampling, &mut rng) as usize] += 1);
        counts
    }

    #[test]
    fn greedy_takes_the_lowest_id_among_equals_at_every_length() {
        for length in 1..70 {
            for first in 0..length {
                let mut logits = vec![-1.0; length];
                logits[first..].fill(2.5);
                assert_eq!(greedy(&logits) as usize, first);
            }
        }
        assert_eq!(greedy(&[-0.0, 0.0]), 0);
    }

    #[test]
    fn greedy_takes_nan_only_if_all_logits_are_nan() {
        assert_eq!(greedy(&[f32::NAN, 1.0, f32::NAN]), 1);
        assert_eq!(greedy(&[f32::NAN; 20]), 0);
        assert_eq!(greedy(&[f32::NEG_INFINITY, f32::MIN]), 1);
        assert_eq!(greedy(&[]), 0);
    }

    #[test]
    fn a_temperature_of_zero_or_too_small_to_divide_by_is_greedy() {
        let logits = [-3e8, 1.0, 3e8, 0.5];
        // The last two temperatures sample, but only one token has any weight.
        for temperature in [0.0, 5e-324, 1e-300, 1e-40, GREEDY_BELOW, 1e-20] {
            for top_p in [None, Some(0.9)] {
                assert_eq!(draws(&logits, sampling(temperature, 0, top_p)), [0, 0, 4000, 0], "{temperature}");
            }
        }
        // Greedy takes the lowest id among equals; a draw would sometimes take id 2.
        assert_eq!(draws(&[0.0, 1.0, 1.0], sampling(1e-300, 0, None)), [0, 4000, 0]);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.1_f32, 0.2, 0.3, 0.4].map(f32::ln);
        let counts = draws(&logits, sampling(1.0, 0, None));
        for (count, expected) in counts.into_iter().zip([400, 800, 1200, 1600]) {
            // At least five standard deviations of 4000 draws. The seed is fixed, so the result never varies.
            assert!(count.abs_diff(expected) < 160, "{count} of {expected}");
        }
    }

    /// The ids that occur in 4000 draws.
    fn drawn_ids(logits: &[f32], sampling: Option<Sampling>) -> Vec<usize> {
        let counts = draws(logits, sampling);
        (0..counts.len()).filter(|&id| counts[id] > 0).collect()
    }

    #[test]
    fn top_k_and_top_p_keep_the_most_probable_tokens() {
        let logits = [0.1_f32, 0.2, 0.3, 0.4].map(f32::ln);
        assert_eq!(drawn_ids(&logits, sampling(1.0, 2, None)), [2, 3]);
        assert_eq!(drawn_ids(&logits, sampling(1.0, 0, Some(0.5))), [2, 3]);
        assert_eq!(drawn_ids(&logits, sampling(1.0, 0, Some(1e-9))), [3]);
        assert_eq!(drawn_ids(&logits, sampling(1.0, 9, Some(1.0))), [0, 1, 2, 3]);
    }

    #[test]
    fn top_p_reached_exactly_keeps_no_further_token() {
        // All four weights are 1: a share of 0.25 keeps one token, 0.5 keeps two, and 0.51 keeps three.
        for top_k in [0, 4] {
            for (top_p, count) in [(0.25, 1), (0.5, 2), (0.51, 3)] {
                assert_eq!(drawn_ids(&[0.0; 4], sampling(1.0, top_k, Some(top_p))).len(), count);
            }
        }
    }

    /// Like `draw`, but sorts all weights.
    fn draw_with_full_sort(logits: &[f32], sampling: &Sampling, rng: &mut Rng) -> u32 {
        let mut weights: Vec<Weight> = softmax_weights(logits, sampling.temperature).collect();
        if sampling.top_k > 0 {
            weights.sort_by(by_probability);
            weights.truncate(sampling.top_k as usize);
        }
        if let Some(top_p) = sampling.top_p.filter(|&top_p| top_p < 1.0) {
            let (target, mut total) = (top_p * sum(&weights), 0.0);
            weights.sort_by(by_probability);
            weights.retain(|(_, weight)| {
                let is_kept = total < target;
                total += weight;
                is_kept
            });
        }
        pick(&weights, rng)
    }

    #[test]
    fn a_partial_sort_draws_the_same_tokens_as_a_full_sort() {
        let mut numbers = Rng::new(3);
        let mut number = || numbers.next_f64();
        for length in [1, 2, 50, 255, 256, 257, 1000, 5000] {
            // Many distinct logits, few, one, and a few that are mixed with NaN and infinity.
            for (distinct_logits, has_nan) in [(1e9, false), (20.0, false), (1.0, false), (30.0, true)] {
                let mut logits: Vec<f32> = (0..length)
                    .map(|_| ((number() * distinct_logits).floor() / distinct_logits * 12.0) as f32)
                    .collect();
                if has_nan {
                    let special = [f32::NAN, f32::NEG_INFINITY, -0.0, f32::MAX];
                    (0..length / 3).for_each(|i| logits[i * 3] = special[i % special.len()]);
                }
                for temperature in [1e-3, 0.7, 1.0, 50.0] {
                    for top_k in [0, 1, 2, 40, 256, 4999, 5000] {
                        for top_p in [None, Some(1e-9), Some(0.1), Some(0.5), Some(0.95), Some(0.999_999)] {
                            let sampling = Sampling { temperature, top_k, top_p, seed: 0 };
                            let seed = (number() * 1e9) as u64;
                            let (mut rng, mut full_sort_rng) = (Rng::new(seed), Rng::new(seed));
                            for _ in 0..3 {
                                let id = draw(&logits, &sampling, &mut rng);
                                let expected = draw_with_full_sort(&logits, &sampling, &mut full_sort_rng);
                                assert_eq!(id, expected, "{sampling:?} of {length}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens_and_another_seed_gives_others() {
        let draw = |seed| {
            let sampling = Some(Sampling { temperature: 1.0, seed, ..Sampling::default() });
            let mut rng = Rng::for_sequence(&sampling, 0);
            (0..32).map(|_| sample(&[0.0; 100], &sampling, &mut rng)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        // The author of SplitMix64 published its first numbers for the seed 1234567.
        let published = [6_457_827_717_110_365_317_u64, 3_203_168_211_198_807_973];
        let mut rng = Rng::new(1_234_567);
        for bits in published {
            assert_eq!(rng.next_f64(), (bits >> 11) as f64 / (1_u64 << 53) as f64);
        }
    }

    #[test]
    fn each_sequence_of_a_request_has_its_own_random_numbers() {
        // The first two numbers of each sequence: SplitMix64 with the seed 7, mixed with the index of the sequence.
        let expected = [
            [0.389_829_748_391_271_5, 0.016_788_294_528_156_11],
            [0.376_842_444_777_112_4, 0.816_884_664_344_916_2],
            [0.242_612_310_689_145_8, 0.703_929_075_485_043_5],
        ];
        for (sequence, expected) in expected.into_iter().enumerate() {
            let mut rng = Rng::for_sequence(&sampling(1.0, 0, None), sequence);
            assert_eq!([rng.next_f64(), rng.next_f64()], expected, "sequence {sequence}");
        }
    }

    #[test]
    fn log_softmax_sums_to_one_and_survives_large_logits() {
        let logits = [1000.0, 1001.0, 999.0];
        let sum: f64 = (0..3).map(|id| log_softmax_at(&logits, id).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
        assert_eq!(log_softmax_at(&[0.0, 0.0], 1), -std::f64::consts::LN_2);
        assert_eq!(log_softmax_at(&[0.0, f32::NEG_INFINITY], 1), f64::NEG_INFINITY);
        assert_eq!(log_softmax_at(&[0.0], 5), f64::NEG_INFINITY);
    }
}
