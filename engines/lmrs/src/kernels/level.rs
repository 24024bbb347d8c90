//! The levels of a processor: detected at run time, and selected by name in tests and by an option.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};

#[cfg(target_arch = "aarch64")]
#[path = "level/arm.rs"]
mod machine;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[path = "level/other.rs"]
mod machine;
#[cfg(target_arch = "x86_64")]
#[path = "level/x86.rs"]
mod machine;

/// A level that this machine has. Only `here`, `best` and parsing create one, so a value proves that it is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(Instructions);

/// The instruction sets of the levels, the lowest first. Each computes the same as those before it, faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Instructions {
    Portable,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 with BW, VL, DQ and VNNI; code that uses BF16 checks for it separately.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Tiles with products of bf16 and of eight bits, which the kernel permits to this process.
    #[cfg(target_arch = "x86_64")]
    Amx,
}

/// The instructions of a level, its name, and a check whether this machine has it.
type Entry = (Instructions, &'static str, fn() -> bool);

/// All names, those of other processors included.
const WORDS: [&str; 5] = ["portable", "neon", "avx2", "avx512", "amx"];

impl Level {
    /// The level that every machine has.
    pub const PORTABLE: Self = Self(Instructions::Portable);

    /// The best level of this machine.
    pub fn best() -> Self {
        Self::here().last().copied().unwrap_or(Self::PORTABLE)
    }

    /// The levels of this machine, the lowest first.
    pub fn here() -> Vec<Self> {
        machine::LEVELS.iter().filter(|(_, _, has)| has()).map(|(level, ..)| Self(*level)).collect()
    }

    pub fn instructions(self) -> Instructions {
        self.0
    }

    pub fn word(self) -> &'static str {
        machine::LEVELS.iter().find(|(level, ..)| *level == self.0).map_or(WORDS[0], |(_, word, _)| *word)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.word())
    }
}

/// Parses the name of a level that this machine has.
impl FromStr for Level {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Self> {
        let here = Self::here();
        if let Some(level) = here.iter().find(|level| level.word() == word) {
            return Ok(*level);
        }
        let have: Vec<String> = here.iter().map(|level| format!("`{level}`")).collect();
        let have = have.join(", ");
        match WORDS.contains(&word) {
            true => bail!("this machine has no `{word}`\nhint: it has {have}"),
            false => bail!("`{word}` is no level of kernels\nhint: this machine has {have}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_of_this_machine_is_found_by_its_word() {
        for level in Level::here() {
            assert_eq!(level.word().parse::<Level>().unwrap(), level);
        }
        assert_eq!(Level::here()[0], Level::PORTABLE);
        assert!(Level::here().is_sorted());
        assert_eq!(Level::best(), *Level::here().last().unwrap());
    }

    #[test]
    fn a_level_that_is_not_here_is_refused_with_those_that_are() {
        let unknown = "sse9".parse::<Level>().unwrap_err().to_string();
        assert!(unknown.contains("`sse9`") && unknown.contains("`portable`"), "{unknown}");
        let missing = WORDS.iter().find(|word| !Level::here().iter().any(|level| level.word() == **word));
        let error = missing.unwrap().parse::<Level>().unwrap_err().to_string();
        assert!(error.contains("hint: it has `portable`"), "{error}");
    }
}
