//! The bounds of output checks: the largest accepted differences from the verifier. They depend on the precision that the engine
//! reports: rounding to 4 bits changes a correct engine more than a permuted matrix changes an engine in f32. `MEASURED.md` has
//! the measurements.

use serde::Serialize;

use crate::plan::Configuration;
use crate::plan::dtype::{has_same_numbers, nominal_bits};
use crate::record::Launch;

/// The largest root mean square of the differences of log-probabilities, in nats, with the status `exact`.
pub const EXACT: f64 = 1e-3;
/// The largest root mean square, in nats, with the status `agrees`.
pub const AGREES: f64 = 0.05;
/// The largest gap of a near tie, in nats. At a near tie, rounding decides which of two tokens an engine gives.
pub const NEAR_TIE: f64 = 0.01;

/// The coarsest rounding between the model's own numbers (those in its files) and an engine's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Nothing is rounded below f32: weights are in f32 or are the model's own numbers.
    Full,
    /// Weights, arithmetic or cache rounded to bf16, f16 or tf32.
    Bits16,
    /// Weights, activations or cache rounded to 8 bits.
    Bits8,
    /// Weights or cache rounded to 5 or 6 bits, or weights of an unknown dtype.
    Bits6,
    /// Weights or cache rounded to 4 bits.
    Bits4,
    /// Weights or cache rounded to 3 bits or fewer.
    Bits3,
}

/// The facts of a configuration that its precision depends on, besides the reports of its launches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Requested<'a> {
    pub dtype: Option<&'a str>,
    /// The dtype of the model's own numbers.
    pub model_dtype: Option<&'a str>,
    /// Whether the user or the preset set an option whose name has `kv` or `cache`.
    pub has_cache_option: bool,
}

impl<'a> Requested<'a> {
    pub fn of(configuration: &'a Configuration) -> Self {
        let is_about_cache = |key: &String| {
            let key = key.to_ascii_lowercase();
            key.contains("kv") || key.contains("cache")
        };
        Self {
            dtype: configuration.dtype.as_deref(),
            model_dtype: configuration.model.dtype.as_deref(),
            has_cache_option: configuration.options.keys().any(is_about_cache),
        }
    }
}

/// The largest differences of a correct engine, in nats.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// The largest root mean square over all tokens.
    pub rms: f64,
    /// The largest root mean square over the worst stretch (`STRETCH_TOKENS`). The error of a wrong rotation
    /// grows with the position, and in the mean over all tokens the first tokens of a text hide it.
    pub stretch_rms: f64,
    /// The largest mean gap (as in `gaps.rs`), over all tokens that the verifier checked.
    pub gap: f64,
    /// The largest gap of one token.
    pub worst_gap: f64,
}

impl Precision {
    pub fn bounds(self) -> Bounds {
        let (rms, stretch_rms, gap, worst_gap) = match self {
            Self::Full => (0.02, 0.04, 0.01, 0.1),
            Self::Bits16 | Self::Bits8 => (0.1, 0.15, 0.1, 1.0),
            Self::Bits6 => (0.3, 0.4, 0.3, 2.0),
            Self::Bits4 => (0.7, 0.9, 1.2, 4.0),
            Self::Bits3 => (1.2, 1.5, 2.0, 6.0),
        };
        Bounds { rms, stretch_rms, gap, worst_gap }
    }

