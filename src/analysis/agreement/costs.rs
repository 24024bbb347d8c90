//! The cost of the dtypes that a configuration reports: by how much rounding to them changes the verifier's own answers on this
//! model. A correct engine stays within a small multiple of this cost. `MEASURED.md` has the measurements.

use std::collections::BTreeSet;

use serde::Serialize;

use super::bounds::{Bounds, Precision, Requested};
use crate::plan::dtype::{Float, has_same_numbers, nominal_bits};
use crate::record::{DtypeCost, DtypeCosts, Launch, RunRecord};

/// A correct engine differs from the verifier by at most this many times the cost of its dtypes.
const RMS_MULTIPLE: f64 = 4.0;
/// The tokens of a correct engine lose at most this many times the nats that the cost of its dtypes explains.
const LOSS_MULTIPLE: f64 = 7.0;
/// The largest gap of a correct engine is at most this many times the largest measured gap. Both gaps are divided by the cost of
/// their dtypes.
const GAP_MULTIPLE: f64 = 4.0;
/// The largest measured gap counts as at least this many times the cost, because few gaps are measured.
const MIN_LARGEST_GAP: f64 = 6.0;
/// The least number of measured gaps. With fewer, it is unknown how many nats a cost explains.
const MIN_GAPS: usize = 8;

/// The cost of the reported dtypes of a configuration, in nats.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cost {
    /// The dtypes in which the configuration rounds: `bf16`, or `q8_0 and bf16`.
    pub dtypes: String,
    pub rms: f64,
    pub stretch_rms: f64,
    /// The nats that this cost explains at a position. `None` if too few gaps were measured.
    pub loss: Option<LossPerToken>,
}

/// The nats that the tokens of an engine lose: by how much the verifier finds them less likely than its own tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LossPerToken {
    /// The mean over all positions.
    pub mean: f64,
    /// The largest loss of one token.
    pub largest: f64,
}

impl Cost {
    /// The cost of the dtypes that a configuration's launches report. `None` if one of these dtypes was not measured on this
    /// model, or if nothing is rounded. As for `Precision`, the launch with the smallest cost counts.
    pub fn of<'a>(
        record: &RunRecord,
        configuration: usize,
        launches: impl Iterator<Item = &'a Launch>,
        requested: &Requested,
    ) -> Option<Self> {
        let model = &record.header.plan.configurations[configuration].model;
        let costs = record.dtype_costs.iter().find(|it| it.model == model.path)?;
        let loaded = launches.filter_map(|launch| launch.loaded.as_ref());
        let reported = loaded.map(|loaded| {
            let facts = &loaded.facts;
            let [weights, compute, kv] = [&facts.weights_dtype, &facts.compute_dtype, &facts.kv_dtype];
            rounding_dtypes(weights.as_deref(), compute.as_deref(), kv.as_deref(), requested)
        });
        let all = reported.filter_map(|dtypes| Self::of_dtypes(costs, &dtypes?));
        all.min_by(|a, b| a.rms.total_cmp(&b.rms))
    }

    /// The cost of these dtypes together. Their errors are independent of each other, so their squares add up.
    fn of_dtypes(costs: &DtypeCosts, dtypes: &BTreeSet<&str>) -> Option<Self> {
        let cost = |dtype: &&str| costs.costs.iter().find(|it| it.dtype == *dtype);
        let measured: Vec<&DtypeCost> = dtypes.iter().map(cost).collect::<Option<_>>()?;
        let sum =
            |value: fn(&DtypeCost) -> f64| measured.iter().map(|it| value(it).powi(2)).sum::<f64>().sqrt();
        let (rms, stretch_rms) = (sum(|it| it.rms), sum(|it| it.stretch_rms));
        let names: Vec<&str> = dtypes.iter().copied().rev().collect();
        let dtypes = names.join(" and ");
        (!names.is_empty()).then(|| Self { dtypes, rms, stretch_rms, loss: LossPerToken::of(costs, rms) })
    }

    /// The bounds of scores become a multiple of the cost: at most the bound of the precision, and at least that of f32.
    pub fn tighten(&self, bounds: Bounds) -> Bounds {
        let smallest = Precision::Full.bounds();
        let tightened = |cost: f64, smallest: f64, usual: f64| (RMS_MULTIPLE * cost).max(smallest).min(usual);
        Bounds {
            rms: tightened(self.rms, smallest.rms, bounds.rms),
            stretch_rms: tightened(self.stretch_rms, smallest.stretch_rms, bounds.stretch_rms),
            ..bounds
        }
    }
}

