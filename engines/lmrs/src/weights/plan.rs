//! The plan of a load, made from the headers of the model's files: the memory and the format of each matrix.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use engine_kit::OrFail;
use model_files::{Dtype, ModelFolder, TensorSpec};
use protocol::{Failed, FailureKind};

use super::files::{Files, invalid};
use super::roles::{MatrixRows, RequestedFormat, Role, Roles};
use super::{Embedding, FileRows, Layer, Linear, Weights};
use crate::formats::Format;
use crate::matrix::{Matrix, Rows};
use crate::network::Norm;
use crate::region::Region;
use crate::shape::Shape;

/// The alignment of a matrix in owned memory: a cache line.
const LINE_BYTES: usize = 64;

/// GGUF's name of learned positions.
const POSITIONS_TENSOR: &str = "position_embd.weight";

/// The number of learned positions that are read at a time.
const POSITION_ROWS: usize = 256;

pub struct Plan {
    pub(super) files: Files,
    pub(super) specs: Vec<TensorSpec>,
    pub(super) owned: Vec<OwnedMatrix>,
    owned_bytes: usize,
    mapped_bytes: u64,
    learned_positions_bytes: u64,
    /// Matrices by the GGUF name of their tensor, and by their first row in the tensor.
    matrices: HashMap<(String, u64), Planned>,
    requested: RequestedFormat,
    /// The GGUF names of the matrices whose rows cannot be packed. Only packing finds them.
    unfit: Mutex<BTreeSet<String>>,
}

struct Planned {
    format: &'static Format,
    outputs: usize,
    inputs: usize,
    memory: Memory,
}

enum Memory {
    Mapped(Region),
    /// The offset in owned memory.
    Owned(usize),
}

/// A matrix that is read into owned memory.
pub(super) struct OwnedMatrix {
    /// The index of the matrix's tensor.
    pub spec: usize,
    /// The rows, in the layout that the network uses (`network_layout`).
    pub rows: std::ops::Range<u64>,
    pub inputs: usize,
    /// The number type that the rows are rounded to, and the format that holds them in memory.
    pub dtype: Dtype,
    pub format: &'static Format,
    /// The offset in owned memory.
    pub at: usize,
    pub bytes: usize,
}

impl Plan {
    pub fn of(folder: &ModelFolder, shape: &Shape, requested: RequestedFormat) -> Result<Self, Failed> {
        folder.refuse_second_output_matrix().or_fail(FailureKind::Model)?;
        Self::with_unfit(folder, shape, requested, &BTreeSet::new())
    }

    /// The plan for a requested format, without packing the `unfit` matrices of an earlier plan.
    pub fn with_unfit(
        folder: &ModelFolder,
        shape: &Shape,
        requested: RequestedFormat,
        unfit: &BTreeSet<String>,
    ) -> Result<Self, Failed> {
        let specs = folder.tensor_specs().or_fail(FailureKind::Model)?;
        refuse_unknown_tensors(folder, &specs)?;
        let files = Files::open(folder)?;
        let mut plan = Self {
            files,
            specs: Vec::new(),
            owned: Vec::new(),
            owned_bytes: 0,
            mapped_bytes: 0,
            learned_positions_bytes: 0,
            matrices: HashMap::new(),
            requested,
            unfit: Mutex::default(),
        };
        let roles = Roles::new(shape, &specs);
        for layer in 0..shape.layers {
            for role in Role::ALL {
                if let Some(source) = roles.rows_of(layer, role)? {
                    plan.add(&specs, &source, unfit)?;
                }
            }
        }
        plan.add(&specs, &roles.output()?, unfit)?;
        let positions = roles.find(POSITIONS_TENSOR, shape.context, shape.hidden)?;
        plan.learned_positions_bytes = positions.map_or(0, |spec| spec.elements() * size_of::<f32>() as u64);
        plan.specs = specs;
        Ok(plan)
    }

    /// Bytes of the layers' matrices, the output matrix and the learned positions, in any memory.
    pub fn bytes(&self) -> u64 {
        self.owned_bytes as u64 + self.mapped_bytes + self.learned_positions_bytes
    }

    /// Bytes that `read` fills.
    pub fn owned_bytes(&self) -> usize {
        self.owned_bytes
    }

