//! Paths that the orchestrator and the engines share: the data directory, the checkout, the Python environments, and the Python
//! of an engine's worker. Both sides need the same answer without communication, so the rules are here, once.
//!
//! Nothing here creates or changes a file.

mod python;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use python::{NoProgram, OwnPython, PYTHON_VARIABLE, Python, own_python, python};

/// Overrides the data directory.
pub const HOME_VARIABLE: &str = "ORCHESTRATE_HOME";

/// The file that an environment's set-up writes last: an environment without it is incomplete.
pub const READY_FILE: &str = "orchestrate-ready";

/// `$ORCHESTRATE_HOME`, else `$XDG_DATA_HOME/orchestrate`, else `~/.local/share/orchestrate`.
pub fn data_dir() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set(HOME_VARIABLE)
        .or_else(|| set("XDG_DATA_HOME").map(|dir| dir.join("orchestrate")))
        .or_else(|| set("HOME").map(|home| home.join(".local/share/orchestrate")))
        .with_context(|| format!("no home directory: set `{HOME_VARIABLE}` to a folder to keep data in"))
}

/// The source tree of the running program's build, or else of the working directory.
pub fn checkout() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok().and_then(|exe| exe.canonicalize().ok());
    exe.as_deref().and_then(checkout_above).or_else(|| checkout_above(&std::env::current_dir().ok()?))
}

fn checkout_above(start: &Path) -> Option<PathBuf> {
    let is_checkout = |dir: &&Path| {
        dir.join("Cargo.toml").is_file()
            && dir.join("engines/places").is_dir()
            && dir.join("protocol").is_dir()
    };
    start.ancestors().find(is_checkout).map(Path::to_path_buf)
}

/// The folder of the Python environment with this name (of one engine, or shared) and exactly these requirements. Other
/// requirements give another folder.
pub fn environment(name: &str, requirements: &str) -> Result<PathBuf> {
    Ok(data_dir()?.join("environments").join(format!("{name}-{}", digest(requirements.as_bytes()))))
}

/// The interpreter of an environment, if its set-up has finished.
pub fn interpreter(environment: &Path) -> Option<PathBuf> {
    let python = environment.join("bin/python");
    (environment.join(READY_FILE).is_file() && python.exists()).then_some(python)
}

/// A digest of sixteen hexadecimal digits (FNV-1a, 64 bits). Not cryptographic.
pub fn digest(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_published_fnv_1a() {
        assert_eq!(digest(b""), "cbf29ce484222325");
        assert_eq!(digest(b"foobar"), "85944171f73967e8");
    }

    #[test]
    fn the_tests_of_this_crate_run_inside_a_checkout() {
        assert!(checkout().is_some_and(|root| root.join("engines/places/Cargo.toml").is_file()));
    }

    #[test]
    fn a_folder_without_the_ready_file_is_no_environment() {
        assert_eq!(interpreter(Path::new("/")), None);
    }
}
