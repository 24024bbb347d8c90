//! `lmrs`: a CPU engine that is small enough to read.
//!
//! ```text
//! engine  -> weights -> network  a load: a model folder becomes matrices, norms and a shape
//! model   -> network -> ops      a request: ids in, logits out, one token after the other
//! weights -> shape               the sizes in a config; the plan for its files: mapped, or read and packed
//! network -> attention, cache    the transformer as in its paper; independent of kernels
//! rope, norm, activation         the small steps between products
//! ops     -> kernels, pool       the operations of a network (products, norms, attention), distributed over the threads
//! products                       the division of a product into pieces
//! kernels                        arithmetic on slices, one module a level; independent of models and threads
//! formats -> kernels             the layout of a weight's numbers and its kernels: one file a format, one table
//! matrix  -> formats, region     a weight in its format, with its memory
//! pool                           the threads
//! ```

pub mod about;
pub mod activation;
pub mod attention;
pub mod cache;
mod context;
pub mod engine;
pub mod formats;
pub mod kernels;
mod large_pages;
pub mod lookup;
pub mod matrix;
pub mod memory;
pub mod model;
pub mod network;
pub mod norm;
pub mod ops;
pub mod options;
pub mod pool;
mod products;
pub mod region;
pub mod rope;
pub mod rows;
pub mod running;
pub mod shape;
pub mod share;
pub mod sidecar;
pub mod weights;
