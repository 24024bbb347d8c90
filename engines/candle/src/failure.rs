//! Converts errors of candle and faults of a model to `Failed`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use candle_core::{Device, Error};
use protocol::{Failed, FailureKind};

use crate::device::{explained, trouble};
use crate::network::{Built, Decoder};

/// The failure for model files that are broken, or in a form that candle does not read: names the file and the error.
pub fn model(file: &Path, what: impl std::fmt::Display) -> Failed {
    Failed::new(FailureKind::Model, format!("`{}`: {what}", file.display()))
}

/// The failure for a model that candle does not support, or would compute wrongly.
pub fn unsupported(what: impl Into<String>) -> Failed {
    Failed::new(FailureKind::Unsupported, what)
}

/// Builds a decoder. An error is the model's fault unless a device library names it as its own.
pub fn building(
    file: &Path,
    device: &Device,
    build: impl FnOnce() -> Built,
) -> Result<Box<dyn Decoder>, Failed> {
    let failed = |text: String| {
        let text = explained(device, text);
        trouble::failed(&text, FailureKind::Model, format!("`{}`: {text}", file.display()))
    };
    match catch_unwind(AssertUnwindSafe(build)) {
        Ok(built) => built.map_err(|error| failed(first_line(&error))),
        // candle's llama unwraps the results of its layers, including a device's errors. Other panics continue.
        Err(panic) => match panic.downcast_ref::<String>().filter(|text| trouble::in_words(text).is_some()) {
            Some(text) => Err(failed(text.chars().take_while(|char| *char != '\n').take(200).collect())),
            None => resume_unwind(panic),
        },
    }
}

/// The failure for an error of candle during a request.
pub fn computing(what: &str, error: &Error, device: &Device) -> Failed {
    let text = explained(device, first_line(error));
    trouble::failed(&text, FailureKind::Internal, format!("{what}: {text}"))
}

/// candle may append a backtrace, which does not fit a row of a table.
pub fn first_line(error: &Error) -> String {
    error.to_string().lines().next().unwrap_or("no message").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built_by(build: impl FnOnce() -> Built) -> Failed {
        building(Path::new("m"), &Device::Cpu, build).err().unwrap()
    }

    #[test]
    fn a_device_without_memory_is_not_the_models_fault() {
        let text = r#"DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")"#;
        let said = built_by(|| candle_core::bail!("{text}"));
        assert_eq!(said.kind, FailureKind::OutOfMemory);
        assert_eq!(said.message, format!("`m`: {text}"));
        // The same call as in candle's llama.
        let panicked = built_by(|| Err::<(), _>(text).map(|()| unreachable!()).unwrap());
        assert_eq!(panicked.kind, FailureKind::OutOfMemory);
        assert!(panicked.message.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{panicked:?}");
    }

    #[test]
    fn what_is_no_devices_error_is_the_models() {
        assert_eq!(built_by(|| candle_core::bail!("cannot find tensor x")).kind, FailureKind::Model);
    }

    #[test]
    #[should_panic(expected = "candle is at its end")]
    fn a_panic_that_is_no_devices_goes_its_way() {
        built_by(|| panic!("{} is at its end", "candle"));
    }
}
