//! `lmrs`: a CPU engine that is small enough to read.
//!
//! ```text
//! engine  -> weights -> network  a load: a model folder becomes matrices, norms and a shape
//! model   -> network -> ops      a request: ids in, logits out, one token after the other
//! weights -> shape               what a config says in numbers; what of its files is mapped, what is read and packed
//! network -> attention, cache    the transformer as its paper has it; knows no kernel
//! rope, norm, activation         the small steps between products
//! ops     -> kernels, pool       what a network is made of (products, norms, attention), shared out over the threads
//! products                       how a product is cut into chunks
//! kernels                        arithmetic on slices, one module a level; know no model and no thread
//! formats -> kernels             how the numbers of a weight lie in memory and what reads them: one file a format, one table
//! matrix  -> formats, region     a weight in its format, and whose memory it is
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
