//! The limits of NVIDIA GPUs: the speed of copies within memory, and the operations per second of cuBLAS.
//!
//! A process of its own should run this: a context holds hundreds of MiB of a GPU, and a driver may hang or crash. The result
//! lacks impossible probes; `absent` has the reasons.

mod cublas;
mod driver;

use std::path::PathBuf;
use std::time::Duration;

use crate::{Copies, GpuLimits, Limits, Operations, names};
use cublas::{COMPUTE_F32, COMPUTE_TF32, Cublas, DATA_BF16, DATA_F16, DATA_F32};
use driver::{Context, Device, Driver};

/// The GPUs to probe, the folders of cuBLAS, and the time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuProbeSettings {
    /// CUDA indices; empty means all.
    pub devices: Vec<u32>,
    /// Folders in which cuBLAS is searched after the loader's paths, such as those of Python's wheels.
    pub folders: Vec<PathBuf>,
    /// The approximate time of the copies, and of the products of each number type. An idle GPU needs this time to raise its
    /// clocks.
    pub budget: Duration,
}

/// Probes the GPUs, in some seconds, mostly for loading libraries. Sets only `gpus` and `absent`.
pub fn probe_gpus(settings: &GpuProbeSettings) -> Limits {
    let mut limits = Limits::default();
    if let Err(reason) = probe_into(&mut limits, settings) {
        limits.absent.push(reason);
    }
    limits
}

fn probe_into(limits: &mut Limits, settings: &GpuProbeSettings) -> Result<(), String> {
    let driver = Driver::load()?;
    let count = driver.count()?;
    if count == 0 {
        return Err("the driver shows no GPU to this process".into());
    }
    let devices = if settings.devices.is_empty() { (0..count).collect() } else { settings.devices.clone() };
    for index in devices {
        let mut absent = Vec::new();
        if index < count {
            limits.gpus.extend(probe_gpu(&driver, index, settings, &mut absent));
        } else {
            absent.push(format!("the driver shows {count} GPUs to this process"));
        }
        limits.absent.extend(absent.into_iter().map(|reason| format!("GPU {index}: {reason}")));
    }
    Ok(())
}

fn probe_gpu(
    driver: &Driver,
    index: u32,
    settings: &GpuProbeSettings,
    absent: &mut Vec<String>,
) -> Option<GpuLimits> {
    let device = driver.device(index).map_err(|reason| absent.push(reason)).ok()?;
    let mut gpu = GpuLimits {
        index,
        name: device.name(),
        uuid: device.uuid(),
        l2_bytes: device.l2_bytes(),
        ..GpuLimits::default()
    };
    if let Err(reason) = probe_in_context(&device, settings, &mut gpu, absent) {
        absent.push(reason);
    }
    Some(gpu)
}

fn probe_in_context(
    device: &Device,
    settings: &GpuProbeSettings,
    gpu: &mut GpuLimits,
    absent: &mut Vec<String>,
) -> Result<(), String> {
    let context = device.context()?;
    match probe_copies(&context, settings.budget) {
        Ok(copies) => gpu.copies = Some(copies),
        Err(reason) => absent.push(format!("copies: {reason}")),
    }
    let cublas = Cublas::load(&context, &settings.folders).map_err(|reason| format!("products: {reason}"))?;
    for number_type in NUMBER_TYPES {
        match probe_products(&context, &cublas, number_type, settings.budget) {
            Ok(operations) => gpu.matrix.push(operations),
            Err(reason) => absent.push(format!("{}: {reason}", number_type.unit)),
        }
    }
    Ok(())
}

const MIB: u64 = 1 << 20;
/// The smallest size of each of the two buffers: together they are about four times the largest known GPU cache (126 MiB).
const MIN_COPY_BUFFER_BYTES: u64 = 256 * MIB;
/// The largest size of each buffer. A copy then reads 1 GiB and writes 1 GiB: at 8 TB/s it takes 0.3 ms, on slower GPUs longer.
const MAX_COPY_BUFFER_BYTES: u64 = 1024 * MIB;
/// Each buffer takes the free memory divided by this number.
const COPY_MEMORY_DIVISOR: u64 = 4;

