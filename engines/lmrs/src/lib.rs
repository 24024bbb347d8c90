//! `lmrs`: a CPU engine without a tensor framework. `READING.md` leads through one request.
//!
//! ```text
//! engine  -> weights -> network  a load: a model folder becomes matrices, norms and a shape
//! engine  -> cuda                the same on an NVIDIA GPU, with kernels of its own
//! model   -> network -> ops      a request: ids in, logits out, one token after the other
//! weights -> shape               the plan for the model's files (mapped, or read and packed), by the sizes in a config
//! network -> attention, cache    the layers of a transformer; `ops` chooses the kernels
//! ops     -> kernels, pool       products of activations with weights, distributed over the threads
//! kernels                        arithmetic on slices, for each level; independent of models and threads
//! formats -> kernels             the layout of each format and its kernels; the table of all formats
//! matrix  -> formats, region     weights in a format, with their memory; activations
//! sidecar, context, pool         packed weights on disk; the context that fits into memory; the threads
//! ```

pub mod attention;
pub mod cache;
pub mod context;
pub mod cuda;
pub mod engine;
pub mod formats;
pub mod kernels;
pub mod matrix;
pub mod model;
pub mod network;
pub mod ops;
pub mod pool;
pub mod region;
pub mod shape;
pub mod sidecar;
pub mod weights;
