//! Stand-ins for NVIDIA's management library (NVML), found before a real one: a driver is present or absent as a test needs.

use std::path::{Path, PathBuf};

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
    compile(source, &folder.join("libnvidia-ml.so.1"));
    folder
}

/// Compiles a stand-in of this folder.
pub fn compile(source: &str, library: &Path) {
    std::fs::create_dir_all(library.parent().unwrap()).unwrap();
    let mut cc = command("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(library).arg(root().join("tests/support").join(source));
    assert!(
        cc.arg("-ldl").status().unwrap().success(),
        "a C compiler is needed: whatever links Rust has one"
    );
}
