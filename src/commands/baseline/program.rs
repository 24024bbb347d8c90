//! The stored program of a configuration, so that the program can be measured again: a copy and its digest. A script, a Python
//! engine or a program with own libraries needs more than one file. The other files are only listed. A later run reports missing
//! files, and changed ones among those with a stored digest.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{library, store};
use crate::engines::registry::Registry;
use crate::plan::Configuration;

/// The size of the largest program that is copied. A larger program has a digest and no copy.
const MAX_COPY_BYTES: u64 = 1_000_000_000;
/// The size of the largest script that is read. Scripts written by people are smaller.
const MAX_SCRIPT_BYTES: u64 = 1 << 16;

/// The program of one row of a baseline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The path from which the program was started.
    pub path: String,
    /// SHA-256, as `sha256sum` prints it. Absent if the program could not be read, or changed after the start of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The path of the program's copy, in the baseline's folder.
    #[serde(default, alias = "kept", skip_serializing_if = "Option::is_none")]
    pub copy: Option<String>,
    /// The reason why there is no copy.
    #[serde(default, alias = "not_kept", skip_serializing_if = "Option::is_none")]
    pub no_copy: Option<String>,
    #[serde(default, alias = "leans_on", skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<Dependency>,
}

/// A file or folder that a program needs and its copy does not contain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    #[serde(alias = "what")]
    pub kind: DependencyKind,
    pub path: String,
    /// The digest of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DependencyKind {
    /// The interpreter of a script.
    Interpreter,
    /// A file that a script names.
    Named,
    /// The folder of an engine's Python packages.
    Environment,
    /// The user's own Python interpreter, in which an engine's worker ran.
    Python,
    /// A shared library in a folder that the program itself names.
    Library,
}

impl DependencyKind {
    fn name(self) -> &'static str {
        match self {
            Self::Interpreter => "the interpreter",
            Self::Named => "the file",
            Self::Environment => "the Python environment",
            Self::Python => "the user's own Python",
            Self::Library => "the library",
        }
    }
}

impl Dependency {
    fn file(kind: DependencyKind, path: &Path) -> Self {
        Self { kind, path: path.to_string_lossy().into_owned(), digest: store::digest(path).ok() }
    }

    fn description(&self) -> String {
        format!("{} `{}`", self.kind.name(), self.path)
    }

    /// The change since the baseline was saved, if any.
    pub fn change(&self) -> Option<String> {
        let path = Path::new(&self.path);
        if !path.exists() {
            return Some(format!("{} is missing", self.description()));
        }
        let digest = self.digest.as_ref()?;
        (store::digest(path).ok().as_ref() != Some(digest))
            .then(|| format!("{} has changed", self.description()))
    }
}

impl Program {
    /// The change of the engine's Python interpreter since the baseline was saved, if any.
    pub fn interpreter_change(&self, engine: &str) -> Option<String> {
        let is_python = |it: &Dependency| it.kind == DependencyKind::Python;
        let python = |it: Option<Dependency>| {
            it.map_or("its pinned environment".into(), |it| format!("`{}`", it.path))
        };
        let then = python(self.dependencies.iter().find(|it| is_python(it)).cloned());
        let now = python(python_dependency(engine).filter(is_python));
        (then != now).then(|| format!("it ran in {then} and would now run in {now}"))
    }

    pub fn warnings(&self, label: &str) -> Vec<String> {
        let no_copy = self.no_copy.iter().map(|why| {
            format!("`{label}`: its program is not stored, so --rerun-baseline cannot measure it: {why}")
        });
        let is_interpreter = |it: &&Dependency| it.kind == DependencyKind::Interpreter;
        let listed = self.dependencies.iter().filter(|it| !is_interpreter(it)).map(Dependency::description);
        let listed = listed.collect::<Vec<_>>().join(", ");
        let is_script = self.dependencies.iter().any(|it| is_interpreter(&it));
        let missing = match (is_script, listed.is_empty()) {
            (true, true) => "it is a script; the programs that it starts are not stored".to_string(),
            (true, false) => format!("it is a script; not stored: {listed}"),
            (false, _) => format!("not stored: {listed}"),
        };
        let incomplete = (self.copy.is_some() && !self.dependencies.is_empty())
            .then(|| format!("`{label}`: the copy of its program is incomplete: {missing}"));
        no_copy.chain(incomplete).collect()
    }
}

/// Stores the program of a configuration, as it was when the run began.
pub fn store(staged: &mut store::Staged, configuration: &Configuration, began: &str) -> Program {
    let Some(path) = configuration.command.first().map(PathBuf::from) else {
        return Program { no_copy: Some("no program was started".into()), ..Program::default() };
    };
    let mut program = Program { path: path.to_string_lossy().into_owned(), ..Program::default() };
    let metadata = match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_file() => metadata,
        Ok(_) => return Program { no_copy: Some(format!("`{}` is not a file", path.display())), ..program },
        Err(error) => return Program { no_copy: Some(format!("`{}`: {error}", path.display())), ..program },
    };
    if changed_since(&metadata, began) {
        // The copy would be of a program that was not measured.
        let why = format!("`{}` changed after the start of the run", path.display());
        return Program { no_copy: Some(why), ..program };
    }
    program.bytes = Some(metadata.len());
    program.dependencies = dependencies(&path, &metadata, &configuration.engine);
    if metadata.len() > MAX_COPY_BYTES {
        let (size, limit) = (model_files::size(metadata.len()), model_files::size(MAX_COPY_BYTES));
        program.no_copy = Some(format!("it has {size}, and the limit of a copy is {limit}"));
        program.digest = store::digest(&path).ok();
        return program;
    }
    match staged.copy_program(&path) {
        Ok((digest, copy)) => (program.digest, program.copy) = (Some(digest), Some(copy)),
        Err(error) => program.no_copy = Some(format!("{error:#}")),
    }
    program
}

