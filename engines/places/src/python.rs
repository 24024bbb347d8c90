//! The Python of an engine's worker: the user's own, if a variable names it, or else the pinned environment.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::Result;

/// The variable with the interpreter of every Python engine; with `_` and an engine's name in capitals, of that engine.
pub const PYTHON_VARIABLE: &str = "ORCHESTRATE_PYTHON";

/// The Python of an engine's worker.
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
    /// The variable with the interpreter.
    pub variable: String,
    pub interpreter: PathBuf,
}

/// An error: the value of a variable is not a program.
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

pub fn python(engine: &str, environment: &str, requirements: &str) -> Result<Python> {
    if let Some(own) = own_python(engine)? {
        return Ok(Python::Own(own));
    }
    let environment = super::environment(environment, requirements)?;
    Ok(super::interpreter(&environment).map_or(Python::NotSetUp, Python::Pinned))
}

/// The interpreter that the user sets for this engine, or for all engines.
pub fn own_python(engine: &str) -> Result<Option<OwnPython>, NoProgram> {
    named(engine, |name| std::env::var_os(name))
}

fn named(engine: &str, variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<OwnPython>, NoProgram> {
    let of_this_one = format!("{PYTHON_VARIABLE}_{}", engine.to_ascii_uppercase().replace('-', "_"));
    for name in [of_this_one, PYTHON_VARIABLE.to_string()] {
        let Some(value) = variable(&name).filter(|value| !value.is_empty()) else { continue };
        return match program(&value, variable("PATH").as_deref()) {
            Some(interpreter) => Ok(Some(OwnPython { variable: name, interpreter })),
            None => Err(NoProgram { variable: name, value: value.to_string_lossy().into_owned() }),
        };
    }
    Ok(None)
}

/// Resolves a path, or a name in PATH. Links are kept, because Python finds a virtual environment by the location of the
/// interpreter's link, not by its target.
fn program(value: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    let asked = Path::new(value);
    let places: Vec<PathBuf> = match asked.components().count() {
        1 if !value.as_encoded_bytes().contains(&b'/') => {
            std::env::split_paths(path?).map(|folder| folder.join(asked)).collect()
        }
        _ => vec![asked.to_path_buf()],
    };
    let absolute = places.into_iter().filter_map(|place| std::path::absolute(place).ok());
    absolute.into_iter().find(|place| can_be_started(place))
}

#[cfg(unix)]
fn can_be_started(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn can_be_started(path: &Path) -> bool {
    path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(set: &[(&str, &str)]) -> Result<Option<OwnPython>, NoProgram> {
        let set: Vec<(String, OsString)> =
            set.iter().map(|(name, value)| (name.to_string(), OsString::from(value))).collect();
        named("snake-charmer", |name| set.iter().find(|(it, _)| it == name).map(|(_, value)| value.clone()))
    }

    fn found(variable: &str, interpreter: &str) -> Result<Option<OwnPython>, NoProgram> {
        Ok(Some(OwnPython { variable: variable.into(), interpreter: interpreter.into() }))
    }

    #[test]
    fn the_variable_of_the_engine_comes_before_the_one_of_all_and_an_empty_one_names_nothing() {
        let (all, own) = (("ORCHESTRATE_PYTHON", "/bin/sh"), "ORCHESTRATE_PYTHON_SNAKE_CHARMER");
        assert_eq!(with(&[]), Ok(None));
        assert_eq!(with(&[all]), found("ORCHESTRATE_PYTHON", "/bin/sh"));
        assert_eq!(with(&[all, (own, "/bin/cat")]), found(own, "/bin/cat"));
        assert_eq!(with(&[all, (own, "")]), found("ORCHESTRATE_PYTHON", "/bin/sh"));
        assert_eq!(with(&[("ORCHESTRATE_PYTHON_SNAKE", "/bin/sh")]), Ok(None));
    }

    #[test]
    fn a_name_without_a_folder_is_looked_for_on_path() {
        let name = ("ORCHESTRATE_PYTHON", "sh");
        assert_eq!(with(&[name, ("PATH", "/no/such:/bin")]), found("ORCHESTRATE_PYTHON", "/bin/sh"));
        assert!(with(&[name, ("PATH", "/no/such")]).is_err());
        assert!(with(&[name]).is_err());
    }

    #[test]
    fn what_is_no_program_is_said_with_the_variable_and_never_passed_over() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        for no_program in ["/no/such/python", "/bin", manifest] {
            let refused = with(&[("ORCHESTRATE_PYTHON", no_program)]).unwrap_err();
            assert_eq!(refused.to_string(), format!("`ORCHESTRATE_PYTHON` names no program: `{no_program}`"));
        }
    }
}
