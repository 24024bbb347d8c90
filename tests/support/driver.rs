//! Stand-ins for NVIDIA's management library (NVML), found before a real one: a driver is present or absent as a test needs.

use std::path::PathBuf;

use super::{Scratch, command, root};

/// A folder for `LD_LIBRARY_PATH`, with the library of a driver with one GPU.
pub fn present(scratch: &Scratch) -> PathBuf {
    compiled(scratch, "stand-in-nvml.c")
}

pub fn absent(scratch: &Scratch) -> PathBuf {
    compiled(scratch, "stand-in-no-driver.c")
}

fn compiled(scratch: &Scratch, source: &str) -> PathBuf {
    let folder = scratch.join("driver").join(source);
    std::fs::create_dir_all(&folder).unwrap();
    let mut cc = command("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(folder.join("libnvidia-ml.so.1"));
    let status = cc.arg(root().join("tests/support").join(source)).status().unwrap();
    assert!(status.success(), "a C compiler is needed: whatever links Rust has one");
    folder
}