    /// The name in a sentence on the allowed difference: `16 bits`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "f32",
            Self::Bits16 => "16 bits",
            Self::Bits8 => "8 bits",
            Self::Bits6 => "5 or 6 bits",
            Self::Bits4 => "4 bits",
            Self::Bits3 => "3 bits or fewer",
        }
    }

    /// The precision of a configuration: as its launches report, else as requested, else that of the model. The finest
    /// precision of several launches counts, because an engine that used it once could always use it.
    pub fn of<'a>(launches: impl Iterator<Item = &'a Launch>, requested: &Requested) -> Self {
        let precisions = launches.filter_map(|launch| launch.loaded.as_ref()).map(|loaded| {
            let facts = &loaded.facts;
            let [weights, compute, kv] = [&facts.weights_dtype, &facts.compute_dtype, &facts.kv_dtype];
            Self::of_dtypes(weights.as_deref(), compute.as_deref(), kv.as_deref(), requested)
        });
        precisions.min().unwrap_or_else(|| Self::of_dtypes(None, None, None, requested))
    }

    fn of_dtypes(
        weights: Option<&str>,
        compute: Option<&str>,
        kv: Option<&str>,
        requested: &Requested,
    ) -> Self {
        let model = requested.model_dtype;
        // An unknown dtype is skipped, so that it allows no larger difference than the next known one. Without a known dtype,
        // `Bits6` applies.
        let known = [weights, requested.dtype, model].into_iter().flatten();
        let with_bits = |name| Some((name, nominal_bits(name)?));
        let Some((weights, weight_bits)) = known.filter_map(with_bits).next() else { return Self::Bits6 };
        let is_own = model.is_some_and(|model| has_same_numbers(weights, model));
        let of_weights = match weight_bits {
            // The weights are the model's own, and the verifier has the same. Kernels for narrow weights round activations to 8
            // bits.
            ..=8 if is_own => Self::Bits8,
            _ if is_own => Self::Full,
            bits => Self::of_bits(bits),
        };
        // Without a reported compute dtype, the dtype of the weights counts, with at least 8 bits: no engine computes in fewer.
        let compute_bits = compute.and_then(nominal_bits).unwrap_or(weight_bits).max(8);
        // The dtype of the cache cannot be checked, so fewer than 16 bits count only if an option of the cache is set.
        let min_bits = if requested.has_cache_option { 0 } else { 16 };
        let cache_bits = kv.and_then(nominal_bits).unwrap_or(32).max(min_bits);
        of_weights.max(Self::of_bits(compute_bits)).max(Self::of_bits(cache_bits))
    }

    fn of_bits(bits: u32) -> Self {
        match bits {
            ..=3 => Self::Bits3,
            4 => Self::Bits4,
            5..=6 => Self::Bits6,
            7..=8 => Self::Bits8,
            9..=19 => Self::Bits16,
            _ => Self::Full,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn precision_of(weights: &str, compute: &str, model: &str) -> Precision {
        let requested = Requested { model_dtype: Some(model), ..Requested::default() };
        Precision::of_dtypes(Some(weights), Some(compute), None, &requested)
    }

    #[test]
    fn bounds_depend_on_the_rounding_of_the_models_own_numbers() {
        assert_eq!(precision_of("f32", "f32", "bf16"), Precision::Full);
        assert_eq!(precision_of("bf16", "f32", "bf16"), Precision::Full);
        assert_eq!(precision_of("bfloat16", "f32", "bf16"), Precision::Full, "another name");
        assert_eq!(precision_of("bf16z", "f32", "bf16"), Precision::Full, "packed without loss");
        assert_eq!(precision_of("bf16", "f32", "f32"), Precision::Bits16);
        assert_eq!(precision_of("bf16", "bf16", "bf16"), Precision::Bits16);
        assert_eq!(precision_of("tf32", "tf32", "f32"), Precision::Bits16);
        assert_eq!(precision_of("q8_0", "f32", "bf16"), Precision::Bits8);
        assert_eq!(precision_of("q6_k", "f32", "bf16"), Precision::Bits6);
        assert_eq!(precision_of("q4_0", "f32", "bf16"), Precision::Bits4);
        assert_eq!(precision_of("IQ2_XS", "f16", "f16"), Precision::Bits3);
    }

    #[test]
    fn a_file_in_4_bits_does_not_widen_the_bounds() {
        assert_eq!(precision_of("q4_0", "f32", "Q4_0"), Precision::Bits8);
        assert_eq!(precision_of("bf16", "bf16", "q4_0"), Precision::Bits16);
        assert_eq!(precision_of("f32", "f32", "q4_0"), Precision::Full);
    }

    #[test]
    fn a_narrow_cache_widens_the_bounds_only_if_an_option_of_the_cache_is_set() {
        let precision = |kv, has_cache_option| {
            let requested = Requested { model_dtype: Some("f32"), has_cache_option, ..Requested::default() };
            Precision::of_dtypes(Some("f32"), Some("f32"), Some(kv), &requested)
        };
        use Precision::*;
        let all = ["f32", "f16", "q8_0", "q4_0", "q2_k", "anything"];
        assert_eq!(all.map(|kv| precision(kv, false)), [Full, Bits16, Bits16, Bits16, Bits16, Full]);
        assert_eq!(all.map(|kv| precision(kv, true)), [Full, Bits16, Bits8, Bits4, Bits3, Full]);
        let mut configuration = Configuration::default();
        assert!(!Requested::of(&configuration).has_cache_option);
        configuration.options.insert("cache_type_k".into(), "q4_0".into());
        assert!(Requested::of(&configuration).has_cache_option);
    }

    #[test]
    fn an_unknown_or_missing_dtype_gives_the_bounds_of_the_requested_dtype_or_of_the_model() {
        let precision = |weights, dtype, model_dtype| {
            let requested = Requested { dtype, model_dtype, has_cache_option: false };
            Precision::of_dtypes(weights, None, None, &requested)
        };
        assert_eq!(Precision::of(std::iter::empty(), &Requested::default()), Precision::Bits6);
        for weights in [None, Some("exotic"), Some("trust-1")] {
            assert_eq!(precision(weights, Some("q4_0"), Some("bf16")), Precision::Bits4);
            assert_eq!(precision(weights, None, Some("bf16")), Precision::Bits16);
            assert_eq!(precision(weights, None, Some("f32")), Precision::Full);
        }
    }

    #[test]
    fn the_finest_precision_of_several_launches_counts() {
        let launch = |weights: &str| {
            let mut launch = Launch::default();
            launch.loaded.get_or_insert_default().facts.weights_dtype = Some(weights.into());
            launch
        };
        let requested = Requested { model_dtype: Some("f32"), ..Requested::default() };
        let launches = [launch("q4_0"), launch("f32")];
        assert_eq!(Precision::of(launches.iter(), &requested), Precision::Full);
    }
}
