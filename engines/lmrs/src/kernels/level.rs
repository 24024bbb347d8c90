//! Levels: the instruction sets of kernels. Those of the machine are detected; tests and a load option select one by name.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};

/// A level that this machine has: only `PORTABLE`, `available`, `best` and parsing make a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(Instructions);

/// The instruction sets of the levels, the lowest first. Each computes the same products as the one before it, but faster.
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
    /// AMX with products of bf16 and of eight bits. The operating system permits this process to use its tiles.
    #[cfg(target_arch = "x86_64")]
    Amx,
}

/// The instructions of a level, its name, and a check whether this machine has it.
type Entry = (Instructions, &'static str, fn() -> bool);

/// The names of all levels, including the levels of other processors.
const LEVEL_NAMES: [&str; 5] = ["portable", "neon", "avx2", "avx512", "amx"];

impl Level {
    /// The level that every machine has: code without special instructions.
    pub const PORTABLE: Self = Self(Instructions::Portable);

    /// The best level of this machine.
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self::PORTABLE)
    }

    /// The levels of this machine, the lowest first.
    pub fn available() -> Vec<Self> {
        machine::LEVELS
            .iter()
            .filter(|(_, _, is_available)| is_available())
            .map(|(level, ..)| Self(*level))
            .collect()
    }

    pub fn instructions(self) -> Instructions {
        self.0
    }

    pub fn name(self) -> &'static str {
        machine::LEVELS
            .iter()
            .find(|(level, ..)| *level == self.0)
            .map_or(LEVEL_NAMES[0], |(_, name, _)| *name)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Parses the name of a level that this machine has.
impl FromStr for Level {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let available = Self::available();
        if let Some(level) = available.iter().find(|level| level.name() == name) {
            return Ok(*level);
        }
        let names: Vec<String> = available.iter().map(|level| format!("`{level}`")).collect();
        let names = names.join(", ");
        match LEVEL_NAMES.contains(&name) {
            true => bail!(
                "this machine lacks the instructions of level `{name}`\nhint: the levels of this machine are {names}"
            ),
            false => bail!(
                "`kernels`: no level `{name}`, expected one of {}\nhint: the levels of this machine are {names}",
                LEVEL_NAMES.map(|name| format!("`{name}`")).join(", ")
            ),
        }
    }
}

/// The levels of x86 processors.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "AMX instructions, tried on a test product")]
mod machine {
    use std::sync::LazyLock;

    use system::amx::Products;

    use super::{Entry, Instructions};
    use crate::kernels::rows::tiles_compute_correctly;

    pub const LEVELS: &[Entry] = &[
        (Instructions::Portable, "portable", || true),
        (Instructions::Avx2, "avx2", avx2),
        (Instructions::Avx512, "avx512", avx512),
        (Instructions::Amx, "amx", amx),
    ];

    fn avx2() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    }

    fn avx512() -> bool {
        avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
    }

    /// Checked once, because the permission to use AMX is per process.
    fn amx() -> bool {
        static AMX: LazyLock<bool> = LazyLock::new(|| {
            let is_usable = avx512()
                && is_x86_feature_detected!("avx512bf16")
                && Products::request() == Products { bf16: true, int8: true };
            // SAFETY: the processor has tiles and the process may use them. A test product confirms that they work.
            is_usable && unsafe { tiles_compute_correctly() }
        });
        *AMX
    }
}

/// The levels of ARM processors: basic NEON, which every 64-bit core has. Products of eight bits use `vmull_s8`, because Rust's
/// intrinsics for dot products are not stable.
#[cfg(target_arch = "aarch64")]
mod machine {
    use super::{Entry, Instructions};

    pub const LEVELS: &[Entry] = &[
        (Instructions::Portable, "portable", || true),
        (Instructions::Neon, "neon", || std::arch::is_aarch64_feature_detected!("neon")),
    ];
}

/// Other processors, with the portable level only.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod machine {
    use super::{Entry, Instructions};

    pub const LEVELS: &[Entry] = &[(Instructions::Portable, "portable", || true)];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_of_this_machine_is_found_by_its_name() {
        for level in Level::available() {
            assert_eq!(level.name().parse::<Level>().unwrap(), level);
        }
        assert_eq!(Level::available()[0], Level::PORTABLE);
        assert!(Level::available().is_sorted());
        assert_eq!(Level::best(), *Level::available().last().unwrap());
    }

    #[test]
    fn the_error_for_a_missing_level_lists_the_available_ones() {
        let unknown = "sse9".parse::<Level>().unwrap_err().to_string();
        assert!(unknown.contains("`sse9`") && unknown.contains("`portable`"), "{unknown}");
        let missing =
            LEVEL_NAMES.iter().find(|name| !Level::available().iter().any(|level| level.name() == **name));
        let error = missing.unwrap().parse::<Level>().unwrap_err().to_string();
        assert!(error.contains("hint: the levels of this machine are `portable`"), "{error}");
    }
}
