//! Converts errors of candle and of model files to `Failed`.
//!
//! candle passes on the error names of CUDA's libraries, so the kind of a device's error is found in its text.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

use candle_core::{Device, Error};
use protocol::{Failed, FailureKind};

use crate::device::add_free_memory;
use crate::model::{Built, Decoder};

/// The failure for model files that are broken, or in a form that candle does not read: it names the file and the error.
pub fn model_failure(file: &Path, error: impl std::fmt::Display) -> Failed {
    Failed::new(FailureKind::Model, format!("`{}`: {error}", file.display()))
}

/// The failure for a model or a setting that candle does not support, or for a model that it would compute wrongly.
pub fn unsupported(message: impl Into<String>) -> Failed {
    Failed::new(FailureKind::Unsupported, message)
}

/// Runs `build`. An error is a failure of the model, unless its text is from a device library.
pub fn build_decoder(
    file: &Path,
    device: &Device,
    build: impl FnOnce() -> Built,
) -> Result<Box<dyn Decoder>, Failed> {
    let failed = |text: String| {
        let text = add_free_memory(device, text);
        classified_failure(&text, FailureKind::Model, format!("`{}`: {text}", file.display()))
    };
    match catch_unwind(AssertUnwindSafe(build)) {
        Ok(built) => built.map_err(|error| failed(first_line(&error))),
        // candle's llama unwraps the results of its layers, including a device's errors. Other panics continue.
        Err(panic) => match panic.downcast_ref::<String>().filter(|text| classify(text).is_some()) {
            Some(text) => Err(failed(text.chars().take_while(|char| *char != '\n').take(200).collect())),
            None => resume_unwind(panic),
        },
    }
}

/// The failure for an error of candle during a request.
pub fn compute_failure(step: &str, error: &Error, device: &Device) -> Failed {
    let text = add_free_memory(device, first_line(error));
    classified_failure(&text, FailureKind::Internal, format!("{step}: {text}"))
}

/// The first line of an error. candle may append a backtrace, which does not fit a row of a table.
pub fn first_line(error: &Error) -> String {
    error.to_string().lines().next().unwrap_or("no message").to_string()
}

pub const FREE_MEMORY_HINT: &str =
    "nvidia-smi    # lists the programs that hold memory; `--dtype bf16` needs half of f32";
const REBUILD_HINT: &str = "CUDA_COMPUTE_CAP=86 orchestrate setup candle --device cuda    # 86 means 8.6; `nvidia-smi --query-gpu=compute_cap --format=csv` prints the GPU's value";
const DRIVER_HINT: &str = "nvidia-smi    # `CUDA Version` must be 13.0 or later, from driver 580 on";

/// Substrings of error texts, their kind and a hint. The first entry that matches counts.
const DEVICE_ERRORS: &[(&[&str], FailureKind, Option<&str>)] = &[
    (
        &["OUT_OF_MEMORY", "out of memory", "STATUS_ALLOC_FAILED", "STATUS_ALLOCATION_FAILED"],
        FailureKind::OutOfMemory,
        Some(FREE_MEMORY_HINT),
    ),
    (
        &["CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_INVALID_DEVICE"],
        FailureKind::Unavailable,
        Some("nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES"),
    ),
    (
        &["CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_PTX", "no kernel image"],
        FailureKind::Unavailable,
        Some(REBUILD_HINT),
    ),
    (
        &[
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED",
            "driver version is insufficient",
        ],
        FailureKind::Unavailable,
        Some(DRIVER_HINT),
    ),
    (
        &["CUDA_ERROR_STUB_LIBRARY"],
        FailureKind::Unavailable,
        Some(
            "echo $LD_LIBRARY_PATH    # a folder of stubs comes before the folder of the driver's libcuda.so.1",
        ),
    ),
    // Only the names of errors contain these texts; a path may contain `cuda`.
    (&["CUDA_ERROR_", "CUBLAS_STATUS_", "CURAND_STATUS_"], FailureKind::Device, None),
];

/// The kind and hint of a device library's error; `None` for other texts.
pub fn classify(text: &str) -> Option<(FailureKind, Option<&'static str>)> {
    let entry = DEVICE_ERRORS.iter().find(|(parts, ..)| parts.iter().any(|part| text.contains(part)));
    entry.map(|(_, kind, hint)| (*kind, *hint))
}

/// A failure with the kind of the text, or `otherwise` if the text is not from a device library.
pub fn classified_failure(text: &str, otherwise: FailureKind, message: String) -> Failed {
    let (kind, hint) = classify(text).unwrap_or((otherwise, None));
    let failed = Failed::new(kind, message);
    match hint {
        Some(hint) => failed.hint(hint),
        None => failed,
    }
}

/// The message for a number beyond the GPUs that CUDA sees.
#[cfg(any(feature = "cuda", test))]
pub fn no_such_gpu(name: &str, count: usize) -> String {
    match count {
        0 => format!("no `{name}`: CUDA sees no GPU here"),
        1 => format!("no `{name}`: CUDA sees 1 GPU here, `cuda:0`"),
        _ => format!("no `{name}`: CUDA sees {count} GPUs here, the first is `cuda:0`"),
    }
}

