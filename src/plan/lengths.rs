//! The lengths of prompts and outputs in a window of overlapping requests. They are the same in every window, for every engine.

use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::length_files::LengthFile;
use crate::shell::{did_you_mean, listed};

/// How lengths vary, up to the longest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lengths {
    /// Prompts of four lengths, from a quarter of the longest to all of it; outputs of one length.
    #[default]
    Quarters,
    /// Prompts and outputs of one length each.
    Even,
    /// Prompts and outputs of all lengths from a quarter of the longest to all of it.
    Uniform,
    /// Prompts and outputs with many short ones and few long ones: half of them have at most a quarter of the longest, 1 of 100 has
    /// all of it.
    Lognormal,
    /// Prompts and outputs as long as those of real requests.
    File(LengthFile),
}

/// The names on the command line and in records.
pub const NAMES: [(&str, Lengths); 4] = [
    ("quarters", Lengths::Quarters),
    ("even", Lengths::Even),
    ("uniform", Lengths::Uniform),
    ("lognormal", Lengths::Lognormal),
];

/// The standard deviation of the logarithm, with which the longest length is the 99th percentile: ln(4) / 2.326.
const LOGNORMAL_SIGMA: f64 = 0.596;
/// Steps through the unit interval whose multiples fill it evenly, however many there are: the fractional parts of the golden ratio
/// and of the square root of 2. With two numbers, the length of an output does not depend on that of its prompt.
const PROMPT_STEP: f64 = 0.618_033_988_749_894_9;
const OUTPUT_STEP: f64 = 0.414_213_562_373_095_1;

impl Lengths {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub fn file(self) -> Option<LengthFile> {
        match self {
            Self::File(file) => Some(file),
            Self::Quarters | Self::Even | Self::Uniform | Self::Lognormal => None,
        }
    }

    /// The same lengths, with the requests of a window if they come from a file.
    pub fn drawn(self, requests: u32, seed: u64) -> Self {
        self.file().map_or(self, |file| Self::File(file.draw(requests, seed)))
    }

    /// The number of tokens in the prompt of this request of a window.
    pub fn of_prompt(self, longest: u32, request: u32) -> u32 {
        match self {
            Self::Quarters => quarters(longest, request),
            Self::File(file) => file.of_request(request).map_or(longest, |it| it.prompt_tokens),
            _ => self.at(longest, request, PROMPT_STEP),
        }
    }

    /// The number of tokens that this request of a window asks for.
    pub fn of_output(self, longest: u32, request: u32) -> u32 {
        match self {
            Self::Quarters => longest,
            // A warm-up may ask for fewer tokens than the file has.
            Self::File(file) => file.of_request(request).map_or(longest, |it| it.new_tokens.min(longest)),
            _ => self.at(longest, request, OUTPUT_STEP),
        }
    }

    fn at(self, longest: u32, request: u32, step: f64) -> u32 {
        let quantile = (0.5 + f64::from(request) * step).fract();
        let share = match self {
            Self::Quarters | Self::Even | Self::File(_) => 1.0,
            Self::Uniform => 0.25 + 0.75 * quantile,
            Self::Lognormal => 0.25 * (LOGNORMAL_SIGMA * stats::normal_quantile(quantile)).exp(),
        };
        ((f64::from(longest) * share).round() as u32).clamp(1, longest.max(1))
    }
}

impl FromStr for Lengths {
    type Err = String;

    /// A kind, or the path of a file.
    fn from_str(word: &str) -> Result<Self, String> {
        if let Some((_, lengths)) = NAMES.iter().find(|(name, _)| *name == word) {
            return Ok(*lengths);
        }
        let names = NAMES.map(|(name, _)| name);
        if !word.contains(['/', '.']) {
            let hint = did_you_mean(word, &names).unwrap_or_else(|| listed(&names));
            return Err(format!("no kind of lengths; a file needs a path, as in `./{word}`\nhint: {hint}"));
        }
        LengthFile::read(Path::new(word)).map(Self::File).map_err(|error| format!("{error:#}"))
    }
}

/// Four lengths in turn, from the longest to a quarter of it.
pub fn quarters(longest: u32, request: u32) -> u32 {
    let parts = 4 - request % 4;
    (longest / 4 * parts + longest % 4 * parts / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(lengths: Lengths, of: fn(Lengths, u32, u32) -> u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..400).map(|request| of(lengths, 400, request)).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn lengths_have_their_distribution_up_to_the_longest() {
        for of in [Lengths::of_prompt, Lengths::of_output] {
            assert_eq!(all(Lengths::Even, of), [400; 400]);
            let uniform = all(Lengths::Uniform, of);
            let [low, middle, high] = [0, 200, 399].map(|it| uniform[it]);
            assert!(low <= 105 && high >= 395 && (245..=255).contains(&middle), "{low} {middle} {high}");
            let lognormal = all(Lengths::Lognormal, of);
            let [middle, long, longest] = [200, 380, 399].map(|it| lognormal[it]);
            assert!((97..=103).contains(&middle) && (250..=290).contains(&long), "{middle} {long}");
            assert_eq!(longest, 400);
        }
        assert_eq!(all(Lengths::Quarters, Lengths::of_output), [400; 400]);
        let first: Vec<u32> = (0..5).map(|it| Lengths::Quarters.of_prompt(64, it)).collect();
        assert_eq!(first, [64, 48, 32, 16, 64]);
    }

    #[test]
    fn a_word_that_is_no_kind_and_no_path_gets_a_hint() {
        assert_eq!("even".parse(), Ok(Lengths::Even));
        let expected =
            "no kind of lengths; a file needs a path, as in `./unifor`\nhint: did you mean `uniform`?";
        assert_eq!("unifor".parse::<Lengths>().unwrap_err(), expected);
        assert!("./absent.csv".parse::<Lengths>().unwrap_err().contains("No such file"));
    }

    #[test]
    fn a_length_is_at_least_one_token() {
        for (_, lengths) in NAMES {
            assert!((0..50).all(|it| lengths.of_prompt(1, it) == 1 && lengths.of_output(2, it) >= 1));
        }
    }
}
