//! Products of activations with weights. There are so many copies of the weights that no cache holds them.
#![expect(unsafe_code, reason = "maps its own file into memory")]

use std::io::Write;

use anyhow::{Context, Result, anyhow, ensure};
use lmrs::formats::{Format, Unfit};
use lmrs::kernels::Level;
use lmrs::kernels::rows::uses_bf16;
use lmrs::matrix::Matrix;
use lmrs::matrix::Rows;
use lmrs::ops::Ops;
use lmrs::pool::Pool;
use lmrs::region::{NewRegion, Region};

use crate::Case;
use crate::arguments::Arguments;

/// Bytes of all copies of a matrix: more than the processor caches of every machine that was tried.
const WEIGHTS_BYTES: usize = 256 << 20;
/// A case of at most 8 tokens repeats its product in each `Case::run_turn` until it has read at least this many bytes of
/// weights.
const MIN_TURN_BYTES: usize = 64 << 20;

pub fn cases(arguments: &Arguments) -> Result<Vec<Case>> {
    let weights = Weights::new(arguments)?;
    let mut cases = Vec::new();
    for &format in &arguments.formats {
        for &(outputs, inputs) in &arguments.shapes {
            let matrices = weights.matrices(format, outputs, inputs)?;
            for &tokens in &arguments.tokens {
                for &level in &arguments.levels {
                    let labels = [format.name.to_string(), format!("{outputs}x{inputs}")];
                    cases.push(case(labels, matrices.clone(), tokens, level, arguments.threads));
                }
            }
        }
    }
    Ok(cases)
}

fn case(labels: [String; 2], matrices: Vec<Matrix>, tokens: usize, level: Level, threads: usize) -> Case {
    let Matrix { outputs, inputs, format, .. } = matrices[0];
    let bytes = matrices[0].bytes();
    let mut x = Rows::new(tokens, inputs);
    for (at, number) in x.all_mut().iter_mut().enumerate() {
        *number = (at * 7919 % 2003) as f32 / 1000.0 - 1.0;
    }
    let (mut ops, mut out, mut next) = (Ops::new(Pool::new(threads), level), Rows::default(), 0);
    let work = move || {
        ops.multiply(&x, &mut [(&matrices[next], &mut out)]);
        next = (next + 1) % matrices.len();
    };
    Case {
        labels,
        tokens,
        level,
        units: units(level, format),
        bytes: bytes as f64,
        operations: 2.0 * (tokens * outputs * inputs) as f64,
        pieces: if tokens > 8 { 1 } else { MIN_TURN_BYTES.div_ceil(bytes) },
        work: Box::new(work),
        piece_seconds: Vec::new(),
    }
}

/// The arithmetic units whose limits the products are compared with: the first one with a probe result counts.
fn units(level: Level, format: &'static Format) -> &'static [&'static str] {
    match (level.name(), format) {
        ("amx", format) if format.tile.is_some() => &["amx_bf16"],
        ("avx512", format) if uses_bf16(level, format) => &["avx512_bf16", "f32_fma"],
        ("avx512", format) if format.is_panels() => &["avx512_vnni", "f32_fma"],
        _ => &["f32_fma"],
    }
}

/// The memory that the matrices of every format share: they read the same content. Packed rows have memory of their own.
struct Weights(Region);

impl Weights {
    fn new(arguments: &Arguments) -> Result<Self> {
        let largest = |&(outputs, inputs): &(usize, usize)| {
            let bytes = |format: &&Format| format.bytes(outputs, inputs);
            arguments.formats.iter().map(bytes).max().unwrap_or(0)
        };
        let bytes = arguments.shapes.iter().map(largest).max().unwrap_or(0).max(WEIGHTS_BYTES);
        let mut region = NewRegion::new(bytes)?;
        for (at, bytes) in region.bytes_mut().chunks_mut(2).enumerate() {
            // These bits are 0.5 to 2 as bf16, 1.75 to 2 as f16, and finite as scales.
            let bits = (0x3f00 + (at * 31 % 256) as u16).to_le_bytes();
            bytes.copy_from_slice(&bits[..bytes.len()]);
        }
        let region = region.finish();
        if !arguments.uses_file {
            return Ok(Self(region));
        }
        let path = std::env::temp_dir().join(format!("lmrs-bench-{}", std::process::id()));
        let mut file = std::fs::File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        file.write_all(region.bytes()).with_context(|| format!("cannot write `{}`", path.display()))?;
        // SAFETY: the file was unlinked, so no other process can change it.
        Ok(Self(Region::from_file(unsafe { memmap2::Mmap::map(&file)? })))
    }

    /// Consecutive copies of the matrix, as many as fit.
    fn matrices(&self, format: &'static Format, outputs: usize, inputs: usize) -> Result<Vec<Matrix>> {
        let bytes = format.bytes(outputs, inputs);
        let copies = (self.0.bytes().len().min(WEIGHTS_BYTES) / bytes).max(1);
        let region = match format.packed_rows() {
            Some(_) => pack_copies(format, outputs, inputs, copies)?,
            None => self.0.clone(),
        };
        let matrix =
            |copy| Matrix::new(format, outputs, inputs, region.part(copy * bytes..(copy + 1) * bytes));
        Ok((0..copies).map(matrix).collect())
    }
}

/// Copies of packed rows without exceptions (`formats/bf16z`). Real models have few exceptions, and random bytes would have the
/// maximum. The copies are in anonymous memory, even with `--file`, as in a load.
fn pack_copies(format: &'static Format, outputs: usize, inputs: usize, copies: usize) -> Result<Region> {
    let name = format.name;
    ensure!(format.can_hold(inputs), "{name} cannot pack rows of {inputs} inputs");
    let block_rows = format.block_rows();
    let numbers = (0..block_rows * inputs).flat_map(|at| (0x3f00 + (at * 31 % 256) as u16).to_le_bytes());
    let (numbers, mut region) =
        (numbers.collect::<Vec<u8>>(), NewRegion::new(copies * format.bytes(outputs, inputs))?);
    for matrix in region.bytes_mut().chunks_exact_mut(format.bytes(outputs, inputs)) {
        for rows in matrix.chunks_mut(format.bytes(block_rows, inputs)) {
            let count = rows.len() / format.bytes(1, inputs);
            let packed = format.pack(inputs, &numbers[..count * inputs * 2], rows);
            packed.map_err(|Unfit| anyhow!("{name} cannot hold these rows of {inputs}"))?;
        }
    }
    Ok(region.finish())
}
