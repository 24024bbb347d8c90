//! What GPUs can do at most, asked of a process that ends: a CUDA context holds some hundred MiB of a device for as long as its
//! process lives, and what a driver does in that process, hanging and crashing included, is no trouble of a run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use machine_limits::{GpuAsked, Limits, probe_gpus};

use crate::exit_code::DONE;
use crate::output;

use super::gpu;

/// The question that this program answers itself.
const QUESTION: &str = "probe-gpu";
/// Most of an answer is libraries of hundreds of MiB being loaded, perhaps from a slow disk.
const DEADLINE: Duration = Duration::from_secs(60);
/// For each setting. Clocks of a GPU that idled are up after a tenth of it.
const BUDGET: Duration = Duration::from_millis(300);

/// Gives `gpus` and `absent` alone, and never an error.
pub fn ask(devices: &[u32]) -> Limits {
    let arguments = std::iter::once(QUESTION.to_string()).chain(devices.iter().map(u32::to_string));
    let program = std::env::current_exe().map_err(|error| format!("this program's own file: {error}"));
    let answered = program.and_then(|program| answered(&program, arguments.collect(), DEADLINE));
    answered.unwrap_or_else(|reason| Limits { absent: vec![format!("GPUs: {reason}")], ..Limits::default() })
}

fn answered(program: &Path, arguments: Vec<String>, deadline: Duration) -> Result<Limits, String> {
    let mut question = duct::cmd(program, arguments).stdin_null().stderr_null().stdout_capture().unchecked();
    // It counts as engines do.
    if let Some((name, value)) = gpu::order_for_processes() {
        question = question.env(name, value);
    }
    let asked = question.start().map_err(|error| format!("cannot ask about them: {error}"))?;
    match asked.wait_timeout(deadline) {
        Ok(Some(output)) => said(&output.stdout)
            .ok_or_else(|| format!("what asks about them ended without an answer: {}", output.status)),
        Ok(None) => {
            // One that does not end by that is stuck in its driver, and nobody can do more.
            let _ = asked.kill();
            Err(format!("no answer within {} s", deadline.as_secs()))
        }
        Err(error) => Err(format!("cannot wait for an answer about them: {error}")),
    }
}

/// The last line that is one: libraries that were loaded may have said something too.
fn said(stdout: &[u8]) -> Option<Limits> {
    String::from_utf8_lossy(stdout).lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

/// The answer, in the process that ends.
pub fn answer(devices: Vec<u32>) -> Result<u8> {
    let folders = places::data_dir().map(|home| wheels(&home.join("environments"))).unwrap_or_default();
    let limits = probe_gpus(&GpuAsked { devices, folders, budget: BUDGET });
    let mut line = serde_json::to_vec(&limits)?;
    line.push(b'\n');
    output::print(&line)?;
    Ok(DONE)
}

/// Where Python's wheels have cuBLAS in the environments of engines: `nvidia/cublas/lib`, and `nvidia/cu13/lib` of later ones.
fn wheels(environments: &Path) -> Vec<PathBuf> {
    let inside = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    };
    let named = |path: &Path, start: &str| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
    };
    let environments = inside(environments.to_path_buf()).into_iter();
    let pythons = environments.flat_map(|it| inside(it.join("lib"))).filter(|path| named(path, "python"));
    let packages = pythons.flat_map(|python| inside(python.join("site-packages/nvidia")));
    let folders = packages.map(|package| package.join("lib"));
    folders.filter(|folder| inside(folder.clone()).iter().any(|path| named(path, "libcublas.so"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_the_last_line_that_is_one() {
        let found = said(b"a library greets\n{\"absent\":[\"x\"]}\nand says goodbye\n").unwrap();
        assert_eq!(found.absent, ["x"]);
        assert_eq!(said(b"nothing\n"), None);
        assert_eq!(said(b""), None);
    }

    #[test]
    fn a_question_that_is_not_answered_ends_with_its_deadline() {
        let shell = |script: &str, deadline| {
            answered(Path::new("/bin/sh"), vec!["-c".into(), script.into()], deadline)
        };
        let never = shell("exec tail -f /dev/null", Duration::from_millis(20));
        assert_eq!(never, Err("no answer within 0 s".to_string()));
        let nothing = shell("echo; exit 3", DEADLINE).unwrap_err();
        assert!(nothing.starts_with("what asks about them ended without an answer: exit"), "{nothing}");
        let nobody = answered(Path::new("./no-such-program"), Vec::new(), DEADLINE).unwrap_err();
        assert!(nobody.starts_with("cannot ask about them: "), "{nobody}");
    }
}
