//! What holds for whatever bytes a model's files consist of.
//!
//! - Reading ends, without a panic and without an overflow.
//! - It allocates no more than a small multiple of what is there, and a constant.
//! - What is accepted is consistent: `law` says in which ways.
//!
//! Each target is a function of bytes. scripts/fuzz builds it with libFuzzer, which makes up the bytes and learns from the
//! branches that they reach; built as usual, a target's program reads the files that it is given, so that a finding can
//! be repeated under a debugger, and a test reads the seeds.

mod law;
mod seeds;
mod targets;

use std::path::Path;

pub use seeds::seeds;
pub use targets::{TARGETS, Target, config, folder, gguf, safetensors, sweep};

/// Reads the files that are named on the command line, as libFuzzer does with `PROGRAM FILE...`.
pub fn repeat(target: Target) -> anyhow::Result<()> {
    for path in std::env::args_os().skip(1) {
        target(&std::fs::read(path)?);
    }
    Ok(sweep()?)
}

/// Writes each target's seeds into a folder of its name under `corpus`.
pub fn write_seeds(corpus: &Path) -> anyhow::Result<()> {
    for (name, _) in TARGETS {
        let folder = corpus.join(name);
        std::fs::create_dir_all(&folder)?;
        for (number, seed) in seeds(name)?.iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
