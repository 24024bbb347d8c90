//! Tests of scripts/cuda-toolkit with a stand-in for the installer `uv`, which makes a toolkit of a few bytes without a
//! network. Tests of scripts/check-cuda and of engines/candle/build-cuda with a stand-in for cargo.
#![cfg(target_os = "linux")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::{Outcome, Running, Scratch, command, finish, root, wait_until};

/// A `uv` that logs its calls and makes the files that the script needs, without permission to execute them.
const WORKING_UV: &str = r#"
echo "$*" >>"$CALLS"
while [ "$1" != --target ]; do shift; done
cu=$2/nvidia/cu13
mkdir -p "$cu/bin" "$cu/nvvm/bin" "$cu/lib" "$cu/include"
echo '#!/bin/sh' | tee "$cu/bin/nvcc" >"$cu/nvvm/bin/cicc"
for library in cublas.so.13 cublasLt.so.13 cudart.so.13 curand.so.10 nvrtc.so.13; do : >"$cu/lib/lib$library"; done
echo 'CUresult cuInit(unsigned Flags); #define cuMemAlloc cuMemAlloc_v2' >"$cu/include/cuda.h"
echo 'CUresult cuProfilerStart(void);' >"$cu/include/cudaProfiler.h""#;

/// A `uv` without a network.
const OFFLINE_UV: &str = r#"
echo "error: Failed to fetch: \`nvidia-cublas\`" >&2
echo "  Caused by: error sending request: client error (Connect): dns error: failed to lookup address" >&2
exit 2"#;

/// A machine with this `uv` and without a toolkit.
fn machine(uv: &str) -> Scratch {
    let scratch = Scratch::outside_checkout();
    std::fs::create_dir_all(scratch.join("path")).unwrap();
    scratch.script("path/uv", uv);
    scratch
}

/// A PATH that begins with the test's programs.
fn path(scratch: &Scratch) -> String {
    format!("{}:/usr/bin:/bin", scratch.join("path").display())
}

fn toolkit(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = scratch.command(root().join("scripts/cuda-toolkit"));
    command.args(arguments).env("PATH", path(scratch)).env("CALLS", scratch.join("calls"));
    command.env_remove("CUDA_HOME");
    command
}

fn call(scratch: &Scratch, arguments: &[&str]) -> Outcome {
    finish(&mut toolkit(scratch, arguments))
}

fn folder(scratch: &Scratch) -> PathBuf {
    PathBuf::from(call(scratch, &["--where"]).stdout.trim())
}

fn calls(scratch: &Scratch) -> usize {
    std::fs::read_to_string(scratch.join("calls")).map_or(0, |calls| calls.lines().count())
}

/// Every path with its size, modification time, permissions and link target.
fn listing(folder: &Path) -> Vec<String> {
    let mut find = command("find");
    find.args(["-printf", "%p %s %T@ %m %l\n"]).current_dir(folder).stdout(Stdio::piped());
    let listed = finish(&mut find);
    let mut lines: Vec<String> = listed.stdout.lines().map(String::from).collect();
    lines.sort();
    lines
}

#[test]
fn the_first_call_prints_the_sizes_and_makes_a_toolkit_from_wheels() {
    let scratch = machine(WORKING_UV);
    let outcome = call(&scratch, &[]).exits_with(0);
    outcome.assert_stderr(&["677 MB to download, 1250 MB installed in "]);
    let folder = PathBuf::from(outcome.stdout.trim());
    assert!(folder.starts_with(scratch.join("home/toolkits")), "{}", folder.display());
    for program in ["bin/nvcc", "nvvm/bin/cicc"] {
        let mode = std::fs::metadata(folder.join(program)).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{program}");
    }
    for library in ["lib/libcublas.so", "lib/libcurand.so", "lib64/libcudart.so"] {
        assert!(folder.join(library).is_file(), "{library}");
    }
    // The stub library has every function of the headers, and the library name of a real driver.
    let mut readelf = command("readelf");
    readelf.args(["-d", "--dyn-syms", "-W"]).arg(folder.join("lib/stubs/libcuda.so"));
    let stub = finish(readelf.stdout(Stdio::piped()));
    stub.assert_stdout(&["[libcuda.so.1]", "cuInit", "cuMemAlloc_v2", "cuProfilerStart"]);
    assert!(!folder.join("lib/libcuda.so").exists() && !folder.join("lib/libcuda.so.1").exists());
    // Only pinned packages are installed, and their hashes are checked.
    let arguments = std::fs::read_to_string(scratch.join("calls")).unwrap();
    assert!(arguments.contains("--no-deps --require-hashes -r"), "{arguments}");
}