impl LossPerToken {
    /// The loss that a cost explains. The rate of changed tokens and the gap of each grow with the error, so the loss grows with
    /// its square. The factor comes from all measured dtypes together, because a fine dtype changes few tokens.
    fn of(costs: &DtypeCosts, rms: f64) -> Option<Self> {
        let with_gaps = || costs.costs.iter().filter(|it| !it.gaps.is_empty() && it.rms > 0.0);
        if with_gaps().map(|it| it.gaps.len()).sum::<usize>() < MIN_GAPS {
            return None;
        }
        let mean_gap = |it: &DtypeCost| it.gaps.iter().sum::<f64>() / it.gaps.len() as f64;
        let lost: f64 = with_gaps().map(|it| it.changed as f64 * mean_gap(it)).sum();
        let squares: f64 = with_gaps().map(|it| it.positions as f64 * it.rms * it.rms).sum();
        let relative = with_gaps().flat_map(|it| it.gaps.iter().map(move |gap| gap / it.rms));
        let largest = relative.fold(MIN_LARGEST_GAP, f64::max);
        (squares > 0.0 && lost > 0.0)
            .then(|| Self { mean: lost / squares * rms * rms, largest: largest * rms })
    }

    /// The loss over this many positions, in nats, that a correct engine with this cost exceeds with at most this probability.
    /// The loss is a sum of gaps, whose number has a Poisson distribution. Chernoff's bound holds for any distribution of the
    /// gaps up to the largest one.
    pub fn bound(&self, positions: usize, probability: f64) -> f64 {
        let expected = LOSS_MULTIPLE * self.mean * positions as f64;
        let largest = GAP_MULTIPLE * self.largest;
        if expected <= 0.0 || largest <= 0.0 {
            return 0.0;
        }
        let exponent = |loss: f64| {
            let ratio = loss / expected;
            expected / largest * (ratio * ratio.ln() - ratio + 1.0)
        };
        let wanted = -probability.ln();
        let mut above = expected + largest;
        while exponent(above) < wanted {
            above *= 2.0;
        }
        let mut below = expected;
        for _ in 0..60 {
            let middle = 0.5 * (below + above);
            if exponent(middle) < wanted { below = middle } else { above = middle }
        }
        above
    }
}

/// The measured dtypes in which a launch with these facts rounds: empty if it rounds nothing, `None` if it rounds in a way that
/// is not measured.
fn rounding_dtypes(
    weights: Option<&str>,
    compute: Option<&str>,
    kv: Option<&str>,
    requested: &Requested,
) -> Option<BTreeSet<&'static str>> {
    let model = requested.model_dtype;
    // As for `Precision`, an unknown dtype is skipped.
    let known = [weights, requested.dtype, model].into_iter().flatten();
    let (weights, weight_bits) = known.filter_map(|name| Some((name, nominal_bits(name)?))).next()?;
    let is_own = model.is_some_and(|model| has_same_numbers(weights, model));
    let mut dtypes = BTreeSet::new();
    if is_own && weight_bits <= 8 {
        // Only the activations are rounded, in a way that was not measured.
        return None;
    }
    if !is_own {
        dtypes.extend(measured_dtypes(weights)?);
    }
    match compute.filter(|name| nominal_bits(name).is_some()) {
        Some(compute) => dtypes.extend(measured_dtypes(compute)?),
        None if weight_bits <= 8 => dtypes.extend(measured_dtypes("q8_0")?),
        None => dtypes.extend(measured_dtypes(weights)?),
    }
    match kv.and_then(|name| Some((name, nominal_bits(name)?))) {
        // The cost of such a cache was not measured.
        Some((_, ..=8)) => return None,
        Some((kv, _)) => dtypes.extend(measured_dtypes(kv)?),
        None => {}
    }
    Some(dtypes)
}

