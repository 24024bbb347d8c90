//! The largest difference between a correct engine and the verifier. One bound cannot serve: rounding weights to 4 bits changes a
//! correct engine more than a permuted matrix changes one in f32. So the bound depends on the precision that the engine states,
//! and other checks verify that statement.
//!
//! The numbers are root mean squares of the difference in natural log-probability, over all tokens and over the worst stretch of
//! 128. `scripts/agreement/calibrate` found them over 1,408 tokens, on the trained embedded model and on synthesised models of 2
//! and 24 layers. Random weights make every choice between tokens nearly even, so rounding has the largest effect there.
//!
//! | correct                     | embedded      | 2 layers      | 24 layers     | bound      |
//! |-----------------------------|---------------|---------------|---------------|------------|
//! | f32                         | 7e-7   1e-6   | 1e-6   1e-6   | 1e-6   1e-6   | 0.02  0.04 |
//! | f16                         | 0.001  0.002  | 0.001  0.002  | 0.002  0.002  | 0.1   0.15 |
//! | bf16                        | 0.009  0.013  | 0.011  0.012  | 0.016  0.019  | 0.1   0.15 |
//! | q8_0                        | 0.013  0.022  | 0.031  0.034  | 0.037  0.045  | 0.1   0.15 |
//! | q6_k                        | 0.019  0.033  | 0.076  0.083  | 0.10   0.12   | 0.3   0.4  |
//! | q4_k                        | 0.057  0.092  | 0.28   0.31   | 0.39   0.43   | 0.7   0.9  |
//! | q4_0                        | 0.075  0.093  | 0.31   0.37   | 0.46   0.54   | 0.7   0.9  |
//! | q4_0, against these numbers | 0.007  0.011  | 0.018  0.021  | 0.021  0.026  | 0.1   0.15 |
//!
//! | wrong, in f32               | embedded      | 2 layers      | 24 layers     |
//! |-----------------------------|---------------|---------------|---------------|
//! | all matrices of one layer   | 0.95   1.6    | 1.1    1.2    | 0.50   0.57   |
//! | queries of one layer        | 0.73   0.97   | 0.24   0.34   | 0.046  0.060  |
//! | gates of one layer          | 0.43   0.71   | 0.73   0.80   | 0.24   0.27   |
//! | rotated in the wrong pairs  | 3.1    4.2    | 0.76   0.86   | 0.55   0.62   |
//! | scaled from 1024, by 8      | 0.16   0.42   | 0.37   0.51   | 0.32   0.43   |
//! | scaled from 8192, by 32     | 0.056  0.18   | 0.12   0.20   | 0.096  0.17   |
//!
//! (The two scaled ones of the last column: 16 layers. Permuted: rows in reverse order. Scaled: the engine ignores Llama 3's
//! scaling of rotations for texts longer than that.)
//!
//! So in f32 every one of these errors is found, and in 16 or 8 bits every one but the queries of one layer among 24. A model
//! that itself has 4 bits is no excuse: the verifier has the same numbers, and only kernels that round activations to 8 bits
//! lose precision. An engine that rounds a model to 4 bits itself can hide one wrong matrix, or one wrong layer among many with
//! random weights (about 0.68 and 0.79 together). To find these, the verifier would need the same rounded numbers. The stretch
//! finds wrong rotations: their error grows with the position and is small over the whole text. Weights in 3 bits and fewer
//! were not measured; beyond their bound a model counts as another one.
//!
//! The same engines' own tokens had these gaps, on average and at the worst of 64: f32 nothing, bf16 3e-4 and 0.017, q8_0 0.001
//! and 0.03, q6_k 0.012 and 0.27, q4_0 0.59 and 1.8.
use serde::Serialize;

use crate::plan::Configuration;
use crate::plan::dtype::nominal_bits;
use crate::record::Launch;

/// The largest difference of `exact`.
pub const EXACT: f64 = 1e-3;
/// The largest difference of `agrees`.
pub const AGREES: f64 = 0.05;
/// The largest gap of a near tie: only rounding decides which of the two tokens comes first.
pub const NEAR_TIE: f64 = 0.01;