#[test]
fn the_second_call_changes_nothing_and_prints_only_the_folder() {
    let scratch = machine(WORKING_UV);
    let first = call(&scratch, &[]);
    let before = listing(&scratch.join("home"));
    let second = call(&scratch, &[]);
    assert_eq!((second.code, second.stdout, second.stderr.as_str()), (Some(0), first.stdout, ""));
    assert_eq!(listing(&scratch.join("home")), before);
    assert_eq!(calls(&scratch), 1);
}

#[test]
fn an_incomplete_folder_is_replaced() {
    let scratch = machine(WORKING_UV);
    let folder = folder(&scratch);
    assert!(!folder.exists(), "`--where` must create nothing");
    std::fs::create_dir_all(folder.join("lib/stubs")).unwrap();
    std::fs::write(folder.join("lib/leftover"), "").unwrap();
    call(&scratch, &[]).exits_with(0);
    assert!(folder.join("bin/nvcc").is_file() && !folder.join("lib/leftover").exists());
}

#[test]
fn two_calls_at_the_same_time_install_one_toolkit() {
    let scratch = machine(WORKING_UV);
    let running = [&[][..], &["--env"]].map(|arguments| Running::start(&mut toolkit(&scratch, arguments)));
    for outcome in running.map(Running::finish) {
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
    assert_eq!(calls(&scratch), 1);
}

#[test]
fn the_option_env_prints_shell_lines_that_set_path_and_cuda_home() {
    let scratch = machine(WORKING_UV);
    let spaced = scratch.join("a home");
    let mut shell = scratch.command("bash");
    let script = format!(
        "set -eu; lines=$({} --env); eval \"$lines\"; command -v nvcc; echo \"$CUDA_HOME\"",
        root().join("scripts/cuda-toolkit").display()
    );
    shell.args(["-c", &script]).env("ORCHESTRATE_HOME", &spaced).env("CALLS", scratch.join("calls"));
    shell.env("PATH", path(&scratch)).env_remove("CUDA_HOME");
    let outcome = finish(&mut shell);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{outcome:?}");
    assert_eq!(lines[0], format!("{}/bin/nvcc", lines[1]));
    assert!(Path::new(lines[1]).starts_with(&spaced));
}

#[test]
fn without_a_network_the_script_fails_and_the_next_call_starts_over() {
    let scratch = machine(OFFLINE_UV);
    let outcome = call(&scratch, &["--env"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(3), ""), "{outcome:?}");
    let expected = "error: CUDA's toolkit cannot be downloaded: is there a network?\nhint: export CUDA_HOME=";
    outcome.assert_stderr(&["dns error", expected]);
    scratch.script("path/uv", WORKING_UV);
    call(&scratch, &[]).exits_with(0);
}

#[test]
fn an_error_of_another_kind_is_not_called_a_network_error() {
    let scratch = machine("echo 'error: Hash mismatch for `nvidia-cublas==13.1.0.3`' >&2; exit 1");
    let outcome = call(&scratch, &[]).exits_with(1);
    outcome.assert_stderr(&["Hash mismatch", "cannot be unpacked\nhint: less "]);
}

#[test]
fn a_full_disk_or_a_missing_compiler_is_reported_before_any_download() {
    let scratch = machine(WORKING_UV);
    scratch.script("path/df", "printf 'Filesystem 1MB-blocks Used Available\\n/dev/x 9MB 8MB 1MB\\n'");
    let outcome = call(&scratch, &[]).exits_with(3);
    outcome.assert_stderr(&["has 1 MB free, 1927 MB are needed", "\nhint: export ORCHESTRATE_HOME="]);

    // All tools that the script needs, without a compiler.
    for tool in ["bash", "cut", "dirname", "env", "grep", "sha256sum", "uname"] {
        let candidates = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(tool));
        let program = candidates.iter().find(|path| path.exists()).unwrap();
        std::os::unix::fs::symlink(program, scratch.join("path").join(tool)).unwrap();
    }
    let outcome = finish(toolkit(&scratch, &[]).env("PATH", scratch.join("path"))).exits_with(3);
    outcome.assert_stderr(&["no `gcc`", "apt-get install g++"]);
    assert_eq!(calls(&scratch), 0);
}