/// Whether a file changed after the run began. The change time (ctime) also shows a file that was moved to this path. Times are
/// compared in whole seconds, because the record has the start in seconds.
fn changed_since(metadata: &std::fs::Metadata, began: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(began) = humantime::parse_rfc3339(began) else { return false };
    let changed =
        u64::try_from(metadata.ctime().max(metadata.mtime())).map(Duration::from_secs).unwrap_or_default();
    SystemTime::UNIX_EPOCH + changed > began
}

fn dependencies(path: &Path, metadata: &std::fs::Metadata, engine: &str) -> Vec<Dependency> {
    let script = (metadata.len() <= MAX_SCRIPT_BYTES).then(|| std::fs::read_to_string(path).ok()).flatten();
    let mut dependencies: Vec<_> = match script.as_deref().filter(|text| text.starts_with("#!")) {
        Some(text) => dependencies_of_script(text),
        None => library::own_libraries(path)
            .iter()
            .map(|it| Dependency::file(DependencyKind::Library, it))
            .collect(),
    };
    dependencies.extend(python_dependency(engine));
    dependencies
}

/// The Python environment of an engine's worker, or the user's own interpreter in its place. `None` for an engine without a
/// worker. The worker's own files are compiled into the program (`engine_kit::python`), and are stored with it.
fn python_dependency(engine: &str) -> Option<Dependency> {
    let registry = Registry::open().ok()?;
    let engine = registry.named(engine)?;
    match engine.own_python() {
        Some(python) => Some(Dependency::file(DependencyKind::Python, &python.interpreter)),
        None => {
            let path = engine.environment()?.ok()?.to_string_lossy().into_owned();
            Some(Dependency { kind: DependencyKind::Environment, path, digest: None })
        }
    }
}

/// A script's interpreter, and the files that it names with absolute paths. Other files are not found.
fn dependencies_of_script(script: &str) -> Vec<Dependency> {
    let first = script.lines().next().unwrap_or_default();
    let interpreter = first.trim_start_matches("#!").split_whitespace().next().unwrap_or_default();
    let interpreter =
        Dependency { kind: DependencyKind::Interpreter, path: interpreter.into(), digest: None };
    let is_separator = |it: char| it.is_whitespace() || "'\"`;|&<>(){}=,".contains(it);
    let words = script.lines().skip(1).flat_map(|line| line.split(is_separator));
    let mut files: Vec<_> = words.map(Path::new).filter(|it| it.is_absolute() && it.is_file()).collect();
    files.sort();
    files.dedup();
    // Files of the system do not belong to a script.
    let named = files
        .into_iter()
        .filter(|it| !["/dev", "/proc", "/sys", "/usr", "/bin"].iter().any(|folder| it.starts_with(folder)));
    std::iter::once(interpreter).chain(named.map(|it| Dependency::file(DependencyKind::Named, it))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_depends_on_its_interpreter_and_on_files_with_absolute_paths() {
        let named = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let script =
            format!("#!/bin/sh\n# starts it\nexec '{}' --relative/path /no/such/file\n", named.display());
        let dependencies = dependencies_of_script(&script);
        let kinds: Vec<_> = dependencies.iter().map(|it| (it.kind, it.path.as_str())).collect();
        assert_eq!(
            kinds,
            [(DependencyKind::Interpreter, "/bin/sh"), (DependencyKind::Named, named.to_str().unwrap())]
        );
        assert!(dependencies[1].digest.is_some() && dependencies[1].change().is_none());
        let changed = Dependency { digest: Some("another".into()), ..dependencies[1].clone() };
        assert!(changed.change().unwrap().ends_with("has changed"));
        let missing = Dependency { path: "/no/such/file".into(), ..changed };
        assert!(missing.change().unwrap().ends_with("is missing"));
    }

    #[test]
    fn each_incomplete_copy_of_a_program_gets_a_warning() {
        let complete = Program { copy: Some("programs/x/y".into()), ..Program::default() };
        assert_eq!(complete.warnings("a"), Vec::<String>::new());
        let dependency = |kind, path: &str| Dependency { kind, path: path.into(), digest: None };
        let script = Program {
            dependencies: vec![dependency(DependencyKind::Interpreter, "/bin/sh")],
            ..complete.clone()
        };
        assert!(script.warnings("a")[0].contains("the programs that it starts are not stored"));
        let python = Program {
            dependencies: vec![dependency(DependencyKind::Environment, "/data/environments/x")],
            ..complete
        };
        assert!(python.warnings("a")[0].contains("the Python environment `/data/environments/x`"));
        let large = Program { no_copy: Some("it has 2 GB".into()), ..Program::default() };
        assert!(large.warnings("a")[0].contains("--rerun-baseline cannot measure it: it has 2 GB"));
    }
}
