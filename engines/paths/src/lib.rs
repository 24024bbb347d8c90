//! Paths that the orchestrator and the engines share: the data directory, the checkout, the Python environments, and the Python
//! of an engine's worker. The orchestrator and the engines must find the same paths without communication, so this crate has
//! the rules.
//!
//! This crate creates and changes no file.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The variable that names the data directory.
pub const HOME_VARIABLE: &str = "ORCHESTRATE_HOME";

/// The variable that names the Python interpreter of all engines. A variable that ends with an engine's name is for that
/// engine alone, and has priority: `ORCHESTRATE_PYTHON_LLAMA_CPP` for `llama-cpp`.
pub const PYTHON_VARIABLE: &str = "ORCHESTRATE_PYTHON";

/// The file that the setup of an environment writes last. An environment without this file is incomplete.
pub const READY_FILE: &str = "orchestrate-ready";

/// `$ORCHESTRATE_HOME`, else `$XDG_DATA_HOME/orchestrate`, else `~/.local/share/orchestrate`.
pub fn data_dir() -> Result<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = variable(HOME_VARIABLE)
        .or_else(|| variable("XDG_DATA_HOME").map(|dir| dir.join("orchestrate")))
        .or_else(|| variable("HOME").map(|home| home.join(".local/share/orchestrate")))
        .with_context(|| format!("no home directory: set `{HOME_VARIABLE}` to a folder for data"))?;
    // An absolute path, because engines run in another current folder.
    std::path::absolute(&dir).with_context(|| format!("cannot make the path `{}` absolute", dir.display()))
}

/// The source tree that contains the running program, or else the one that contains the working directory.
pub fn checkout() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok().and_then(|exe| exe.canonicalize().ok());
    exe.as_deref().and_then(checkout_above).or_else(|| checkout_above(&std::env::current_dir().ok()?))
}

/// The folder in which engines keep weights in a layout of their own for later loads of the same files.
pub fn packed_weights() -> Result<PathBuf> {
    Ok(data_dir()?.join("packed"))
}

fn checkout_above(start: &Path) -> Option<PathBuf> {
    let is_checkout = |dir: &&Path| {
        dir.join("Cargo.toml").is_file()
            && dir.join("engines/paths").is_dir()
            && dir.join("protocol").is_dir()
    };
    start.ancestors().find(is_checkout).map(Path::to_path_buf)
}

/// The folder of the Python environment with this name (of one engine, or shared) and exactly these requirements. Other
/// requirements give another folder.
pub fn environment(name: &str, requirements: &str) -> Result<PathBuf> {
    Ok(data_dir()?.join("environments").join(format!("{name}-{}", digest(requirements.as_bytes()))))
}

/// The interpreter of an environment, if its setup has finished.
pub fn interpreter(environment: &Path) -> Option<PathBuf> {
    let python = environment.join("bin/python");
    (environment.join(READY_FILE).is_file() && python.exists()).then_some(python)
}

/// A digest of sixteen hexadecimal digits (FNV-1a, 64 bits), which is not cryptographic.
pub fn digest(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// The Python of an engine's worker: the user's own, if a variable names it, or else the pinned environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Python {
    /// The user's own Python, with packages and versions under the user's control.
    Own(OwnPython),
    /// The Python of the environment from the engine's pinned requirements.
    Pinned(PathBuf),
    /// The environment is missing or incomplete.
    NotSetUp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnPython {
    /// The variable that names the interpreter.
    pub variable: String,
    pub interpreter: PathBuf,
}

/// The error of a variable whose value is not a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoProgram {
    pub variable: String,
    pub value: String,
}

impl std::fmt::Display for NoProgram {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { variable, value } = self;
        write!(formatter, "`{variable}` names no program: `{value}`")
    }
}

impl std::error::Error for NoProgram {}

impl NoProgram {
    /// Shell commands that fix the problem.
    pub fn hint(&self) -> String {
        let variable = &self.variable;
        format!("unset {variable}, or: export {variable}=\"$(which python3)\"")
    }
}

/// The Python that runs the worker of an engine.
pub fn python(engine: &str, environment: &str, requirements: &str) -> Result<Python> {
    if let Some(own_python) = own_python(engine)? {
        return Ok(Python::Own(own_python));
    }
    let environment = self::environment(environment, requirements)?;
    Ok(interpreter(&environment).map_or(Python::NotSetUp, Python::Pinned))
}

