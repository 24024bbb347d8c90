//! The limits of GPUs, measured in a separate process that ends, for two reasons. A CUDA context holds hundreds of MiB of a
//! device while its process lives, and a driver that hangs or crashes must not disturb a run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use machine_limits::{GpuProbeSettings, Limits, probe_gpus};
use protocol::environment;

use super::gpu;

/// The subcommand of this program that measures.
const SUBCOMMAND: &str = "probe-gpu";
/// The time limit for the answer. Loading libraries of hundreds of MiB from a slow disk takes most of the time.
const DEADLINE: Duration = Duration::from_secs(60);
/// The time for each measurement: one of copies, and one for each number type. In this time the clocks of an idle GPU rise.
const BUDGET: Duration = Duration::from_millis(250);

/// The limits of the GPUs with these CUDA indices, or of all GPUs if `devices` is empty. Only `gpus` and `absent` are set. An
/// error becomes an entry of `absent`. In a run, the environment of the separate process has the run's mark, so the process ends
/// with the run.
pub fn probe_separately(devices: &[u32], run_mark: Option<&str>) -> Limits {
    let arguments = std::iter::once(SUBCOMMAND.to_string()).chain(devices.iter().map(u32::to_string));
    let program = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"));
    let limits = program.and_then(|program| run_probe(&program, arguments.collect(), run_mark, DEADLINE));
    limits.unwrap_or_else(|reason| Limits { absent: vec![format!("GPUs: {reason}")], ..Limits::default() })
}

fn run_probe(
    program: &Path,
    arguments: Vec<String>,
    run_mark: Option<&str>,
    deadline: Duration,
) -> Result<Limits, String> {
    let mut command = duct::cmd(program, arguments).stdin_null().stderr_null().stdout_capture().unchecked();
    // The probe must number GPUs as engines do.
    for (name, value) in
        run_mark.map(|mark| (environment::RUN, mark)).into_iter().chain(gpu::order_for_processes())
    {
        command = command.env(name, value);
    }
    let probe = command.start().map_err(|error| format!("the probe cannot be started: {error}"))?;
    match probe.wait_timeout(deadline) {
        Ok(Some(output)) => parse_answer(&output.stdout)
            .ok_or_else(|| format!("the probe ended without an answer: {}", output.status)),
        Ok(None) => {
            // A process that survives this is stuck in its driver, and nothing can end it.
            let _ = probe.kill();
            Err(format!("the probe gave no answer within {} s", deadline.as_secs()))
        }
        Err(error) => Err(format!("cannot wait for the probe: {error}")),
    }
}

/// The last line that is an answer: loaded libraries may print lines too.
fn parse_answer(stdout: &[u8]) -> Option<Limits> {
    String::from_utf8_lossy(stdout).lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

/// Measures the limits, in the separate process.
pub fn probe(devices: Vec<u32>) -> Limits {
    probe_gpus(&GpuProbeSettings { devices, folders: cublas_folders(), budget: BUDGET })
}

/// The start of the names of variables that select the user's own Pythons.
const OWN_PYTHON_PREFIX: &str = "ORCHESTRATE_PYTHON";

/// The folders with cuBLAS that the loader does not search. They belong to the user's own Pythons, to this program's environments
/// and toolkits, to the shell's Python, or to CUDA's installation.
fn cublas_folders() -> Vec<PathBuf> {
    let pythons =
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with(OWN_PYTHON_PREFIX));
    let own_pythons = pythons.map(|(_, value)| PathBuf::from(value));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let shell_python =
        std::env::split_paths(&path).map(|folder| folder.join("python3")).find(|it| it.is_file());
    let home = paths::data_dir();
    let paths_of_kind = |kind: &str| home.as_ref().map(|home| paths_in(&home.join(kind))).unwrap_or_default();
    let cuda = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let cuda = cuda.chain([PathBuf::from("/usr/local/cuda")]);
    let in_python = |it: PathBuf| wheel_folders(&prefix(&it).unwrap_or_default());
    let in_cuda = |it: PathBuf| ["lib64", "lib", "nvidia/cu13/lib"].map(|lib| it.join(lib));
    let all = (own_pythons.flat_map(in_python))
        .chain(paths_of_kind("environments").into_iter().flat_map(|it| wheel_folders(&it)))
        .chain(paths_of_kind("toolkits").into_iter().chain(cuda).flat_map(in_cuda))
        .chain(shell_python.into_iter().flat_map(in_python));
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in all {
        let has_cublas = paths_in(&folder).iter().any(|path| name_starts_with(path, "libcublas.so"));
        if has_cublas && !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// The prefix of `/some/where/bin/python3`. Links are not resolved: the Python of an environment is a link to another Python.
fn prefix(python: &Path) -> Option<PathBuf> {
    Some(python.parent()?.parent()?.to_path_buf())
}

/// The folders of NVIDIA's libraries in Python's wheels below a prefix: `nvidia/cublas/lib`, or `nvidia/cu13/lib` in later ones.
fn wheel_folders(prefix: &Path) -> Vec<PathBuf> {
    let pythons = paths_in(&prefix.join("lib")).into_iter().filter(|path| name_starts_with(path, "python"));
    let packages = pythons.flat_map(|it| ["site-packages", "dist-packages"].map(|name| it.join(name)));
    packages.flat_map(|it| paths_in(&it.join("nvidia"))).map(|package| package.join("lib")).collect()
}

fn paths_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn name_starts_with(path: &Path, start: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_the_last_line_with_valid_json() {
        let limits = parse_answer(b"a line of a library\n{\"absent\":[\"x\"]}\nanother line\n").unwrap();
        assert_eq!(limits.absent, ["x"]);
        assert_eq!(parse_answer(b"nothing\n"), None);
        assert_eq!(parse_answer(b""), None);
    }

    #[test]
    fn a_probe_without_an_answer_ends_at_its_deadline() {
        let shell = |script: &str, deadline| {
            run_probe(Path::new("/bin/sh"), vec!["-c".into(), script.into()], None, deadline)
        };
        let hanging = shell("exec tail -f /dev/null", Duration::from_millis(20));
        assert_eq!(hanging, Err("the probe gave no answer within 0 s".to_string()));
        let nothing = shell("echo; exit 3", DEADLINE).unwrap_err();
        assert!(nothing.starts_with("the probe ended without an answer: exit"), "{nothing}");
        let missing = run_probe(Path::new("./no-such-program"), Vec::new(), None, DEADLINE).unwrap_err();
        assert!(missing.starts_with("the probe cannot be started: "), "{missing}");
    }
}
