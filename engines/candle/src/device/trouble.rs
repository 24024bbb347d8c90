//! Finds the kind of a failure from an error's text: candle passes on the error names of CUDA's libraries.

use protocol::{Failed, FailureKind};

pub const MORE_ROOM: &str = "nvidia-smi    # says who holds the memory; `--dtype bf16` needs half of f32";
const REBUILD: &str = "CUDA_COMPUTE_CAP=86 orchestrate setup candle --device cuda    # 86 is 8.6, as `nvidia-smi --query-gpu=compute_cap --format=csv` says it";
const DRIVER: &str = "nvidia-smi    # `CUDA Version` must be 13.0 or later: a driver of the 580 series";

/// Substrings of error texts (the first match counts), their kind and a hint.
const TROUBLES: &[(&[&str], FailureKind, Option<&str>)] = &[
    (
        &["OUT_OF_MEMORY", "out of memory", "STATUS_ALLOC_FAILED", "STATUS_ALLOCATION_FAILED"],
        FailureKind::OutOfMemory,
        Some(MORE_ROOM),
    ),
    (
        &["CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_INVALID_DEVICE"],
        FailureKind::Unavailable,
        Some("nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES"),
    ),
    (
        &["CUDA_ERROR_NO_BINARY_FOR_GPU", "CUDA_ERROR_INVALID_PTX", "no kernel image"],
        FailureKind::Unavailable,
        Some(REBUILD),
    ),
    (
        &[
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
            "CUDA_ERROR_COMPAT_NOT_SUPPORTED",
            "driver version is insufficient",
        ],
        FailureKind::Unavailable,
        Some(DRIVER),
    ),
    (
        &["CUDA_ERROR_STUB_LIBRARY"],
        FailureKind::Unavailable,
        Some("echo $LD_LIBRARY_PATH    # a folder of stubs stands before the driver's libcuda.so.1"),
    ),
    // A path may contain `cuda` too; these are only in names of errors.
    (&["CUDA_ERROR_", "CUBLAS_STATUS_", "CURAND_STATUS_"], FailureKind::Device, None),
];

/// The kind and hint of a device library's error; `None` for other texts.
pub fn in_words(text: &str) -> Option<(FailureKind, Option<&'static str>)> {
    let found = TROUBLES.iter().find(|(signs, ..)| signs.iter().any(|sign| text.contains(sign)));
    found.map(|(_, kind, hint)| (*kind, *hint))
}

/// A failure with the kind of the text, or `otherwise` if the text is not from a device library.
pub fn failed(text: &str, otherwise: FailureKind, message: String) -> Failed {
    let (kind, hint) = in_words(text).unwrap_or((otherwise, None));
    let failed = Failed::new(kind, message);
    match hint {
        Some(hint) => failed.hint(hint),
        None => failed,
    }
}

/// The failure for a GPU that the kernels were not compiled for.
#[cfg(any(feature = "cuda", test))]
pub fn other_gpu(device: &str, name: &str, (major, minor): (u32, u32), arch: &str) -> Failed {
    let what =
        format!("`{device}` ({name}) has compute capability {major}.{minor}, and this build is for {arch}");
    Failed::new(FailureKind::Unavailable, what)
        .hint(format!("CUDA_COMPUTE_CAP={major}{minor} orchestrate setup candle --device cuda"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> Option<FailureKind> {
        in_words(text).map(|(kind, _)| kind)
    }

    #[test]
    fn errors_of_cuda_are_told_apart_by_their_names() {
        let each = [
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
        for (text, expected) in each {
            assert_eq!(kind(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_error_of_a_device_keeps_its_kind() {
        assert_eq!(kind("shape mismatch in matmul, lhs: [1, 2], rhs: [3, 4]"), None);
        assert_eq!(kind("cannot read /models/cuda/out/model.safetensors"), None);
        let failed = failed("cannot find tensor x", FailureKind::Model, "`m`: cannot find tensor x".into());
        assert_eq!((failed.kind, failed.hint), (FailureKind::Model, None));
    }

    #[test]
    fn a_failure_keeps_its_message_and_gains_what_helps() {
        let text = "DriverError(CUDA_ERROR_NO_BINARY_FOR_GPU, ..)";
        let failed = failed(text, FailureKind::Internal, format!("forward pass: {text}"));
        assert_eq!(failed.message, format!("forward pass: {text}"));
        assert!(
            failed.hint.unwrap().starts_with("CUDA_COMPUTE_CAP=86 orchestrate setup candle --device cuda")
        );
    }

    #[test]
    fn a_gpu_of_another_capability_is_named_with_the_command_that_builds_for_it() {
        let failed = other_gpu("cuda:0", "NVIDIA A10", (8, 6), "sm_90a");
        let expected = "`cuda:0` (NVIDIA A10) has compute capability 8.6, and this build is for sm_90a";
        assert_eq!(failed.message, expected);
        let hint = failed.hint.unwrap();
        assert_eq!(hint, "CUDA_COMPUTE_CAP=86 orchestrate setup candle --device cuda");
    }
}
