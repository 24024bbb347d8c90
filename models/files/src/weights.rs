//! The tensors of weight files, and the trait `Weights` for sources of weights. `FileWeights` is a model on disk; `synth`
//! has a generator.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};

use crate::architecture::{GgufLayout, TensorSpec, prefixed_name};
use crate::{Dtype, Format, ModelFolder, blocks};

/// One tensor of a weights file, as its header describes it: the position of its bytes, never the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    /// The dtype in the format's spelling: `F32`, `BF16`, `Q4_K`.
    pub dtype: &'static str,
    /// Outermost dimension first, in every format.
    pub shape: Vec<u64>,
    /// The index of the tensor's file in `ModelFolder::weights`.
    pub file: usize,
    /// The offset of the tensor's bytes in the file.
    pub offset: u64,
    pub bytes: u64,
}

impl Tensor {
    /// The number of elements. It cannot overflow: headers with an overflowing shape are refused.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// The number of elements. `None` if the product of all dimensions except zeros overflows.
pub(crate) fn checked_elements(shape: &[u64]) -> Option<u64> {
    let nonzero = shape.iter().filter(|&&dimension| dimension != 0);
    let product = nonzero.clone().try_fold(1_u64, |product, &dimension| product.checked_mul(dimension))?;
    Some(if nonzero.count() == shape.len() { product } else { 0 })
}

/// A source of every number of every tensor, in either format and in any dtype that can be written.
pub trait Weights: Sync {
    /// Writes these rows in `format` and `dtype` to `bytes`, which has exactly their size. For a tensor that
    /// is `GgufLayout::Transposed` in GGUF, callers request all rows.
    fn encode(
        &self,
        spec: &TensorSpec,
        format: Format,
        rows: Range<u64>,
        dtype: Dtype,
        bytes: &mut [u8],
    ) -> Result<()>;
}

/// How many bytes of two tensors are compared at once.
const COMPARED_BYTES: usize = 1 << 20;

/// The weights of a model on disk, read on demand.
pub struct FileWeights {
    format: Format,
    files: Vec<(std::path::PathBuf, File)>,
    tensors: HashMap<String, Tensor>,
}

impl FileWeights {
    pub fn open(model: &ModelFolder) -> Result<Self> {
        let open = |path: &std::path::PathBuf| {
            let file = File::open(path).with_context(|| format!("`{}`", path.display()))?;
            Ok((path.clone(), file))
        };
        let tensors = model.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.clone()));
        Ok(Self {
            format: model.format,
            files: model.weights.iter().map(open).collect::<Result<_>>()?,
            tensors: tensors.collect(),
        })
    }

    pub fn tensor(&self, spec: &TensorSpec) -> Result<&Tensor> {
        find(&self.tensors, spec.name_in(self.format))
            .with_context(|| format!("tensor `{}` is missing", spec.name_in(self.format)))
    }

    pub fn dtype(&self, spec: &TensorSpec) -> Result<Dtype> {
        let tensor = self.tensor(spec)?;
        Dtype::named(tensor.dtype)
            .with_context(|| format!("tensor `{}`: this program cannot read `{}`", tensor.name, tensor.dtype))
    }

    /// All numbers of a small tensor, as this model's format stores them.
    pub fn values(&self, spec: &TensorSpec) -> Result<Vec<f32>> {
        let (rows, _) = spec.rows_in(self.format);
        let mut bytes = vec![0; usize::try_from(spec.elements() * 4)?];
        self.encode(spec, self.format, 0..rows, Dtype::F32, &mut bytes)?;
        widen(Dtype::F32, &bytes)
    }

    /// The numbers of a tensor that the network does not have, if the model has it. Refuses another count than `count` before reading.
    pub fn values_of(&self, name: &str, count: u64) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.tensors.get(name) else { return Ok(None) };
        let found = tensor.elements();
        ensure!(found == count, "tensor `{name}`: expected {count} numbers, found {found}");
        let dtype =
            Dtype::named(tensor.dtype).with_context(|| format!("tensor `{name}`: `{}`", tensor.dtype))?;
        let mut bytes = vec![0; usize::try_from(tensor.bytes)?];
        self.read(tensor, 0, &mut bytes)?;
        widen(dtype, &bytes).map(Some)
    }

    /// Whether two tensors have the same dtype, shape and bytes.
    pub(crate) fn are_equal(&self, first: &Tensor, second: &Tensor) -> Result<bool> {
        if (first.dtype, &first.shape) != (second.dtype, &second.shape) {
            return Ok(false);
        }
        let mut buffers = [vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]];
        for at in (0..first.bytes).step_by(COMPARED_BYTES) {
            let length = (first.bytes - at).min(COMPARED_BYTES as u64) as usize;
            for (tensor, buffer) in [first, second].into_iter().zip(&mut buffers) {
                self.read(tensor, at, &mut buffer[..length])?;
            }
            if buffers[0][..length] != buffers[1][..length] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads these rows of `format` in the stored `dtype`, each from its position in this model's format.
    fn read_rows(
        &self,
        spec: &TensorSpec,
        format: Format,
        rows: Range<u64>,
        dtype: Dtype,
        bytes: &mut [u8],
    ) -> Result<()> {
        let tensor = self.tensor(spec)?;
        let (_, columns) = spec.rows_in(format);
        let row_bytes = dtype.bytes(columns);
        let is_contiguous =
            matches!(spec.gguf_layout, GgufLayout::Same | GgufLayout::PlusOne | GgufLayout::Transposed);
        if is_contiguous || format == self.format {
            return self.read(tensor, rows.start * row_bytes, bytes);
        }
        // A vector has one number for each row of its matrix, and is reordered number by number.
        let (row_bytes, rows) =
            if spec.shape.len() == 1 { (dtype.bytes(1), 0..spec.elements()) } else { (row_bytes, rows) };
        for (row, bytes) in rows.zip(bytes.chunks_exact_mut(usize::try_from(row_bytes)?)) {
            self.read(tensor, spec.row_in_other_format(row, format) * row_bytes, bytes)?;
        }
        Ok(())
    }

    fn read(&self, tensor: &Tensor, at: u64, bytes: &mut [u8]) -> Result<()> {
        ensure!(
            at + bytes.len() as u64 <= tensor.bytes,
            "tensor `{}` is smaller than the config requires",
            tensor.name
        );
        let (path, file) = &self.files[tensor.file];
        file.read_exact_at(bytes, tensor.offset + at).with_context(|| format!("`{}`", path.display()))
    }
}