#[test]
fn a_users_own_toolkit_is_used_unchanged_and_needs_a_compiler() {
    let scratch = machine(WORKING_UV);
    let users_toolkit = scratch.join("own");
    std::fs::create_dir_all(users_toolkit.join("bin")).unwrap();
    let outcome = finish(toolkit(&scratch, &["--env"]).env("CUDA_HOME", &users_toolkit)).exits_with(1);
    outcome.assert_stderr(&["which has no `bin/nvcc`\nhint: unset CUDA_HOME"]);
    // The toolkit that fails is the user's, so the hint is about CUDA_HOME.
    scratch.script("own/bin/nvcc", "exit 1");
    let outcome = finish(toolkit(&scratch, &["--check"]).env("CUDA_HOME", &users_toolkit)).exits_with(1);
    outcome.assert_stderr(&["\nhint: unset CUDA_HOME"]);
    scratch.script("own/bin/nvcc", "");
    let outcome = finish(toolkit(&scratch, &["--env"]).env("CUDA_HOME", &users_toolkit));
    assert!(
        outcome.stdout.starts_with(&format!("export CUDA_HOME={}", users_toolkit.display())),
        "{outcome:?}"
    );
    assert_eq!(calls(&scratch), 0);
}

#[test]
fn remove_deletes_every_toolkit_and_nothing_else() {
    let scratch = machine(WORKING_UV);
    call(&scratch, &[]).exits_with(0);
    for other in ["toolkits/cuda-12.0.0-0123456789abcdef", "toolkits/of-another-kind", "environments/x"] {
        std::fs::create_dir_all(scratch.join("home").join(other)).unwrap();
    }
    let outcome = call(&scratch, &["--remove"]);
    assert_eq!((outcome.code, outcome.stderr.lines().count()), (Some(0), 2), "{outcome:?}");
    let remaining = std::fs::read_dir(scratch.join("home/toolkits")).unwrap();
    let remaining: Vec<_> = remaining.flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(remaining, ["of-another-kind"]);
    assert!(scratch.join("home/environments/x").is_dir());
}

#[test]
fn an_unknown_option_is_refused_with_the_known_ones() {
    let outcome = call(&machine(WORKING_UV), &["--help-me"]).exits_with(2);
    outcome.assert_stderr(&["scripts/cuda-toolkit --where"]);
}

/// Far more time than the script needs with a stand-in for cargo.
const ENOUGH_MINUTES: &str = "8";

/// Runs scripts/check-cuda with this `cargo` and with an `nvcc` that does nothing.
fn check(scratch: &Scratch, cargo: &str, minutes: &str) -> Outcome {
    finish(&mut check_command(scratch, cargo, minutes))
}

fn check_command(scratch: &Scratch, cargo: &str, minutes: &str) -> Command {
    for folder in ["path", "own/bin"] {
        std::fs::create_dir_all(scratch.join(folder)).unwrap();
    }
    scratch.script("own/bin/nvcc", "");
    scratch.script("path/rustc", "echo rustc 1.95.0");
    scratch.script("path/cargo", &format!("echo \"$*\" >>\"$CALLS\"\n{cargo}"));
    let mut command = scratch.command(root().join("scripts/check-cuda"));
    command.arg(minutes).env("PATH", path(scratch)).env("CALLS", scratch.join("calls"));
    command.env("CUDA_HOME", scratch.join("own"));
    command
}

#[test]
fn unchanged_sources_are_compiled_once_per_machine() {
    let scratch = Scratch::outside_checkout();
    let first = check(&scratch, "exit 0", ENOUGH_MINUTES).exits_with(0);
    first.assert_stdout(&["compiled: the CUDA build of candle, in "]);
    let before = calls(&scratch);
    let second = check(&scratch, "exit 1", ENOUGH_MINUTES).exits_with(0);
    second.assert_stdout(&["unchanged: the CUDA build of candle compiled here on "]);
    assert_eq!(calls(&scratch), before);
    // Without the stored result, the sources are compiled again.
    let stored = finish(scratch.command(root().join("scripts/check-cuda")).arg("--where"));
    std::fs::remove_dir_all(stored.stdout.trim()).unwrap();
    check(&scratch, "exit 1", ENOUGH_MINUTES).exits_with(1);
}

#[test]
fn a_failed_compilation_fails_every_time() {
    let scratch = Scratch::outside_checkout();
    for _ in 0..2 {
        let outcome = check(&scratch, "echo 'error: expected one of' >&2; exit 101", ENOUGH_MINUTES);
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(101), ""), "{outcome:?}");
    }
}

