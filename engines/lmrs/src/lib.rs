//! `lmrs`: a CPU engine that is small enough to read.
//!
//! ```text
//! engine  -> weights -> network  a load: a model folder becomes matrices, norms and a shape
//! model   -> network -> ops      a request: ids in, logits out, one token after the other
//! weights -> shape               the sizes in a config; the plan for its files: mapped, or read and packed
//! network -> attention, cache    the transformer as in its paper; independent of kernels
//! ops     -> kernels, pool       the operations of a network (products, norms, attention), distributed over the threads
//! kernels                        arithmetic on slices, one module a level; independent of models and threads
//! formats -> kernels             the layout of a weight's numbers and its kernels: one file a format, one table
//! matrix  -> formats, region     a weight in its format, with its memory
//! pool                           the threads
//! ```

#![deny(clippy::undocumented_unsafe_blocks)]

pub mod attention;
pub mod cache;
pub mod engine;
pub mod formats;
pub mod kernels;
pub mod matrix;
pub mod memory;
pub mod model;
pub mod network;
pub mod ops;
pub mod pool;
pub mod region;
pub mod shape;
pub mod sidecar;
pub mod weights;
