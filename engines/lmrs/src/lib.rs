//! `lmrs`: a CPU engine that is small enough to read.
//!
//! ```text
//! engine  -> weights -> network  a load: a model folder becomes matrices, norms and a shape
//! model   -> network -> ops      a request: ids in, logits out, one token after the other
//! network                        the transformer as its paper has it; knows no kernel
//! ops     -> kernels, pool       what a network is made of (products, norms, attention), shared out over the threads
//! kernels                        arithmetic on slices, one module a level; know no model and no thread
//! matrix  -> region              how the numbers of a weight lie in memory, and whose memory it is
//! pool                           the threads
//! ```

pub mod about;
pub mod kernels;
pub mod lookup;
pub mod matrix;
pub mod memory;
pub mod model;
pub mod ops;
pub mod options;
pub mod pool;
pub mod region;
pub mod rows;
pub mod sidecar;
