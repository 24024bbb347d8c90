//! How far an engine may lie from the witness before it is wrong. One bound cannot serve: weights in 4 bits take a correct
//! engine farther from f32 than a permuted matrix takes one that computes in f32. So the bound is that of what the engine
//! says it computes in, and what it says is proved elsewhere.
//!
//! Root mean square of the difference in natural log-probability, over all tokens and over the worst stretch of 128, as
//! `scripts/agreement/calibrate` found them over 1,408 tokens: on the embedded model, which is trained, and on synthesised
//! ones, whose random weights leave every choice between tokens nearly even, so that rounding shows most (2 layers, and 24).
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
//! (The two scaled ones of the last column: 16 layers. Permuted: rows the other way round. Scaled: Llama 3's scaling of rotations for texts longer than that, ignored.)
//!
//! So whoever computes in f32 is told from every one of these; 16 and 8 bits from all but the queries of one layer among 24.
//! Weights that the model has in 4 bits already excuse nothing: the witness has the same numbers, and what is left is what
//! kernels lose that round activations to 8 bits. An engine that makes 4 bits of a model itself can hide one wrong matrix in
//! what that costs, and on random weights of many layers a wrong layer (about 0.68 and 0.79 together); to judge that, the
//! witness would have to be given the same rounded numbers. The stretch is what tells rotations, whose error grows with the position and is small
//! over the whole text. Weights in 3 bits and fewer were not measured; their bound is where a model begins to be another one.
//!
//! Of the tokens that an engine gave, the same engines gave up, on average and by the worst of 64: f32 nothing, bf16 3e-4 and
//! 0.017, q8_0 0.001 and 0.03, q6_k 0.012 and 0.27, q4_0 0.59 and 1.8.
use serde::Serialize;

use crate::plan::Configuration;
use crate::plan::dtype::nominal_bits;
use crate::record::Launch;

/// The most that `exact` may differ by.
pub const EXACT: f64 = 1e-3;
/// The most that `agrees` may differ by.
pub const AGREES: f64 = 0.05;
/// Two tokens that lie nearer to each other than this are as good as one: which of them comes first is rounding.
pub const NEAR_TIE: f64 = 0.01;

/// The coarsest rounding on an engine's way from the model's own numbers to its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// f32, from numbers that are the model's own.
    Full,
    /// bf16 or f16 somewhere.
    Bits16,
    /// Weights or activations in 8 bits.
    Bits8,
    /// Weights in 5 or 6 bits that the model has in more; or nobody says what.
    Bits6,
    /// Weights in 4 bits that the model has in more.
    Bits4,
    /// In fewer.
    Bits3,
}

/// What excuses an engine before it has said a word: what it was asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked<'a> {
    pub dtype: Option<&'a str>,
    /// The dtype of the model's own numbers.
    pub model: Option<&'a str>,
    /// An option of the user's is about the cache of keys and values.
    pub narrow_cache: bool,
}

impl<'a> Asked<'a> {
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

/// What lies beyond is wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Root mean square over all tokens.
    pub whole: f64,
    /// The same over the worst stretch. A rotation that is wrong grows with the position, and the first tokens of a text
    /// hide it in the mean.
    pub stretch: f64,
    /// What the witness would have given up by the engine's own tokens: on average over all that it was asked about.
    pub gap: f64,
    /// By one of them.
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

    /// As in: so much is what 16 bits explain.
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