/// The bytes of a copy, read and written, with the time of the best pass.
fn probe_copies(context: &Context, budget: Duration) -> Result<Copies, String> {
    let free_bytes = context.free_bytes()?;
    let bytes = copy_buffer_bytes(free_bytes)
        .ok_or_else(|| format!("only {} MiB of its memory are free", free_bytes / MIB))?;
    let (source, destination) = (context.allocate(bytes)?, context.allocate(bytes)?);
    source.set(0x5a)?;
    let ns = context.fastest_pass_ns(budget, || destination.copy_from(&source))?;
    Ok(Copies { bytes: 2 * bytes as u64, ns })
}

/// `None` if too little memory is free.
fn copy_buffer_bytes(free_bytes: u64) -> Option<usize> {
    let bytes = (free_bytes / COPY_MEMORY_DIVISOR / MIB * MIB).min(MAX_COPY_BUFFER_BYTES);
    usize::try_from(bytes).ok().filter(|_| bytes >= MIN_COPY_BUFFER_BYTES)
}

/// The largest number of rows and columns of the three matrices.
const MAX_SIDE: u64 = 8192;
/// The smallest number of rows and columns. Smaller matrices do not keep a large GPU busy.
const MIN_SIDE: u64 = 2048;
/// The three matrices together take at most the free memory divided by this number.
const MATRIX_MEMORY_DIVISOR: u64 = 2;
/// Bytes of random numbers, which are repeated to fill a matrix.
const PATTERN_BYTES: usize = 8 << 20;

/// The type of the operands and the results of a product, in memory and in cuBLAS's terms. Sums are always f32.
#[derive(Debug, Clone, Copy)]
struct NumberType {
    unit: &'static str,
    bytes: usize,
    mantissa_bits: u32,
    /// The exponent field of 1.0.
    exponent_bias: u32,
    /// `cudaDataType`.
    data: i32,
    /// `cublasComputeType_t`.
    compute: i32,
}

const F32: NumberType = NumberType {
    unit: names::CUBLAS_F32,
    bytes: 4,
    mantissa_bits: 23,
    exponent_bias: 127,
    data: DATA_F32,
    compute: COMPUTE_F32,
};

const NUMBER_TYPES: &[NumberType] = &[
    NumberType { unit: names::CUBLAS_BF16, bytes: 2, mantissa_bits: 7, data: DATA_BF16, ..F32 },
    NumberType {
        unit: names::CUBLAS_F16,
        bytes: 2,
        mantissa_bits: 10,
        exponent_bias: 15,
        data: DATA_F16,
        compute: COMPUTE_F32,
    },
    NumberType { unit: names::CUBLAS_TF32, compute: COMPUTE_TF32, ..F32 },
    F32,
];

fn probe_products(
    context: &Context,
    cublas: &Cublas,
    number_type: &NumberType,
    budget: Duration,
) -> Result<Operations, String> {
    let free_bytes = context.free_bytes()?;
    let side = matrix_side(free_bytes, number_type.bytes as u64)
        .ok_or_else(|| format!("only {} MiB of its memory are free", free_bytes / MIB))?;
    let bytes = (side * side) as usize * number_type.bytes;
    let pattern = random_numbers(number_type, PATTERN_BYTES / number_type.bytes);
    let matrix = || context.allocate(bytes);
    let (a, b, c) = (matrix()?, matrix()?, matrix()?);
    a.fill(&pattern)?;
    b.fill(&pattern)?;
    let ns = context.fastest_pass_ns(budget, || cublas.product(side, number_type, [&a, &b, &c]))?;
    Ok(Operations {
        unit: number_type.unit.into(),
        loads: true,
        threads: 0,
        operations: product_operations(side),
        ns,
    })
}

/// A multiplication and an addition for each combination of three indices.
fn product_operations(side: u64) -> u64 {
    2 * side * side * side
}

