//! The device of an engine, by its name: whether the name means the CPU, and which CUDA index it has.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A name from a command line, a manifest or an engine: `cpu`, `cuda`, `cuda:1`, `metal`. Records keep it as given. An empty
/// name means that the device is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Device(String);

/// The device that every machine has.
pub const CPU: &str = "cpu";
const CUDA: &str = "cuda";

impl Device {
    pub fn cpu() -> Self {
        Self(CPU.into())
    }

    /// A GPU by CUDA's index.
    pub fn cuda(index: u32) -> Self {
        Self(format!("{CUDA}:{index}"))
    }

    /// The device that an engine reports, or else the requested one.
    pub fn in_effect(reported: Option<&str>, requested: &Self) -> Self {
        reported.map_or_else(|| requested.clone(), Self::from)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_known(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether the device is the CPU, in any spelling: `cpu:0`, `CPU`, `CPU (AVX2)`.
    pub fn is_cpu(&self) -> bool {
        let (start, rest) = self.0.split_at_checked(CPU.len()).unwrap_or_default();
        start.eq_ignore_ascii_case(CPU) && !rest.starts_with(|next: char| next.is_alphabetic())
    }

    /// Whether both names mean the same device: `cuda` is the first GPU.
    pub fn is_same(&self, other: &Self) -> bool {
        let cuda_index = self.cuda_index();
        (self.is_cpu() && other.is_cpu())
            || (cuda_index.is_some() && cuda_index == other.cuda_index())
            || self.0.eq_ignore_ascii_case(&other.0)
    }

    /// The name without an index, in lower case: `cuda` for `cuda:1`. Manifests list device settings by family.
    pub fn family(&self) -> String {
        self.0.split(':').next().unwrap_or_default().to_ascii_lowercase()
    }

    /// Whether an engine that reports this device runs on the given one. A given `cuda` means any CUDA GPU. Here a reported
    /// `cuda` counts as the first GPU (unlike in `cuda_index_reported`).
    pub fn satisfies(&self, given: &Self) -> bool {
        let (reported, given) = (self.0.to_ascii_lowercase(), given.0.to_ascii_lowercase());
        reported == given || self.family() == given || given.strip_suffix(":0") == Some(&reported)
    }

    /// CUDA's index of the GPU that the name means: `cuda` is the first one.
    pub fn cuda_index(&self) -> Option<u32> {
        let (start, rest) = self.0.split_at_checked(CUDA.len())?;
        match start.eq_ignore_ascii_case(CUDA).then_some(rest)? {
            "" => Some(0),
            rest => rest.strip_prefix(':')?.parse().ok(),
        }
    }

    /// CUDA's index of a reported device: `cuda` without a number is the requested GPU.
    pub fn cuda_index_reported(&self, requested: &Self) -> Option<u32> {
        let index = self.cuda_index()?;
        if self.0.contains(':') { Some(index) } else { requested.cuda_index() }
    }
}

impl From<&str> for Device {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl FromStr for Device {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name.trim() {
            "" => Err("expected a device such as `cpu` or `cuda:1`"),
            name if is_other_cpu(name) => Err("the CPU is one device: `cpu`"),
            name => Ok(Self::from(name)),
        }
    }
}

/// Whether the name is `cpu` with an index other than 0.
fn is_other_cpu(name: &str) -> bool {
    let index = name.split_once(':').filter(|(family, _)| family.eq_ignore_ascii_case(CPU));
    index.is_some_and(|(_, index)| index != "0")
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_cpu_is_the_cpu() {
        for name in ["cpu", "cpu:0", "CPU", "cpu0", "CPU (AVX2)"] {
            assert!(Device::from(name).is_cpu(), "{name}");
        }
        for name in ["", "cp", "cpux", "cuda", "cuda:0", "metal", "gpu", "çpu"] {
            assert!(!Device::from(name).is_cpu(), "{name}");
        }
    }

    #[test]
    fn a_cpu_with_an_index_above_zero_cannot_be_requested() {
        let is_accepted = |name: &str| name.parse::<Device>().is_ok();
        assert_eq!(
            ["cpu", "CPU", "cpu:0", "cpu:7", "cuda:7"].map(is_accepted),
            [true, true, true, false, true]
        );
    }

    #[test]
    fn a_device_family_is_the_name_before_the_index() {
        let family = |name: &str| Device::from(name).family();
        assert_eq!(["cuda:1", "cuda", "cpu:0", ""].map(family), ["cuda", "cuda", "cpu", ""]);
        // `is_cpu` and `cuda_index` ignore case too.
        assert_eq!(["CUDA:1", "Cuda", "CPU"].map(family), ["cuda", "cuda", "cpu"]);
    }

    #[test]
    fn a_device_satisfies_its_family_and_a_family_its_first_device() {
        let satisfies = |reported: &str, given: &str| Device::from(reported).satisfies(&given.into());
        for (reported, given) in
            [("cuda:1", "cuda:1"), ("cuda:1", "cuda"), ("cuda", "cuda:0"), ("cuda:0", "CUDA"), ("CPU", "cpu")]
        {
            assert!(satisfies(reported, given), "{reported} {given}");
        }
        for (reported, given) in [("cuda", "cuda:1"), ("cuda:1", "cuda:0"), ("cpu", "cuda"), ("cuda", "cud")]
        {
            assert!(!satisfies(reported, given), "{reported} {given}");
        }
    }

    #[test]
    fn only_a_cuda_device_has_a_cuda_index() {
        let index = |name: &str| Device::from(name).cuda_index();
        assert_eq!(["cuda", "cuda:2", "CUDA:1"].map(index), [Some(0), Some(2), Some(1)]);
        assert_eq!((Device::cuda(3).as_str(), Device::cuda(3).cuda_index()), ("cuda:3", Some(3)));
        assert_eq!(["cuda:x", "cuda12", "cpu", "metal:1", ""].map(index), [None; 5]);
        let reported =
            |reported: &str, requested: &str| Device::from(reported).cuda_index_reported(&requested.into());
        assert_eq!((reported("cuda", "cuda:3"), reported("cuda:1", "cuda:3")), (Some(3), Some(1)));
        assert_eq!((reported("cuda", "cpu"), reported("cpu", "cuda:3")), (None, None));
    }

    #[test]
    fn a_record_has_the_device_name_as_given() {
        let text = serde_json::to_string(&Device::from("CUDA:1")).unwrap();
        assert_eq!(text, "\"CUDA:1\"");
        assert_eq!(serde_json::from_str::<Device>(&text).unwrap().as_str(), "CUDA:1");
    }

    #[test]
    fn an_empty_device_name_is_refused() {
        assert!("".parse::<Device>().is_err() && " ".parse::<Device>().is_err());
        assert_eq!("cuda:1".parse(), Ok(Device::from("cuda:1")));
    }
}
