//! The files of a model. Some weights are used in place. The others are read a few rows at a time, on all threads, and rounded
//! to their format in memory.
#![expect(unsafe_code, reason = "maps files")]

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use engine_kit::OrFail;
use memmap2::Mmap;
use model_files::{Dtype, FileWeights, Format, GgufLayout, ModelFolder, TensorSpec, Weights as _};
use protocol::{Failed, FailureKind};

use super::plan::{OwnedMatrix, Plan};
use crate::formats::Storage;
use crate::matrix::PANEL_OUTPUTS;
use crate::pool::Pool;
use crate::region::{NewRegion, Region};

/// The mapped files of a model folder, with readers of the model's tensors.
pub struct Files {
    maps: Vec<Region>,
    pub source: FileWeights,
    layout: Format,
}

impl Files {
    pub fn open(folder: &ModelFolder) -> Result<Self, Failed> {
        let source = FileWeights::open(folder).or_fail(FailureKind::Model)?;
        let map = |path: &std::path::PathBuf| {
            let failure = |error: std::io::Error| invalid(format!("`{}`: {error}", path.display()));
            let file = File::open(path).map_err(failure)?;
            // SAFETY: a mapped file must not change while it is in use. A model whose files change during a run is broken for
            // every engine; a truncated file ends the process by a signal, and never reads other memory.
            let map = unsafe { Mmap::map(&file) }.map_err(failure)?;
            Ok(Region::from_file(map))
        };
        let maps: Vec<Region> = folder.weights.iter().map(map).collect::<Result<_, Failed>>()?;
        // If a file became shorter after its headers were read, this check reports an error and prevents an invalid read.
        for tensor in &folder.tensors {
            let end = tensor.offset + tensor.bytes;
            let file_bytes = maps[tensor.file].bytes().len() as u64;
            if end > file_bytes {
                let path = folder.weights[tensor.file].display();
                return Err(invalid(format!(
                    "`{path}`: tensor `{}` ends at byte {end}, but the file has {file_bytes} bytes",
                    tensor.name
                )));
            }
        }
        Ok(Self { maps, source, layout: folder.format })
    }

    pub fn dtype(&self, spec: &TensorSpec) -> Result<Dtype, Failed> {
        self.source.dtype(spec).or_fail(FailureKind::Model)
    }

    /// The bytes of these rows, if the file stores them in the layout that the network uses (`network_layout`).
    pub fn map_rows(&self, spec: &TensorSpec, rows: std::ops::Range<u64>) -> Result<Option<Region>, Failed> {
        if spec.gguf_layout != GgufLayout::Same && self.layout != network_layout(spec) {
            return Ok(None);
        }
        let tensor = self.source.tensor(spec).or_fail(FailureKind::Model)?;
        let row_bytes = self.dtype(spec)?.bytes(spec.rows_in(network_layout(spec)).1);
        let (start, end) = (tensor.offset + rows.start * row_bytes, tensor.offset + rows.end * row_bytes);
        if end > tensor.offset + tensor.bytes {
            return Err(invalid(format!("tensor `{}` is smaller than the config requires", tensor.name)));
        }
        Ok(Some(self.maps[tensor.file].part(start as usize..end as usize)))
    }

    /// All numbers of a small tensor, in the network's layout.
    pub fn numbers(&self, spec: &TensorSpec) -> Result<Vec<f32>, Failed> {
        self.rows(spec, 0..spec.rows_in(network_layout(spec)).0)
    }

    /// The numbers of these rows, in the network's layout. A transposed tensor can be read only as a whole.
    pub fn rows(&self, spec: &TensorSpec, rows: std::ops::Range<u64>) -> Result<Vec<f32>, Failed> {
        let layout = network_layout(spec);
        let numbers = (rows.end - rows.start) * spec.rows_in(layout).1;
        let mut bytes = vec![0; Dtype::F32.bytes(numbers) as usize];
        let read = self.source.encode(spec, layout, rows, Dtype::F32, &mut bytes);
        read.or_fail(FailureKind::Model)?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}

/// The file format whose layout the network uses. For the rows of rotated heads this is safetensors, which stores each head as
/// two halves. For all others it is GGUF: matrices are outputs by inputs, and the 1 of `PlusOne` is already added to norms.
pub fn network_layout(spec: &TensorSpec) -> Format {
    match spec.gguf_layout {
        GgufLayout::Pairs { .. } => Format::Safetensors,
        GgufLayout::Same | GgufLayout::Transposed | GgufLayout::PlusOne => Format::Gguf,
    }
}

pub fn invalid(message: String) -> Failed {
    Failed::new(FailureKind::Model, message)
}

/// The length of a piece in numbers. A piece is read in one call, so it is large. It is small enough to stay in a core's cache
/// during packing, and to give every thread a piece of the last matrix.
const PIECE_NUMBERS: usize = 1 << 16;

struct Piece<'a> {
    owned: &'a OwnedMatrix,
    /// The index of the piece's first row, among the rows of `owned`.
    first: u64,
    rows: usize,
    bytes: &'a mut [u8],
}