/// The coarsest rounding between the model's own numbers and an engine's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// f32, with the model's own numbers.
    Full,
    /// bf16 or f16 somewhere.
    Bits16,
    /// Weights or activations in 8 bits.
    Bits8,
    /// Weights in 5 or 6 bits where the model has more, or in an unknown dtype.
    Bits6,
    /// Weights in 4 bits where the model has more.
    Bits4,
    /// Weights in fewer bits.
    Bits3,
}

/// The requested settings that allow an engine a larger difference.
#[derive(Debug, Clone, Copy, Default)]
pub struct Requested<'a> {
    pub dtype: Option<&'a str>,
    /// The dtype of the model's own numbers.
    pub model: Option<&'a str>,
    /// Whether the user set an option for the cache of keys and values.
    pub narrow_cache: bool,
}

impl<'a> Requested<'a> {
    pub fn of(configuration: &'a Configuration) -> Self {
        let is_about_cache = |key: &String| {
            let key = key.to_ascii_lowercase();
            key.contains("kv") || key.contains("cache")
        };
        Self {
            dtype: configuration.dtype.as_deref(),
            model: configuration.model.dtype.as_deref(),
            narrow_cache: configuration.options.keys().any(is_about_cache),
        }
    }
}

/// The limits of a correct engine's differences.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Root mean square over all tokens.
    pub whole: f64,
    /// The same over the worst stretch. The error of a wrong rotation grows with the position, and the first tokens of a text
    /// hide it in the mean.
    pub stretch: f64,
    /// The mean gap of the engine's own tokens, over all that the verifier checked.
    pub gap: f64,
    /// The gap of one token.
    pub worst_gap: f64,
}

impl Precision {
    pub fn bounds(self) -> Bounds {
        let (whole, stretch, gap, worst_gap) = match self {
            Self::Full => (0.02, 0.04, 0.01, 0.1),
            Self::Bits16 | Self::Bits8 => (0.1, 0.15, 0.1, 1.0),
            Self::Bits6 => (0.3, 0.4, 0.3, 2.0),
            Self::Bits4 => (0.7, 0.9, 1.2, 4.0),
            Self::Bits3 => (1.2, 1.5, 2.0, 6.0),
        };
        Bounds { whole, stretch, gap, worst_gap }
    }

