//! For `candle-cuda` alone: what its kernels are compiled for, and where it finds CUDA's libraries where it was built.
//! Without the feature `cuda` there is nothing to do.

use std::path::{Path, PathBuf};

#[path = "src/device/arch.rs"]
#[allow(dead_code, reason = "which GPUs can run it is asked when it runs")]
mod arch;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/device/arch.rs");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    println!("cargo::rerun-if-env-changed=CUDA_COMPUTE_CAP");
    println!("cargo::rerun-if-env-changed=CUDA_HOME");
    // candle-kernels reads the same variable. Unset, it would ask the GPU at hand, and this program would not know.
    let asked = std::env::var("CUDA_COMPUTE_CAP").unwrap_or_default();
    let Some(arch) = arch::Arch::parse(&asked) else {
        println!(
            "cargo::error=`CUDA_COMPUTE_CAP` is `{asked}`: expected a compute capability, `90` for an H100"
        );
        println!("cargo::error=hint: engines/candle/build-cuda    # finds it, and the toolkit, by itself");
        return;
    };
    println!("cargo::rustc-env=CANDLE_CUDA_ARCH={arch}");
    // The folder that programs may look in. Its `stubs` are for the linker alone, and cudarc tells it of both.
    if let Some(folder) = std::env::var_os("CUDA_HOME").and_then(|home| libraries(Path::new(&home))) {
        let folder = folder.display();
        // As a RUNPATH, so that LD_LIBRARY_PATH goes before it.
        println!("cargo::rustc-link-arg-bin=candle-cuda=-Wl,--enable-new-dtags,-rpath,{folder}");
    }
}

fn libraries(home: &Path) -> Option<PathBuf> {
    let folders = ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];
    let found = folders.iter().map(|folder| home.join(folder)).find(|it| it.join("libcudart.so").exists())?;
    found.canonicalize().ok()
}
