//! The properties that must hold: the bound on allocation, and the consistency of an accepted model.

use std::alloc::System;
use std::collections::BTreeSet;
use std::sync::Once;

use anyhow::Result;
use cap::Cap;
use model_files::{Config, Dtype, Tensor};

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// Bytes that reading may allocate whatever the size of the input: buffers, tables, the text of an error.
const CONSTANT_BYTES: usize = 64 << 10;

/// Calls `read` and checks its error message, printed as for a user. An allocation beyond
/// `CONSTANT_BYTES + multiple * bytes` fails and ends the process; libFuzzer then keeps the input.
pub fn read_within_bound<T>(multiple: usize, bytes: usize, read: impl FnOnce() -> Result<T>) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(allow_memory_for_panics);
    let bound = MEMORY.allocated() + CONSTANT_BYTES + multiple * bytes;
    MEMORY.set_limit(bound).expect("the bound is above the allocated bytes");
    let result = read().map_err(|error| format!("{error:#}"));
    MEMORY.set_limit(usize::MAX).expect("there is no higher bound");
    match result {
        Ok(value) => Some(value),
        Err(message) => {
            check_message(&message);
            None
        }
    }
}

/// Lifts the limit for a panic: its trace needs more memory than reading may take.
fn allow_memory_for_panics() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let _ = MEMORY.set_limit(usize::MAX);
        hook(panic);
    }));
}

/// A message must escape the names in an untrusted file before they reach a terminal.
fn check_message(message: &str) {
    let control = message.chars().find(|&character| character.is_control() && character != '\n');
    assert!(control.is_none(), "a message holds {control:?}: {message:?}");
}

/// Checks the tensors of a file with this many bytes.
pub fn check_tensors(tensors: &[Tensor], file_bytes: u64) {
    let mut names = BTreeSet::new();
    for tensor in tensors {
        assert!(names.insert(&tensor.name), "two tensors of one name: {tensor:?}");
        let end = tensor.offset.checked_add(tensor.bytes);
        assert!(
            end.is_some_and(|end| end <= file_bytes),
            "beyond the {file_bytes} bytes of its file: {tensor:?}"
        );
        let bytes = bytes_of(tensor.dtype, tensor.elements());
        assert_eq!(bytes, u128::from(tensor.bytes), "the bytes do not match the shape: {tensor:?}");
    }
}

pub fn check_no_overlap(tensors: &[Tensor]) {
    let mut ranges: Vec<_> = tensors.iter().map(|tensor| (tensor.offset, tensor.bytes)).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "two tensors share bytes: {pair:?}");
    }
}

/// Checks the numbers that engines divide by: sizes above 0, heads in whole groups, a finite `rope_theta` above 0.
pub fn check_config(config: &Config) {
    let positive = [
        config.hidden_size,
        config.layers,
        config.heads,
        config.kv_heads,
        config.head_dim,
        config.vocabulary_size,
    ];
    assert!(!positive.contains(&0), "a zero among {positive:?}");
    assert!(config.heads.is_multiple_of(config.kv_heads), "{config:?}");
    assert!(config.rope_theta.is_none_or(|theta| theta.is_finite() && theta > 0.0), "{config:?}");
}

/// The bytes of a tensor. `Dtype` knows its quantized dtypes. The others are in the table below, or have their bits in the name
/// (`F8_E4M3`).
fn bytes_of(dtype: &str, elements: u64) -> u128 {
    if let Some(dtype) = Dtype::named(dtype).filter(|dtype| !dtype.is_float()) {
        return dtype.bytes(elements).into();
    }
    let (block_numbers, block_bytes) = match dtype {
        "BOOL" => return elements.into(),
        "Q8_1" => (32, 36),
        "Q8_K" => (256, 292),
        "IQ2_XXS" => (256, 66),
        "IQ2_XS" => (256, 74),
        "IQ3_XXS" => (256, 98),
        "IQ1_S" => (256, 50),
        "IQ4_NL" => (32, 18),
        "IQ3_S" => (256, 110),
        "IQ2_S" => (256, 82),
        "IQ4_XS" => (256, 136),
        "IQ1_M" => (256, 56),
        "TQ1_0" => (256, 54),
        "TQ2_0" => (256, 66),
        "MXFP4" => (32, 17),
        "NVFP4" => (64, 36),
        float_or_integer => {
            let digits = float_or_integer.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
            let bits = digits.split('_').next().and_then(|bits| bits.parse::<u128>().ok());
            return u128::from(elements) * bits.expect("a dtype's name has its bits") / 8;
        }
    };
    u128::from(elements) / block_numbers * block_bytes
}
