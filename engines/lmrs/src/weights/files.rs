//! A model's files as memory, and the parts that can be used in place.
#![expect(unsafe_code, reason = "maps files")]

use std::fs::File;

use memmap2::Mmap;
use model_files::{Dtype, FileWeights, Format, ModelFolder, Order, Part, Weights as _};
use protocol::{Failed, FailureKind};

use crate::region::Region;

/// The mapped weights of a folder, with readers that use the formats' own rounding.
pub struct Files {
    maps: Vec<Region>,
    pub source: FileWeights,
    layout: Format,
}

impl Files {
    pub fn open(folder: &ModelFolder) -> Result<Self, Failed> {
        let source = FileWeights::open(folder).map_err(|error| model(format!("{error:#}")))?;
        let map = |path: &std::path::PathBuf| {
            let fault = |error: std::io::Error| model(format!("`{}`: {error}", path.display()));
            let file = File::open(path).map_err(fault)?;
            // SAFETY: a mapped file must not change while it is in use. A model whose files change during a run is broken for
            // every engine; a truncated file ends the process by a signal, and never reads other memory.
            let map = unsafe { Mmap::map(&file) }.map_err(fault)?;
            Ok(Region::of_file(map))
        };
        let maps: Vec<Region> = folder.weights.iter().map(map).collect::<Result<_, Failed>>()?;
        // Headers were read before. If a file was replaced since, this is an error and no invalid read.
        for tensor in &folder.tensors {
            let end = tensor.offset + tensor.bytes;
            let held = maps[tensor.file].bytes().len() as u64;
            if end > held {
                let path = folder.weights[tensor.file].display();
                return Err(model(format!(
                    "`{path}`: tensor `{}` ends at {end} of {held} bytes",
                    tensor.name
                )));
            }
        }
        Ok(Self { maps, source, layout: folder.format })
    }

    pub fn dtype(&self, part: &Part) -> Result<Dtype, Failed> {
        self.source.dtype(part).map_err(|error| model(format!("{error:#}")))
    }

    /// The bytes of these rows, if the file stores them in the network's order.
    pub fn mapped(&self, part: &Part, rows: std::ops::Range<u64>) -> Result<Option<Region>, Failed> {
        if part.order != Order::Same && self.layout != own_layout(part) {
            return Ok(None);
        }
        let tensor = self.source.tensor(part).map_err(|error| model(format!("{error:#}")))?;
        let row = self.dtype(part)?.bytes(part.rows_in(own_layout(part)).1);
        let (start, end) = (tensor.offset + rows.start * row, tensor.offset + rows.end * row);
        if end > tensor.offset + tensor.bytes {
            return Err(model(format!("tensor `{}` has another size than its part", tensor.name)));
        }
        Ok(Some(self.maps[tensor.file].part(start as usize..end as usize)))
    }

    /// All numbers of a small part, in the network's order.
    pub fn numbers(&self, part: &Part) -> Result<Vec<f32>, Failed> {
        self.rows(part, 0..part.rows_in(own_layout(part)).0)
    }

    /// Some rows, in the network's order. A transposed part can only be read as a whole.
    pub fn rows(&self, part: &Part, rows: std::ops::Range<u64>) -> Result<Vec<f32>, Failed> {
        let layout = own_layout(part);
        let numbers = (rows.end - rows.start) * part.rows_in(layout).1;
        let mut bytes = vec![0; Dtype::F32.bytes(numbers) as usize];
        let read = self.source.encode(part, layout, rows, Dtype::F32, &mut bytes);
        read.map_err(|error| model(format!("{error:#}")))?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}

/// The layout that the network uses: rotated halves as in Hugging Face; outputs by inputs and whole norms as in GGUF.
pub fn own_layout(part: &Part) -> Format {
    match part.order {
        Order::Pairs { .. } => Format::Safetensors,
        Order::Same | Order::Transposed | Order::PlusOne => Format::Gguf,
    }
}

pub fn model(what: String) -> Failed {
    Failed::new(FailureKind::Model, what)
}