impl Plan {
    /// Fills owned memory. `on_progress` receives the number of all finished bytes, from any thread.
    pub fn read(&self, pool: &Pool, on_progress: &(dyn Fn(u64) + Sync)) -> Result<Region, Failed> {
        let mut region = NewRegion::new(self.owned_bytes()).or_fail(FailureKind::OutOfMemory)?;
        let pieces = self.pieces(region.bytes_mut());
        let (failed, done) = (Mutex::new(None), AtomicU64::new(0));
        let failed_lock = || failed.lock().unwrap_or_else(PoisonError::into_inner);
        pool.share_pieces(pieces.into_iter(), |_, piece: Piece| {
            let bytes = piece.bytes.len() as u64;
            if failed_lock().is_some() {
                return;
            }
            match self.fill(piece) {
                Ok(()) => on_progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes),
                Err(error) => *failed_lock() = Some(error),
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(region.finish()),
        }
    }

    fn pieces<'a>(&'a self, bytes: &'a mut [u8]) -> Vec<Piece<'a>> {
        let (mut pieces, mut rest, mut offset) = (Vec::new(), bytes, 0);
        for owned in &self.owned {
            let (_, rest_from_matrix) = rest.split_at_mut(owned.at - offset);
            let (matrix, after) = rest_from_matrix.split_at_mut(owned.bytes);
            (rest, offset) = (after, owned.at + owned.bytes);
            let rows = (owned.rows.end - owned.rows.start) as usize;
            let piece_rows = match is_transposed(&self.specs[owned.spec]) {
                true => rows.next_multiple_of(PANEL_OUTPUTS),
                false => {
                    (PIECE_NUMBERS / owned.inputs.max(1)).next_multiple_of(PANEL_OUTPUTS).max(PANEL_OUTPUTS)
                }
            };
            let piece_bytes = owned.format.bytes(piece_rows, owned.inputs);
            for (number, bytes) in matrix.chunks_mut(piece_bytes).enumerate() {
                let first = number * piece_rows;
                pieces.push(Piece { owned, first: first as u64, rows: piece_rows.min(rows - first), bytes });
            }
        }
        pieces
    }

    fn fill(&self, Piece { owned, first, rows, bytes }: Piece) -> Result<(), Failed> {
        if let Storage::Rows(_) = owned.format.storage {
            return self.encode(owned, first, rows, bytes);
        }
        let mut encoded = vec![0; owned.dtype.bytes(owned.inputs as u64) as usize * rows];
        self.encode(owned, first, rows, &mut encoded)?;
        if owned.format.pack(owned.inputs, &encoded, bytes).is_err() {
            self.mark_unfit(owned);
        }
        Ok(())
    }

    /// Encodes rows of a matrix in the network's layout, with the bytes that files use for the matrix's dtype.
    fn encode(&self, owned: &OwnedMatrix, first: u64, rows: usize, bytes: &mut [u8]) -> Result<(), Failed> {
        let spec = &self.specs[owned.spec];
        let source = &self.files.source;
        if !is_transposed(spec) {
            let from = owned.rows.start + first;
            let rows = from..from + rows as u64;
            return source
                .encode(spec, network_layout(spec), rows, owned.dtype, bytes)
                .or_fail(FailureKind::Model);
        }
        let all = spec.rows_in(Format::Gguf).0;
        let mut encoded = vec![0; owned.dtype.bytes(spec.elements()) as usize];
        source.encode(spec, Format::Gguf, 0..all, owned.dtype, &mut encoded).or_fail(FailureKind::Model)?;
        let row_bytes = encoded.len() / all as usize;
        bytes.copy_from_slice(&encoded[owned.rows.start as usize * row_bytes..][..bytes.len()]);
        Ok(())
    }
}

/// Whether safetensors files store the tensor transposed. Such a tensor can be read only as a whole, from a GGUF too.
fn is_transposed(spec: &TensorSpec) -> bool {
    spec.gguf_layout == GgufLayout::Transposed
}
