//! Stand-ins for NVIDIA's management library (NVML). A program finds them before a real library, so each test chooses
//! whether a driver is present.

use std::path::{Path, PathBuf};

use super::{Scratch, command, root};

/// A folder for `LD_LIBRARY_PATH` with a stand-in for a driver's library. It has one GPU by default.
pub fn present(scratch: &Scratch) -> PathBuf {
    compiled(scratch, "stand-in-nvml.c")
}

/// A folder for `LD_LIBRARY_PATH` with a library that reports no driver.
pub fn absent(scratch: &Scratch) -> PathBuf {
    compiled(scratch, "stand-in-no-driver.c")
}

fn compiled(scratch: &Scratch, source: &str) -> PathBuf {
    let folder = scratch.join("driver").join(source);
    compile(source, &folder.join("libnvidia-ml.so.1"));
    folder
}

/// Compiles a C source of this folder to a shared library.
pub fn compile(source: &str, library: &Path) {
    std::fs::create_dir_all(library.parent().unwrap()).unwrap();
    let mut cc = command("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(library).arg(root().join("tests/support").join(source));
    assert!(cc.arg("-ldl").status().unwrap().success(), "a C compiler is needed");
}
