//! The properties of reading that hold for any bytes in a model's files.
//!
//! - Reading ends, without a panic and without an overflow.
//! - It allocates at most a constant plus a fixed multiple of the input's bytes.
//! - An accepted model is consistent; `properties` checks it.
//!
//! Each target is a function of bytes. scripts/fuzz builds it with libFuzzer, which generates inputs and learns from the
//! branches that they reach. A normal build of a target's program reads the given files, to repeat a finding under a
//! debugger. A test reads the seeds.

mod properties;
mod seeds;
mod targets;

use std::path::Path;

pub use seeds::seeds;
pub use targets::{TARGETS, Target, config, folder, gguf, remove_scratch_files, safetensors};

/// Reads the files named on the command line, as libFuzzer does with `PROGRAM FILE...`.
pub fn read_named_files(target: Target) -> anyhow::Result<()> {
    for path in std::env::args_os().skip(1) {
        target(&std::fs::read(path)?);
    }
    Ok(remove_scratch_files()?)
}

/// Writes each target's seeds into a folder with the target's name under `corpus`.
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