/// The failure for a GPU that the kernels were not compiled for.
#[cfg(any(feature = "cuda", test))]
pub fn wrong_capability(device: &str, name: &str, (major, minor): (u32, u32), arch: &str) -> Failed {
    let message =
        format!("`{device}` ({name}) has compute capability {major}.{minor}, and this build is for {arch}");
    Failed::new(FailureKind::Unavailable, message)
        .hint(format!("CUDA_COMPUTE_CAP={major}{minor} orchestrate setup candle --device cuda"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_error(build: impl FnOnce() -> Built) -> Failed {
        build_decoder(Path::new("m"), &Device::Cpu, build).err().unwrap()
    }

    #[test]
    fn a_device_out_of_memory_is_no_failure_of_the_model() {
        let text = r#"DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")"#;
        let returned = build_error(|| candle_core::bail!("{text}"));
        assert_eq!(returned.kind, FailureKind::OutOfMemory);
        assert_eq!(returned.message, format!("`m`: {text}"));
        // candle's llama unwraps its results in the same way.
        let panicked = build_error(|| Err::<(), _>(text).map(|()| unreachable!()).unwrap());
        assert_eq!(panicked.kind, FailureKind::OutOfMemory);
        assert!(panicked.message.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{panicked:?}");
    }

    #[test]
    fn an_error_of_candle_itself_is_a_failure_of_the_model() {
        assert_eq!(build_error(|| candle_core::bail!("cannot find tensor x")).kind, FailureKind::Model);
    }

    #[test]
    #[should_panic(expected = "candle panicked by request")]
    fn a_panic_that_is_no_device_error_reaches_the_caller() {
        build_error(|| panic!("{} panicked by request", "candle"));
    }

    fn kind(text: &str) -> Option<FailureKind> {
        classify(text).map(|(kind, _)| kind)
    }

    #[test]
    fn errors_of_cuda_are_classified_by_their_names() {
        let cases = [
            (r#"DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")"#, FailureKind::OutOfMemory),
            ("CublasError(CUBLAS_STATUS_ALLOC_FAILED)", FailureKind::OutOfMemory),
            (
                r#"DriverError(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")"#,
                FailureKind::Unavailable,
            ),
            (
                r#"DriverError(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device")"#,
                FailureKind::Unavailable,
            ),
            ("DriverError(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, ..)", FailureKind::Unavailable),
            ("DriverError(CUDA_ERROR_STUB_LIBRARY, ..)", FailureKind::Unavailable),
            (
                r#"DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")"#,
                FailureKind::Device,
            ),
            ("CublasError(CUBLAS_STATUS_EXECUTION_FAILED)", FailureKind::Device),
        ];
        for (text, expected) in cases {
            assert_eq!(kind(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn an_error_of_candle_itself_has_the_kind_that_the_caller_gives() {
        assert_eq!(kind("shape mismatch in matmul, lhs: [1, 2], rhs: [3, 4]"), None);
        assert_eq!(kind("cannot read /models/cuda/out/model.safetensors"), None);
        let failed = classified_failure(
            "cannot find tensor x",
            FailureKind::Model,
            "`m`: cannot find tensor x".into(),
        );
        assert_eq!((failed.kind, failed.hint), (FailureKind::Model, None));
    }

    #[test]
    fn a_device_error_keeps_its_message_and_gets_a_hint() {
        let text = "DriverError(CUDA_ERROR_NO_BINARY_FOR_GPU, ..)";
        let failed = classified_failure(text, FailureKind::Internal, format!("forward pass: {text}"));
        assert_eq!(failed.message, format!("forward pass: {text}"));
        assert!(
            failed.hint.unwrap().starts_with("CUDA_COMPUTE_CAP=86 orchestrate setup candle --device cuda")
        );
    }

    #[test]
    fn the_message_for_a_missing_gpu_has_the_number_of_gpus_that_cuda_sees() {
        assert_eq!(no_such_gpu("cuda:0", 0), "no `cuda:0`: CUDA sees no GPU here");
        assert_eq!(no_such_gpu("cuda:1", 1), "no `cuda:1`: CUDA sees 1 GPU here, `cuda:0`");
        let of_two = "no `cuda:2`: CUDA sees 2 GPUs here, the first is `cuda:0`";
        assert_eq!(no_such_gpu("cuda:2", 2), of_two);
    }

    #[test]
    fn the_failure_for_a_gpu_of_another_capability_has_the_build_command_as_its_hint() {
        let failed = wrong_capability("cuda:0", "NVIDIA A10", (8, 6), "sm_90a");
        let expected = "`cuda:0` (NVIDIA A10) has compute capability 8.6, and this build is for sm_90a";
        assert_eq!(failed.message, expected);
        let hint = failed.hint.unwrap();
        assert_eq!(hint, "CUDA_COMPUTE_CAP=86 orchestrate setup candle --device cuda");
    }
}