/// The measured dtypes that make up the error of this dtype. Kernels for narrow weights round activations to 8 bits, which costs
/// about as much as bf16.
fn measured_dtypes(name: &str) -> Option<&'static [&'static str]> {
    match (Float::named(name), name.to_ascii_lowercase().as_str()) {
        (Some(Float::F64 | Float::F32), _) => Some(&[]),
        (Some(Float::Bf16), _) | (None, "bf16z") => Some(&["bf16"]),
        (Some(Float::F16), _) => Some(&["f16"]),
        (None, "q8_0") => Some(&["q8_0", "bf16"]),
        (None, "q4_0") => Some(&["q4_0", "bf16"]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> DtypeCosts {
        let cost = |dtype: &str, rms: f64, changed: usize| DtypeCost {
            dtype: dtype.into(),
            tokens: 1000,
            rms,
            stretch_rms: 1.5 * rms,
            positions: 1000,
            changed,
            gaps: vec![rms; changed.min(16)],
        };
        let costs = vec![
            cost("bf16", 0.008, 8),
            cost("f16", 0.001, 1),
            cost("q8_0", 0.006, 6),
            cost("q4_0", 0.08, 80),
        ];
        DtypeCosts { costs, ..DtypeCosts::default() }
    }

    fn of(weights: &str, compute: &str, kv: Option<&str>, model: &str) -> Option<(String, f64)> {
        let requested = Requested { model_dtype: Some(model), ..Requested::default() };
        let dtypes = rounding_dtypes(Some(weights), Some(compute), kv, &requested)?;
        Cost::of_dtypes(&costs(), &dtypes).map(|it| (it.dtypes, it.rms))
    }

    #[test]
    fn the_cost_combines_all_reported_dtypes_that_round() {
        let rms = |weights, compute, kv, model| of(weights, compute, kv, model).map(|(_, rms)| rms);
        assert_eq!(rms("bf16", "bf16", None, "bf16"), Some(0.008));
        assert_eq!(rms("bfloat16", "f32", Some("float16"), "bf16"), Some(0.001), "only the cache is rounded");
        assert_eq!(of("q8_0", "q8_0", Some("f32"), "bf16"), Some(("q8_0 and bf16".into(), 0.01)));
        let (dtypes, rms_of_4_bits) = of("q4_0", "q8_0", None, "bf16").unwrap();
        assert_eq!(dtypes, "q8_0 and q4_0 and bf16");
        assert!((rms_of_4_bits - 0.0806).abs() < 1e-4, "{rms_of_4_bits}");
        // Nothing is rounded, or the dtype was not measured.
        assert_eq!(rms("bf16", "f32", None, "bf16"), None);
        for narrow in ["fp8", "int8", "q4_k", "nf4", "tf32"] {
            assert_eq!(rms(narrow, "f32", None, "bf16"), None, "{narrow}");
        }
        assert_eq!(rms("q4_0", "f32", None, "q4_0"), None, "the model's own numbers");
    }

    #[test]
    fn a_bound_is_a_multiple_of_the_cost_between_the_bounds_of_f32_and_of_the_precision() {
        let bounds = |dtype: &'static str| {
            let cost = Cost::of_dtypes(&costs(), &BTreeSet::from([dtype])).unwrap();
            let tightened = cost.tighten(Precision::Bits16.bounds());
            (tightened.rms, tightened.stretch_rms)
        };
        let (rms, stretch_rms) = bounds("bf16");
        assert!((rms - 0.032).abs() < 1e-9 && (stretch_rms - 0.048).abs() < 1e-9, "{rms} {stretch_rms}");
        assert_eq!(bounds("f16"), (0.02, 0.04));
        assert_eq!(bounds("q4_0"), (0.1, 0.15));
    }

    #[test]
    fn the_bound_of_lost_nats_is_above_the_expected_loss_and_grows_slower_than_the_positions() {
        let loss = LossPerToken::of(&costs(), 0.008).unwrap();
        // 8 of 1,000 tokens lose 0.008 nats each.
        assert!(
            (loss.mean - 8.0 * 0.008 / 1000.0).abs() < 1e-7 && (loss.largest - 0.048).abs() < 1e-9,
            "{loss:?}"
        );
        let per_position = |positions| loss.bound(positions, 1e-6) / positions as f64;
        let all = [100, 1000, 10_000, 1_000_000].map(per_position);
        assert!(all.is_sorted_by(|a, b| a > b), "{all:?}");
        assert!(all[3] > LOSS_MULTIPLE * loss.mean && all[3] < 1.2 * LOSS_MULTIPLE * loss.mean, "{all:?}");
        // Without changed tokens, the loss is unknown.
        let unchanged = costs().costs.into_iter().map(|it| DtypeCost { changed: 0, gaps: Vec::new(), ..it });
        let unchanged = DtypeCosts { costs: unchanged.collect(), ..DtypeCosts::default() };
        assert_eq!(LossPerToken::of(&unchanged, 0.008), None);
    }

    /// The simulated engines have the largest mean loss and the largest gaps that count as correct.
    #[test]
    fn no_simulated_correct_engine_exceeds_the_bound() {
        let loss = LossPerToken::of(&costs(), 0.008).unwrap();
        let mut random = stats::Random::seeded(1);
        let (gap, positions) = (GAP_MULTIPLE * loss.largest, 1000);
        let rate = LOSS_MULTIPLE * loss.mean / gap;
        let bound = loss.bound(positions, 1e-6);
        let mut exceeds = |_| {
            let changed =
                (0..positions).filter(|_| (random.below(1 << 30) as f64) < rate * (1u64 << 30) as f64);
            changed.count() as f64 * gap > bound
        };
        assert_eq!((0..2000).filter(|&it: &i32| exceeds(it)).count(), 0);
    }
}
