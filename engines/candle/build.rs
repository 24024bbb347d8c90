//! Build settings of `candle-cuda` only: the GPU architecture of its kernels, and the path of CUDA's libraries on the build
//! machine. Without the feature `cuda` it does nothing.

use std::path::{Path, PathBuf};

#[path = "src/device/arch.rs"]
#[allow(dead_code, reason = "only the program itself checks which GPUs can run it")]
mod arch;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/device/arch.rs");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    println!("cargo::rerun-if-env-changed=CUDA_COMPUTE_CAP");
    println!("cargo::rerun-if-env-changed=CUDA_HOME");
    // candle-kernels reads `CUDA_COMPUTE_CAP` too. Without it, candle-kernels would query the GPU of this machine, and this
    // program would not know the architecture.
    let capability = std::env::var("CUDA_COMPUTE_CAP").unwrap_or_default();
    let Some(arch) = arch::Arch::parse(&capability) else {
        println!(
            "cargo::error=`CUDA_COMPUTE_CAP` is `{capability}`: expected a compute capability, `90` for an H100"
        );
        println!("cargo::error=hint: engines/candle/build-cuda    # finds it, and the toolkit, by itself");
        return;
    };
    println!("cargo::rustc-env=CANDLE_CUDA_ARCH={arch}");
    // The program loads CUDA's libraries from this folder. Its subfolder `stubs` is only for the linker. cudarc passes both
    // folders to the linker.
    if let Some(folder) = std::env::var_os("CUDA_HOME").and_then(|home| library_folder(Path::new(&home))) {
        let folder = folder.display();
        // Set as a RUNPATH, so that LD_LIBRARY_PATH takes precedence.
        println!("cargo::rustc-link-arg-bin=candle-cuda=-Wl,--enable-new-dtags,-rpath,{folder}");
    }
}

fn library_folder(home: &Path) -> Option<PathBuf> {
    let folders = ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];
    let folder =
        folders.iter().map(|folder| home.join(folder)).find(|it| it.join("libcudart.so").exists())?;
    folder.canonicalize().ok()
}