    /// Of a configuration: by what its launches state, else by what was asked for, else by what the model is. Of several
    /// launches the one that has least to excuse it: what it once computed in it could have computed in always.
    pub fn of<'a>(launches: impl Iterator<Item = &'a Launch>, asked: &Asked) -> Self {
        let each = launches.filter_map(|launch| launch.loaded.as_ref()).map(|loaded| {
            let facts = &loaded.facts;
            let [weights, compute, kv] = [&facts.weights_dtype, &facts.compute_dtype, &facts.kv_dtype];
            Self::of_dtypes(weights.as_deref(), compute.as_deref(), kv.as_deref(), asked)
        });
        each.min().unwrap_or_else(|| Self::of_dtypes(None, None, None, asked))
    }

    fn of_dtypes(weights: Option<&str>, compute: Option<&str>, kv: Option<&str>, asked: &Asked) -> Self {
        let model = asked.model;
        // A name that nobody knows excuses nothing.
        let known = [weights, asked.dtype, model].into_iter().flatten();
        let bits = |name| Some((name, nominal_bits(name)?));
        let Some((weights, held)) = known.filter_map(bits).next() else { return Self::Bits6 };
        let own = model.is_some_and(|model| weights.eq_ignore_ascii_case(model));
        let narrowed = match held {
            // As narrow as they are, they are the model's own, and the witness has the same ones. Kernels for them round
            // activations to 8 bits.
            ..=8 if own => Self::Bits8,
            _ if own => Self::Full,
            held => Self::of_bits(held),
        };
        // Who is silent on it computes in what its weights are in, and nobody computes in 4 bits.
        let computes = compute.and_then(nominal_bits).unwrap_or(held).max(8);
        // Nobody sees what a cache is kept in: narrower than 16 bits is an excuse for whoever was asked for it.
        let least = if asked.narrow_cache { 0 } else { 16 };
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
        let asked = Asked { model: Some(model), ..Asked::default() };
        Precision::of_dtypes(Some(weights), Some(compute), None, &asked)
    }

    #[test]
    fn what_is_excused_is_what_was_rounded_on_the_way_from_the_models_own_numbers() {
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
    fn a_file_in_4_bits_is_no_excuse_for_another_result_than_its_own_numbers_give() {
        assert_eq!(of("q4_0", "f32", "Q4_0"), Precision::Bits8);
        assert_eq!(of("bf16", "bf16", "q4_0"), Precision::Bits16);
        assert_eq!(of("f32", "f32", "q4_0"), Precision::Full);
    }

    #[test]
    fn a_cache_in_fewer_bits_is_an_excuse_for_whoever_was_asked_for_it() {
        let kept = |kv, narrow_cache| {
            let asked = Asked { model: Some("f32"), narrow_cache, ..Asked::default() };
            Precision::of_dtypes(Some("f32"), Some("f32"), Some(kv), &asked)
        };
        use Precision::*;
        let all = ["f32", "f16", "q8_0", "q4_0", "q2_k", "anything"];
        assert_eq!(all.map(|kv| kept(kv, false)), [Full, Bits16, Bits16, Bits16, Bits16, Full]);
        assert_eq!(all.map(|kv| kept(kv, true)), [Full, Bits16, Bits8, Bits4, Bits3, Full]);
        let mut configuration = Configuration::default();
        assert!(!Asked::of(&configuration).narrow_cache);
        configuration.options.insert("cache_type_k".into(), "q4_0".into());
        assert!(Asked::of(&configuration).narrow_cache);
    }

    #[test]
    fn silence_and_a_name_that_nobody_knows_excuse_what_was_asked_for_and_no_more() {
        let of = |weights, dtype, model| {
            Precision::of_dtypes(weights, None, None, &Asked { dtype, model, narrow_cache: false })
        };
        assert_eq!(Precision::of(std::iter::empty(), &Asked::default()), Precision::Bits6);
        for weights in [None, Some("exotic"), Some("trust-1")] {
            assert_eq!(of(weights, Some("q4_0"), Some("bf16")), Precision::Bits4);
            assert_eq!(of(weights, None, Some("bf16")), Precision::Bits16);
            assert_eq!(of(weights, None, Some("f32")), Precision::Full);
        }
    }

    #[test]
    fn of_several_launches_the_one_with_least_excuse_counts() {
        let launch = |weights: &str| {
            let mut launch = Launch::default();
            launch.loaded.get_or_insert_default().facts.weights_dtype = Some(weights.into());
            launch
        };
        let asked = Asked { model: Some("f32"), ..Asked::default() };
        let launches = [launch("q4_0"), launch("f32")];
        assert_eq!(Precision::of(launches.iter(), &asked), Precision::Full);
    }
}