/// The largest side that fits; `None` if too little memory is free.
fn matrix_side(free_bytes: u64, bytes_per_number: u64) -> Option<u64> {
    let sides = std::iter::successors(Some(MAX_SIDE), |side| Some(side / 2));
    sides
        .take_while(|&side| side >= MIN_SIDE)
        .find(|side| 3 * side * side * bytes_per_number <= free_bytes / MATRIX_MEMORY_DIVISOR)
}

/// The bytes of pseudo-random numbers with absolute values of 1/256 to 1. Equal numbers would make a GPU faster.
fn random_numbers(number_type: &NumberType, count: usize) -> Vec<u8> {
    let sign_bit = 8 * number_type.bytes as u32 - 1;
    let mut state = 0x9e37_79b9_u32;
    let mut pattern = Vec::with_capacity(count * number_type.bytes);
    for _ in 0..count {
        // Marsaglia's 32-bit xorshift.
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let mantissa = state & ((1 << number_type.mantissa_bits) - 1);
        let exponent = number_type.exponent_bias - 1 - (state >> 24 & 7);
        let bits = (state >> 31) << sign_bit | exponent << number_type.mantissa_bits | mantissa;
        pattern.extend_from_slice(&bits.to_le_bytes()[..number_type.bytes]);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_a_quarter_of_the_free_memory_within_bounds() {
        assert_eq!(copy_buffer_bytes(80 << 30), Some(1 << 30));
        assert_eq!(copy_buffer_bytes((2 << 30) + 5), Some(512 << 20));
        assert_eq!(copy_buffer_bytes(1 << 30), Some(256 << 20));
        assert_eq!(copy_buffer_bytes((1 << 30) - 1), None);
    }

    #[test]
    fn a_product_of_matrices_of_8192_is_a_thousand_billion_operations() {
        assert_eq!(product_operations(8192), 1_099_511_627_776);
    }

    #[test]
    fn matrices_halve_their_sides_until_three_fit_in_half_of_the_free_memory() {
        assert_eq!(matrix_side(80 << 30, 2), Some(8192));
        assert_eq!(matrix_side(768 << 20, 2), Some(8192));
        assert_eq!(matrix_side((768 << 20) - 1, 2), Some(4096));
        assert_eq!(matrix_side(96 << 20, 4), Some(2048));
        assert_eq!(matrix_side((96 << 20) - 1, 4), None);
    }

    #[test]
    fn random_numbers_of_every_type_differ_and_are_smaller_than_one() {
        let pattern = random_numbers(&F32, 10_000);
        let f32s: Vec<f32> = pattern.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        // bf16 is the upper half of an f32.
        let bf16 = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes(b.try_into().unwrap())) << 16);
        let bf16s: Vec<f32> = random_numbers(&NUMBER_TYPES[0], 10_000).chunks(2).map(bf16).collect();
        // Decodes f16 by its definition; the exponents here belong to normal numbers.
        let f16 = |bytes: &[u8]| {
            let bits = u16::from_le_bytes(bytes.try_into().unwrap());
            let value = f32::from(bits & 1023 | 1024) * 2_f32.powi(i32::from(bits >> 10 & 31) - 25);
            if bits >> 15 == 1 { -value } else { value }
        };
        let f16s: Vec<f32> = random_numbers(&NUMBER_TYPES[1], 10_000).chunks(2).map(f16).collect();
        for numbers in [f32s, bf16s, f16s] {
            assert!(numbers.iter().all(|number| number.abs() < 1.0 && number.abs() >= 1.0 / 256.0));
            let mean = numbers.iter().sum::<f32>() / numbers.len() as f32;
            assert!(mean.abs() < 0.02, "{mean}");
            let distinct: std::collections::BTreeSet<u32> = numbers.iter().map(|x| x.to_bits()).collect();
            assert!(distinct.len() > 1000, "{}, and bf16 has 2048", distinct.len());
        }
    }
}