/// The interpreter that the user sets for this engine, or for all engines.
pub fn own_python(engine: &str) -> Result<Option<OwnPython>, NoProgram> {
    lookup(engine, |name| std::env::var_os(name))
}

fn lookup(engine: &str, get: impl Fn(&str) -> Option<OsString>) -> Result<Option<OwnPython>, NoProgram> {
    let engine_variable = format!("{PYTHON_VARIABLE}_{}", engine.to_ascii_uppercase().replace('-', "_"));
    for name in [engine_variable, PYTHON_VARIABLE.to_string()] {
        let Some(value) = get(&name).filter(|value| !value.is_empty()) else { continue };
        return match find_program(&value, get("PATH").as_deref()) {
            Some(interpreter) => Ok(Some(OwnPython { variable: name, interpreter })),
            None => Err(NoProgram { variable: name, value: value.to_string_lossy().into_owned() }),
        };
    }
    Ok(None)
}

/// Finds a program by its path, or by its name in PATH. The result can be a link: Python finds a virtual environment by the
/// location of the interpreter's link, not of its target.
fn find_program(value: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    let candidates: Vec<PathBuf> = match value.as_encoded_bytes().contains(&b'/') {
        false => std::env::split_paths(path?).map(|folder| folder.join(value)).collect(),
        true => vec![value.into()],
    };
    let absolute = candidates.into_iter().filter_map(|path| std::path::absolute(path).ok());
    absolute.into_iter().find(|path| is_executable(path))
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_env(env: &[(&str, &str)]) -> Result<Option<OwnPython>, NoProgram> {
        let env: Vec<(String, OsString)> =
            env.iter().map(|(name, value)| (name.to_string(), OsString::from(value))).collect();
        lookup("snake-charmer", |name| {
            env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        })
    }

    fn expected(variable: &str, interpreter: &str) -> Result<Option<OwnPython>, NoProgram> {
        Ok(Some(OwnPython { variable: variable.into(), interpreter: interpreter.into() }))
    }

    #[test]
    fn the_variable_of_the_engine_precedes_the_variable_of_all_engines() {
        let (all_engines, engine) = (("ORCHESTRATE_PYTHON", "/bin/sh"), "ORCHESTRATE_PYTHON_SNAKE_CHARMER");
        assert_eq!(with_env(&[]), Ok(None));
        assert_eq!(with_env(&[all_engines]), expected("ORCHESTRATE_PYTHON", "/bin/sh"));
        assert_eq!(with_env(&[all_engines, (engine, "/bin/cat")]), expected(engine, "/bin/cat"));
        assert_eq!(with_env(&[all_engines, (engine, "")]), expected("ORCHESTRATE_PYTHON", "/bin/sh"));
        assert_eq!(with_env(&[("ORCHESTRATE_PYTHON_SNAKE", "/bin/sh")]), Ok(None));
    }

    #[test]
    fn a_name_without_a_folder_is_found_on_path() {
        let name = ("ORCHESTRATE_PYTHON", "sh");
        assert_eq!(with_env(&[name, ("PATH", "/no/such:/bin")]), expected("ORCHESTRATE_PYTHON", "/bin/sh"));
        assert!(with_env(&[name, ("PATH", "/no/such")]).is_err());
        assert!(with_env(&[name]).is_err());
    }

    #[test]
    fn a_variable_that_names_no_program_is_an_error() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        for no_program in ["/no/such/python", "/bin", manifest] {
            let error = with_env(&[("ORCHESTRATE_PYTHON", no_program)]).unwrap_err();
            assert_eq!(error.to_string(), format!("`ORCHESTRATE_PYTHON` names no program: `{no_program}`"));
        }
    }

    #[test]
    fn the_digest_is_the_published_fnv_1a() {
        assert_eq!(digest(b""), "cbf29ce484222325");
        assert_eq!(digest(b"foobar"), "85944171f73967e8");
    }

    #[test]
    fn the_tests_of_this_crate_run_inside_a_checkout() {
        assert!(checkout().is_some_and(|root| root.join("engines/paths/Cargo.toml").is_file()));
    }

    #[test]
    fn a_folder_without_the_ready_file_is_no_environment() {
        assert_eq!(interpreter(Path::new("/")), None);
    }
}
