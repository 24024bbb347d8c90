//! The target architecture of the kernels, and the GPUs that can run them. build.rs compiles this file too.

use std::fmt;

/// A compute capability in nvcc's spelling: `sm_86`, `sm_90a`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arch {
    /// The capability without its point: 90 is 9.0.
    number: u32,
    suffix: Option<Suffix>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suffix {
    /// `a`: instructions of this capability only.
    Alone,
    /// `f`: instructions that this capability and later capabilities of its family have.
    Family,
}

impl Arch {
    /// Parses `CUDA_COMPUTE_CAP`: `86`, `8.6`, `90a`, `sm_90a`. Without a suffix, candle's build (`cudaforge`) adds one
    /// from 90 on.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        let text = text.strip_prefix("sm_").unwrap_or(&text);
        let (digits, suffix) = match text.strip_suffix(['a', 'f']) {
            Some(digits) if text.ends_with('a') => (digits, Some(Suffix::Alone)),
            Some(digits) => (digits, Some(Suffix::Family)),
            None => (text, None),
        };
        let digits = match digits.split_once('.') {
            Some((major, minor)) if minor.len() == 1 => format!("{major}{minor}"),
            Some(_) => return None,
            None => digits.to_string(),
        };
        let is_valid = (2..=3).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number: u32 = digits.parse().ok().filter(|_| is_valid)?;
        let default_suffix = match number {
            121.. => Some(Suffix::Family),
            90.. => Some(Suffix::Alone),
            _ => None,
        };
        Some(Self { number, suffix: suffix.or(default_suffix) })
    }

    /// Whether a GPU of this capability runs all kernels. Machine code runs on later minor versions of the same major
    /// version, unless a suffix restricts it. Some of candle's kernels exist only as machine code, which the driver
    /// cannot compile for another major version.
    pub fn runs_on(self, (major, minor): (u32, u32)) -> bool {
        let target = (self.number / 10, self.number % 10);
        match self.suffix {
            Some(Suffix::Alone) => (major, minor) == target,
            Some(Suffix::Family) | None => major == target.0 && minor >= target.1,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.suffix {
            Some(Suffix::Alone) => "a",
            Some(Suffix::Family) => "f",
            None => "",
        };
        write!(formatter, "sm_{}{suffix}", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(text: &str) -> String {
        Arch::parse(text).map_or_else(|| "none".into(), |arch| arch.to_string())
    }

    #[test]
    fn a_capability_is_written_as_candles_build_writes_it() {
        let texts = ["75", "8.6", "89", "90", "sm_90a", " 9.0\n", "100", "120", "121", "90f"];
        let expected = [
            "sm_75", "sm_86", "sm_89", "sm_90a", "sm_90a", "sm_90a", "sm_100a", "sm_120a", "sm_121f",
            "sm_90f",
        ];
        assert_eq!(texts.map(name_of), expected);
    }

    #[test]
    fn an_invalid_capability_is_not_accepted() {
        for text in
            ["", "a", "9", "9.", "9.00", ".9", "-90", "+90", "native", "1000", "90b", "9.0.1", "[N/A]"]
        {
            assert_eq!(name_of(text), "none", "{text}");
        }
    }

    #[test]
    fn kernels_for_a_hopper_run_only_on_a_hopper() {
        let hopper = Arch::parse("90").unwrap();
        assert!(hopper.runs_on((9, 0)));
        assert!(!hopper.runs_on((8, 0)) && !hopper.runs_on((9, 1)) && !hopper.runs_on((10, 0)));
    }

    #[test]
    fn kernels_run_on_later_minor_versions_of_their_major_version() {
        let ampere = Arch::parse("8.6").unwrap();
        assert!(ampere.runs_on((8, 6)) && ampere.runs_on((8, 9)));
        assert!(!ampere.runs_on((8, 0)) && !ampere.runs_on((9, 0)) && !ampere.runs_on((7, 5)));
        let family = Arch::parse("100f").unwrap();
        assert!(family.runs_on((10, 3)) && !family.runs_on((12, 0)));
    }
}