    /// Its name in a sentence on the allowed difference: `16 bits`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Full => "f32",
            Self::Bits16 => "16 bits",
            Self::Bits8 => "8 bits",
            Self::Bits6 => "5 or 6 bits",
            Self::Bits4 => "4 bits",
            Self::Bits3 => "3 bits or fewer",
        }
    }

    /// The precision of a configuration: as its launches state, else as requested, else that of the model. The finest of several
    /// launches counts: an engine that used it once could always use it.
    pub fn of<'a>(launches: impl Iterator<Item = &'a Launch>, requested: &Requested) -> Self {
        let each = launches.filter_map(|launch| launch.loaded.as_ref()).map(|loaded| {
            let facts = &loaded.facts;
            let [weights, compute, kv] = [&facts.weights_dtype, &facts.compute_dtype, &facts.kv_dtype];
            Self::of_dtypes(weights.as_deref(), compute.as_deref(), kv.as_deref(), requested)
        });
        each.min().unwrap_or_else(|| Self::of_dtypes(None, None, None, requested))
    }

    fn of_dtypes(
        weights: Option<&str>,
        compute: Option<&str>,
        kv: Option<&str>,
        requested: &Requested,
    ) -> Self {
        let model = requested.model;
        // An unknown name excuses nothing.
        let known = [weights, requested.dtype, model].into_iter().flatten();
        let bits = |name| Some((name, nominal_bits(name)?));
        let Some((weights, held)) = known.filter_map(bits).next() else { return Self::Bits6 };
        let own = model.is_some_and(|model| weights.eq_ignore_ascii_case(model));
        let narrowed = match held {
            // The weights are the model's own, and the verifier has the same. Kernels for narrow weights round activations to 8
            // bits.
            ..=8 if own => Self::Bits8,
            _ if own => Self::Full,
            held => Self::of_bits(held),
        };
        // Without a stated compute dtype, that of the weights counts; but no engine computes in 4 bits.
        let computes = compute.and_then(nominal_bits).unwrap_or(held).max(8);
        // The cache's dtype cannot be checked: fewer than 16 bits are an excuse only where the user requested them.
        let least = if requested.narrow_cache { 0 } else { 16 };
        let keeps = kv.and_then(nominal_bits).unwrap_or(32).max(least);
        narrowed.max(Self::of_bits(computes)).max(Self::of_bits(keeps))
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

    fn of(weights: &str, compute: &str, model: &str) -> Precision {
        let requested = Requested { model: Some(model), ..Requested::default() };
        Precision::of_dtypes(Some(weights), Some(compute), None, &requested)
    }

    #[test]
    fn bounds_depend_on_the_rounding_of_the_models_own_numbers() {
        assert_eq!(of("f32", "f32", "bf16"), Precision::Full);
        assert_eq!(of("bf16", "f32", "bf16"), Precision::Full);
        assert_eq!(of("bf16", "f32", "f32"), Precision::Bits16);
        assert_eq!(of("bf16", "bf16", "bf16"), Precision::Bits16);
        assert_eq!(of("tf32", "tf32", "f32"), Precision::Bits16);
        assert_eq!(of("q8_0", "f32", "bf16"), Precision::Bits8);
        assert_eq!(of("q6_k", "f32", "bf16"), Precision::Bits6);
        assert_eq!(of("q4_0", "f32", "bf16"), Precision::Bits4);
        assert_eq!(of("IQ2_XS", "f16", "f16"), Precision::Bits3);
    }

    #[test]
    fn a_file_in_4_bits_does_not_widen_the_bounds() {
        assert_eq!(of("q4_0", "f32", "Q4_0"), Precision::Bits8);
        assert_eq!(of("bf16", "bf16", "q4_0"), Precision::Bits16);
        assert_eq!(of("f32", "f32", "q4_0"), Precision::Full);
    }

    #[test]
    fn a_narrow_cache_widens_the_bounds_only_if_requested() {
        let kept = |kv, narrow_cache| {
            let requested = Requested { model: Some("f32"), narrow_cache, ..Requested::default() };
            Precision::of_dtypes(Some("f32"), Some("f32"), Some(kv), &requested)
        };
        use Precision::*;
        let all = ["f32", "f16", "q8_0", "q4_0", "q2_k", "anything"];
        assert_eq!(all.map(|kv| kept(kv, false)), [Full, Bits16, Bits16, Bits16, Bits16, Full]);
        assert_eq!(all.map(|kv| kept(kv, true)), [Full, Bits16, Bits8, Bits4, Bits3, Full]);
        let mut configuration = Configuration::default();
        assert!(!Requested::of(&configuration).narrow_cache);
        configuration.options.insert("cache_type_k".into(), "q4_0".into());
        assert!(Requested::of(&configuration).narrow_cache);
    }

    #[test]
    fn an_unknown_or_missing_dtype_gives_the_bounds_of_the_requested_one() {
        let of = |weights, dtype, model| {
            Precision::of_dtypes(weights, None, None, &Requested { dtype, model, narrow_cache: false })
        };
        assert_eq!(Precision::of(std::iter::empty(), &Requested::default()), Precision::Bits6);
        for weights in [None, Some("exotic"), Some("trust-1")] {
            assert_eq!(of(weights, Some("q4_0"), Some("bf16")), Precision::Bits4);
            assert_eq!(of(weights, None, Some("bf16")), Precision::Bits16);
            assert_eq!(of(weights, None, Some("f32")), Precision::Full);
        }
    }

    #[test]
    fn the_finest_precision_of_several_launches_counts() {
        let launch = |weights: &str| {
            let mut launch = Launch::default();
            launch.loaded.get_or_insert_default().facts.weights_dtype = Some(weights.into());
            launch
        };
        let requested = Requested { model: Some("f32"), ..Requested::default() };
        let launches = [launch("q4_0"), launch("f32")];
        assert_eq!(Precision::of(launches.iter(), &requested), Precision::Full);
    }
}