    /// Matrices that `read` could not pack: the `unfit` of the next plan.
    pub fn unfit(&self) -> BTreeSet<String> {
        self.unfit.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn mark_unfit(&self, owned: &OwnedMatrix) {
        let name = self.specs[owned.spec].gguf.clone();
        self.unfit.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
    }

    /// A text that describes the owned memory. Different layouts have different texts.
    pub fn layout(&self) -> String {
        let line = |owned: &OwnedMatrix| {
            let OwnedMatrix { rows, inputs, format, at, .. } = owned;
            format!("{} {rows:?} {inputs} {format:?} {at}\n", self.specs[owned.spec].gguf)
        };
        self.owned.iter().map(line).collect()
    }

    /// Refuses a model whose weights and `cache_bytes` of keys and values do not fit into memory together. Mapped weights count
    /// too: every token reads them all, and a missing tensor would come from the disk each time. Without `available_bytes`,
    /// nothing is refused.
    pub fn refuse_if_too_large(&self, cache_bytes: u64, available_bytes: Option<u64>) -> Result<(), Failed> {
        let weights = self.bytes();
        let needed = weights.saturating_add(cache_bytes);
        let Some(available) = available_bytes.filter(|available| needed > *available) else { return Ok(()) };
        let message = format!(
            "the model needs {needed} bytes of memory ({weights} for weights, {cache_bytes} for keys and values), and \
             {available} are available"
        );
        let hint = if weights > available {
            "--dtype q4_0    # or q8_0, or a smaller model"
        } else {
            "set a smaller `context_tokens` in the request `load`"
        };
        Err(Failed::new(FailureKind::OutOfMemory, message).hint(hint))
    }

    /// The matrices over the files and over `owned`, which `read` filled in this load or an earlier one.
    pub fn weights(&self, shape: &Shape, owned: &Region) -> Result<Weights, Failed> {
        let roles = Roles::new(shape, &self.specs);
        let Shape { vocabulary, hidden, head_dim, context, .. } = *shape;
        let norm = |name: &str, width: usize| {
            let weight = self.files.numbers(roles.require(&format!("{name}.weight"), 1, width)?)?;
            let bias = roles.find(&format!("{name}.bias"), 1, width)?.filter(|_| shape.layer_norm);
            let bias = bias.map(|bias| self.files.numbers(bias)).transpose()?;
            Ok::<_, Failed>(Norm { weight, bias, epsilon: shape.norm_epsilon })
        };
        let layer = |layer: usize| {
            let linear = |role| self.linear(roles.rows_of(layer, role)?, owned);
            let require =
                |role| linear(role)?.ok_or_else(|| invalid(format!("layer {layer} has no matrix {role:?}")));
            let head_norm = |name: &str| {
                let name = format!("blk.{layer}.{name}");
                let weight = roles.find(&format!("{name}.weight"), 1, head_dim)?;
                weight.map(|_| norm(&name, head_dim)).transpose()
            };
            Ok(Layer {
                attention_norm: norm(&format!("blk.{layer}.attn_norm"), hidden)?,
                queries: require(Role::Queries)?,
                keys: require(Role::Keys)?,
                values: require(Role::Values)?,
                query_norm: head_norm("attn_q_norm")?,
                key_norm: head_norm("attn_k_norm")?,
                attention_output: require(Role::AttentionOutput)?,
                feed_forward_norm: norm(&format!("blk.{layer}.ffn_norm"), hidden)?,
                gate: linear(Role::Gate)?,
                up: require(Role::Up)?,
                down: require(Role::Down)?,
            })
        };
        let positions = roles.find(POSITIONS_TENSOR, context, hidden)?.map(|spec| {
            let mut rows = Rows::new(context, hidden);
            // A few rows are read at a time, because the memory check counts only one copy.
            for (number, chunk) in rows.all_mut().chunks_mut(POSITION_ROWS * hidden).enumerate() {
                let first = (number * POSITION_ROWS) as u64;
                let read = self.files.rows(spec, first..first + (chunk.len() / hidden) as u64)?;
                chunk.copy_from_slice(&read);
            }
            Ok::<_, Failed>(rows)
        });
        let output = self.matrix(&roles.output()?, owned)?;
        let embedding = match shape.tied && output.format.is_panels() {
            true => Embedding::Panels(output.clone()),
            false => self.embedding(roles.require("token_embd.weight", vocabulary, hidden)?)?,
        };
        Ok(Weights {
            embedding,
            positions: positions.transpose()?,
            layers: (0..shape.layers).map(layer).collect::<Result<_, Failed>>()?,
            norm: norm("output_norm", hidden)?,
            output,
        })
    }

    fn add(
        &mut self,
        specs: &[TensorSpec],
        source: &MatrixRows,
        unfit: &BTreeSet<String>,
    ) -> Result<(), Failed> {
        let spec = source.matrix;
        let inputs = spec.rows_in(model_files::Format::Gguf).1;
        let outputs = source.rows.end - source.rows.start;
        let stored = self.files.dtype(spec)?;
        let (dtype, format) = match self.requested.resolve(spec, stored, inputs)? {
            // A matrix that cannot be packed keeps the layout of files.
            (dtype, format) if unfit.contains(&spec.gguf) => (dtype, Format::of(dtype).unwrap_or(format)),
            requested => requested,
        };
        let (outputs, inputs) = (outputs as usize, inputs as usize);
        let mapped = match Format::of(stored) == Some(format) && !format.is_panels() {
            true => self.files.map_rows(spec, source.rows.clone())?,
            false => None,
        };
        let memory = match mapped {
            Some(region) => {
                self.mapped_bytes += region.bytes().len() as u64;
                Memory::Mapped(region)
            }
            None => {
                let (at, bytes) = (self.owned_bytes, format.bytes(outputs, inputs));
                self.owned_bytes = (at + bytes).next_multiple_of(LINE_BYTES);
                let spec_index = specs.iter().position(|other| std::ptr::eq(other, spec)).unwrap_or_default();
                self.owned.push(OwnedMatrix {
                    spec: spec_index,
                    rows: source.rows.clone(),
                    inputs,
                    dtype,
                    format,
                    at,
                    bytes,
                });
                Memory::Owned(at)
            }
        };
        let planned = Planned { format, outputs, inputs, memory };
        self.matrices.insert((spec.gguf.clone(), source.rows.start), planned);
        Ok(())
    }

    fn linear(&self, source: Option<MatrixRows>, owned: &Region) -> Result<Option<Linear>, Failed> {
        let Some(source) = source else { return Ok(None) };
        let bias = match source.bias {
            Some(bias) => {
                let all = self.files.numbers(bias)?;
                Some(all[source.rows.start as usize..source.rows.end as usize].to_vec())
            }
            None => None,
        };
        Ok(Some(Linear { matrix: self.matrix(&source, owned)?, bias }))
    }

    fn matrix(&self, source: &MatrixRows, owned: &Region) -> Result<Matrix, Failed> {
        let key = (source.matrix.gguf.clone(), source.rows.start);
        let planned =
            self.matrices.get(&key).ok_or_else(|| invalid(format!("`{}` was not planned", key.0)))?;
        let Planned { format, outputs, inputs, ref memory } = *planned;
        let region = match memory {
            Memory::Mapped(region) => region.clone(),
            Memory::Owned(at) => {
                let bytes = format.bytes(outputs, inputs);
                if at + bytes > owned.bytes().len() {
                    return Err(invalid(format!("`{}` lies beyond the weights that were read", key.0)));
                }
                owned.part(*at..at + bytes)
            }
        };
        Ok(Matrix::new(format, outputs, inputs, region))
    }

    /// The embedding as rows of the file, used in place: every architecture stores it in the same order in both file formats.
    fn embedding(&self, spec: &TensorSpec) -> Result<Embedding, Failed> {
        let region = self.files.map_rows(spec, 0..spec.shape[0])?;
        let region = region.ok_or_else(|| invalid(format!("`{}` cannot be looked up by row", spec.name)))?;
        let (stored, requested) = (self.files.dtype(spec)?, self.requested.embedding_dtype());
        Ok(Embedding::FileRows(FileRows::new(region, stored, requested, spec.shape[1] as usize)))
    }
}

/// Refuses tensors in the network's modules that lmrs would ignore, such as a bias that the config denies. A GGUF has only
/// the network; a folder may hold other networks too, which are ignored.
fn refuse_unknown_tensors(folder: &ModelFolder, specs: &[TensorSpec]) -> Result<(), Failed> {
    let only_network = folder.format == model_files::Format::Gguf;
    let architecture = folder.architecture().or_fail(FailureKind::Model)?;
    // A tied output has no tensor of its own, but counts as a module: a bias there would change the results.
    let modules: HashSet<&str> = specs.iter().map(|spec| module(&spec.name)).chain(["lm_head"]).collect();
    let mut names = folder.unused_tensors(specs).into_iter().map(|tensor| tensor.name.as_str());
    match names.find(|name| only_network || modules.contains(module(architecture.shorter_name(name)))) {
        Some(name) => {
            let (folder, name) = (&folder.name, name.escape_debug());
            let message = format!("`{folder}` has a tensor `{name}`, which lmrs does not compute");
            Err(Failed::new(FailureKind::Unsupported, message))
        }
        None => Ok(()),
    }
}

/// The layer in a tensor's name, such as `model.layers.3`, or the module outside of layers, such as `lm_head`.
fn module(name: &str) -> &str {
    let dots = || name.match_indices('.').map(|(at, _)| at);
    let is_number = |from: usize, to: usize| name[from..to].bytes().all(|byte| byte.is_ascii_digit());
    let numbered = dots().zip(dots().skip(1)).find(|(from, to)| is_number(from + 1, *to));
    let end = numbered.map(|(_, end)| end).or_else(|| name.rfind('.'));
    &name[..end.unwrap_or(name.len())]
}