impl Weights for FileWeights {
    fn encode(
        &self,
        spec: &TensorSpec,
        format: Format,
        rows: Range<u64>,
        dtype: Dtype,
        bytes: &mut [u8],
    ) -> Result<()> {
        let stored = self.dtype(spec)?;
        let is_converted =
            format != self.format && matches!(spec.gguf_layout, GgufLayout::Transposed | GgufLayout::PlusOne);
        if stored == dtype && !is_converted {
            return self.read_rows(spec, format, rows, dtype, bytes);
        }
        let (_, columns) = spec.rows_in(format);
        let count = (rows.end - rows.start) * columns;
        let mut raw = vec![0; usize::try_from(stored.bytes(count))?];
        self.read_rows(spec, format, rows, stored, &mut raw)?;
        let mut values = widen(stored, &raw)?;
        if is_converted {
            match spec.gguf_layout {
                GgufLayout::Transposed => values = transpose(&values, spec.rows_in(self.format))?,
                GgufLayout::PlusOne => {
                    let offset = if format == Format::Gguf { 1.0 } else { -1.0 };
                    values.iter_mut().for_each(|value| *value += offset);
                }
                GgufLayout::Same | GgufLayout::Pairs { .. } => {}
            }
        }
        blocks::narrow(dtype, &values, bytes)
            .with_context(|| format!("tensor `{}`", spec.name_in(self.format)))
    }
}

/// Finds a tensor by its name, or by the longer name that some checkpoints use.
pub(crate) fn find<'a, T>(tensors: &'a HashMap<String, T>, name: &str) -> Option<&'a T> {
    tensors.get(name).or_else(|| tensors.get(&prefixed_name(name)?))
}

fn widen(dtype: Dtype, bytes: &[u8]) -> Result<Vec<f32>> {
    let (elements, block_bytes) = dtype.block();
    let mut values = vec![0.0; bytes.len() / block_bytes * elements];
    blocks::widen(dtype, bytes, &mut values)?;
    Ok(values)
}

pub(crate) fn transpose(values: &[f32], (rows, columns): (u64, u64)) -> Result<Vec<f32>> {
    let (rows, columns) = (usize::try_from(rows)?, usize::try_from(columns)?);
    let mut result = vec![0.0; values.len()];
    for (row, line) in values.chunks_exact(columns).enumerate() {
        for (column, value) in line.iter().enumerate() {
            result[column * rows + row] = *value;
        }
    }
    Ok(result)
}