#[test]
fn a_build_beyond_its_minutes_is_skipped_and_its_processes_end() {
    let scratch = Scratch::outside_checkout();
    let outcome = check(&scratch, "exec sleep 600", "0.01").exits_with(0);
    assert!(outcome.stdout.starts_with("skipped: the CUDA build of candle takes longer than 0.01 minutes"));
    scratch.wait_until_no_processes_left();
    let outcome = check(&scratch, "exit 0", ENOUGH_MINUTES);
    outcome.assert_stdout(&["compiled: "]);
}

#[test]
fn a_stopped_check_ends_its_processes_and_releases_the_lock() {
    let scratch = Scratch::outside_checkout();
    let cargo = "sleep 600 &\nexec sleep 600";
    let running = Running::start(&mut check_command(&scratch, cargo, ENOUGH_MINUTES));
    wait_until("cargo is called", || calls(&scratch) > 0);
    running.signal(Signal::TERM);
    running.finish().exits_with(143);
    scratch.wait_until_no_processes_left();
    check(&scratch, "exit 0", ENOUGH_MINUTES).exits_with(0);
}

#[test]
fn minutes_that_are_no_positive_number_are_refused() {
    let scratch = Scratch::outside_checkout();
    for minutes in ["0", "0.0", "00", ".", "1.2.3", "-1", "ten"] {
        let outcome = check(&scratch, "exit 0", minutes).exits_with(2);
        outcome.assert_stderr(&[&format!("`{minutes}`")]);
    }
    assert_eq!(calls(&scratch), 0);
}

/// Runs engines/candle/build-cuda with this `nvidia-smi`, and returns the compute capability that cargo gets.
fn capability(scratch: &Scratch, nvidia_smi: &str, chosen: Option<&str>) -> String {
    for folder in ["path", "own/bin", "target/release"] {
        std::fs::create_dir_all(scratch.join(folder)).unwrap();
    }
    scratch.script("own/bin/nvcc", "");
    scratch.script("path/nvidia-smi", nvidia_smi);
    let cargo = "echo \"$CUDA_COMPUTE_CAP\"; cp /bin/true \"$CARGO_TARGET_DIR/release/candle-cuda\"";
    scratch.script("path/cargo", cargo);
    let mut command = scratch.command(root().join("engines/candle/build-cuda"));
    command.env("PATH", path(scratch));
    command.env("CUDA_HOME", scratch.join("own")).env("CARGO_TARGET_DIR", scratch.join("target"));
    command.env_remove("CUDA_COMPUTE_CAP").envs(chosen.map(|chosen| ("CUDA_COMPUTE_CAP", chosen)));
    let outcome = finish(&mut command).exits_with(0);
    outcome.stdout.trim().to_string()
}

#[test]
fn kernels_are_built_for_the_first_gpu_that_nvidia_smi_reports() {
    assert_eq!(capability(&Scratch::outside_checkout(), "echo 8.6; echo 9.0", None), "86");
    // Without a capability from `nvidia-smi`, kernels are built for 9.0.
    let trouble = "echo 'NVIDIA-SMI has failed because it could not reach the driver'; exit 9";
    assert_eq!(capability(&Scratch::outside_checkout(), trouble, None), "90");
    assert_eq!(capability(&Scratch::outside_checkout(), "echo '[N/A]'", None), "90");
}

#[test]
fn a_chosen_capability_is_kept_by_the_next_build() {
    let scratch = Scratch::outside_checkout();
    assert_eq!(capability(&scratch, "echo 9.0", Some("8.6")), "86");
    assert_eq!(capability(&scratch, "echo 9.0", None), "86");
    assert_eq!(capability(&scratch, "echo 9.0", Some("90a")), "90a");
    let stored = std::fs::read_to_string(scratch.join("target/release/candle-cuda.capability")).unwrap();
    assert_eq!(stored, "90a\n");
}

#[test]
fn a_machine_without_a_toolkit_skips_the_check_with_the_reason() {
    let scratch = machine(OFFLINE_UV);
    let mut command = scratch.command(root().join("scripts/check-cuda"));
    let outcome = finish(command.env("PATH", path(&scratch)).env_remove("CUDA_HOME")).exits_with(0);
    assert!(outcome.stdout.starts_with("skipped: CUDA's toolkit is not available here"), "{outcome:?}");
    outcome.assert_stderr(&["is there a network?"]);
}
