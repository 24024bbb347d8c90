//! Tests the CUDA kernels without a GPU: the decode kernel runs on a CPU (`cuda-emulation`), and NVIDIA's compiler translates
//! all kernels if it is installed.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![expect(clippy::unwrap_used, reason = "tests panic")]

use std::path::{Path, PathBuf};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// The output of a command, and whether it succeeded.
fn run(command: &duct::Expression) -> (String, bool) {
    let output = command.stderr_to_stdout().stdout_capture().unchecked().run().unwrap();
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success())
}

fn has_program(name: &str) -> bool {
    duct::cmd!(name, "--version")
        .stdout_null()
        .stderr_null()
        .unchecked()
        .run()
        .is_ok_and(|output| output.status.success())
}

/// The output of the emulation, which must succeed.
fn emulate(mode: &str) -> String {
    let (output, succeeded) = run(&duct::cmd!(format!("{FOLDER}/tests/cuda-emulation/run"), mode));
    assert!(succeeded, "{output}");
    output
}

#[test]
fn the_decode_kernel_computes_the_logits_ids_and_cache_of_the_reference() {
    if !has_program("g++") {
        eprintln!("skipped: g++ is not installed");
        return;
    }
    let output = emulate("quick");
    assert!(output.lines().filter(|line| line.starts_with("step ")).count() > 10, "{output}");
}

#[test]
fn the_emulation_reports_faults_that_kernels_have_on_purpose() {
    if !has_program("g++") {
        eprintln!("skipped: g++ is not installed");
        return;
    }
    emulate("faults");
}

/// The installed `nvcc`, as `scripts/cuda-toolkit` sets it up.
fn installed_nvcc() -> Option<PathBuf> {
    let script = Path::new(FOLDER).join("../../scripts/cuda-toolkit");
    let folder = duct::cmd!(script, "--where").stderr_null().read().ok()?;
    let nvcc = Path::new(folder.trim()).join("bin/nvcc");
    nvcc.is_file().then_some(nvcc)
}

/// Sizes of Llama 3.2 1B, and a ring of slots for the shared memory of an H100.
const SIZES: [&str; 12] = [
    "-DHIDDEN=2048",
    "-DINNER=8192",
    "-DLAYERS=16",
    "-DHEADS=32",
    "-DKV_HEADS=8",
    "-DHEAD_DIM=64",
    "-DVOCABULARY=128256",
    "-DEPSILON=1e-05f",
    "-DBLOCKS=132",
    "-DSLOT_BYTES=16384",
    "-DSLOTS=12",
    "-DWARPS=6",
];

#[test]
fn the_kernels_compile_for_gpus_without_spilling_registers() {
    let Some(nvcc) = installed_nvcc() else {
        eprintln!("skipped: scripts/cuda-toolkit has not installed nvcc");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for kernels in ["decode", "prefill"] {
        for architecture in ["sm_90a", "sm_100a"] {
            let source = format!("{FOLDER}/src/cuda/kernels/{kernels}.cu");
            let target = folder.path().join(kernels);
            let mut arguments: Vec<String> = SIZES.map(str::to_owned).into();
            arguments.extend(["-std=c++17", "-cubin", "-Xptxas", "-v"].map(str::to_owned));
            arguments.extend([
                format!("-arch={architecture}"),
                source,
                "-o".to_owned(),
                target.display().to_string(),
            ]);
            let (output, succeeded) = run(&duct::cmd(&nvcc, &arguments));
            assert!(succeeded, "{kernels} for {architecture}: {output}");
            let spills: Vec<&str> = output.lines().filter(|line| line.contains("spill stores")).collect();
            assert!(!spills.is_empty(), "{kernels} for {architecture}: {output}");
            for line in spills {
                assert!(
                    line.contains(" 0 bytes spill stores, 0 bytes spill loads"),
                    "{kernels} for {architecture}: {output}"
                );
            }
        }
    }
}
