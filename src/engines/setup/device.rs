//! The devices that an engine is set up for. Only the engine may know an unusual name. A mistyped known name is the user's error,
//! reported before anything is built.

use anyhow::Result;

use crate::engines::manifest::Engine;
use crate::engines::registry::Registry;
use crate::machine::{CPU, Device};
use crate::shell::Usage;
use crate::shell::this_program;

/// The distinct devices, or an error about a mistyped name.
pub fn checked(registry: &Registry, engine: &Engine, devices: &[Device]) -> Result<Vec<Device>> {
    let mut distinct: Vec<Device> = Vec::new();
    for device in devices {
        if let Some(meant) = meant(registry, device) {
            let hint = format!("{} setup {} --device {meant}", this_program(), engine.manifest.name);
            return Err(Usage(format!("no device `{device}`\nhint: {hint}")).into());
        }
        if !distinct.contains(device) {
            distinct.push(device.clone());
        }
    }
    Ok(distinct)
}

/// The known device that this name is probably a mistyped form of.
fn meant(registry: &Registry, device: &Device) -> Option<String> {
    // The name as typed, because capitals are a typing error too.
    let asked = device.as_str().split(':').next().unwrap_or_default();
    let of_manifests = registry.engines.iter().flat_map(|engine| engine.manifest.devices.keys());
    let known: Vec<&str> = of_manifests.map(String::as_str).chain([CPU]).collect();
    let meant = known.iter().find(|known| mistyped(asked, known)).filter(|_| !known.contains(&asked))?;
    Some(format!("{meant}{}", &device.as_str()[asked.len()..]))
}

/// Letters in another order, one missing, one too many, or capitals. A replaced letter is no sign of an error: `xpu`, `npu` and
/// `tpu` are devices too.
fn mistyped(asked: &str, known: &str) -> bool {
    let asked = asked.to_ascii_lowercase();
    let sorted = |word: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    asked == known || sorted(&asked) == sorted(known) || lacks_one(&asked, known) || lacks_one(known, &asked)
}

fn lacks_one(shorter: &str, longer: &str) -> bool {
    longer.char_indices().any(|(at, letter)| {
        longer.len() == shorter.len() + letter.len_utf8()
            && shorter.starts_with(&longer[..at])
            && shorter.ends_with(&longer[at + letter.len_utf8()..])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_device_is_distinguished_from_another_device() {
        for slip in ["cdua", "cuad", "cud", "uda", "cuuda", "cudaa", "CUDA", "Cuda"] {
            assert!(mistyped(slip, "cuda"), "{slip}");
        }
        for other in ["metal", "rocm", "xpu", "cu", "cuda12x", "", "ċuda"] {
            assert!(!mistyped(other, "cuda"), "{other}");
        }
        for other in ["gpu", "xpu", "npu", "tpu", "mps"] {
            assert!(!mistyped(other, CPU), "{other}");
        }
    }
}
