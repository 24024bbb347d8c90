//! The program of a configuration, kept so that it can be measured again: a copy and its digest. A script, a Python
//! engine or a program with own libraries needs more than one file. For those a list of the other files is kept, so that
//! a later run can report changes.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::{library, store};
use crate::engines::registry::Registry;
use crate::plan::Configuration;

/// The limit of a copy. A larger program is kept as its digest alone.
const LARGEST: u64 = 1_000_000_000;
/// The limit of a script that is read. A person wrote a smaller one.
const LARGEST_SCRIPT: u64 = 1 << 16;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// The path that it was started by.
    pub path: String,
    /// SHA-256, as `sha256sum` prints it. Absent where the measured program is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Its copy, in the baseline's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// The reason why there is no copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_kept: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leans_on: Vec<Leaning>,
}

/// A file or folder that a program needs and its copy does not contain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaning {
    pub what: LeansOn,
    pub path: String,
    /// The digest of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeansOn {
    /// The interpreter of a script.
    Interpreter,
    /// A file that a script names.
    Named,
    /// The folder of an engine's Python packages.
    Environment,
    /// The user's own interpreter, in which an engine's worker ran. Its packages are in its own paths.
    Python,
    /// A shared library in a path of the program, outside the system's paths.
    Library,
}

impl LeansOn {
    fn words(self) -> &'static str {
        match self {
            Self::Interpreter => "the interpreter",
            Self::Named => "the file",
            Self::Environment => "the Python environment",
            Self::Python => "the user's own Python",
            Self::Library => "the library",
        }
    }
}

impl Leaning {
    fn file(what: LeansOn, path: &Path) -> Self {
        Self { what, path: path.to_string_lossy().into_owned(), digest: store::digest(path).ok() }
    }

    /// The change since then, if any.
    pub fn doubt(&self) -> Option<String> {
        let (what, path) = (self.what.words(), Path::new(&self.path));
        if !path.exists() {
            return Some(format!("{what} `{}` is missing", self.path));
        }
        let digest = self.digest.as_ref()?;
        (store::digest(path).ok().as_ref() != Some(digest))
            .then(|| format!("{what} `{}` has changed", self.path))
    }
}

impl Program {
    /// The change of the worker's interpreter since then, if any.
    pub fn runs_elsewhere(&self, engine: &str) -> Option<String> {
        let own = |leaning: &&Leaning| leaning.what == LeansOn::Python;
        let then = self.leans_on.iter().find(own).map(|it| it.path.clone());
        let now = python_of(engine).filter(|it| own(&it)).map(|it| it.path);
        let words = |path: &Option<String>| {
            path.as_ref().map_or("its pinned environment".into(), |path| format!("`{path}`"))
        };
        (then != now).then(|| format!("it ran in {} and would now run in {}", words(&then), words(&now)))
    }

    /// Warnings for the user about this program.
    pub fn warnings(&self, label: &str) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(why) = &self.not_kept {
            warnings.push(format!(
                "`{label}`: its program is not stored, so --rerun-baseline cannot measure it: {why}"
            ));
        }
        let said = |leaning: &&Leaning| leaning.what != LeansOn::Interpreter;
        let leans_on: Vec<_> = self.leans_on.iter().filter(said).collect();
        if self.kept.is_some() && !self.leans_on.is_empty() {
            let named: Vec<_> =
                leans_on.iter().map(|it| format!("{} `{}`", it.what.words(), it.path)).collect();
            let script = self.leans_on.iter().any(|it| it.what == LeansOn::Interpreter);
            let what = match (script, named.is_empty()) {
                (true, true) => "it is a script; the programs that it starts are not stored".to_string(),
                (true, false) => format!("it is a script; not stored: {}", named.join(", ")),
                (false, _) => format!("not stored: {}", named.join(", ")),
            };
            warnings.push(format!("`{label}`: the copy of its program is incomplete: {what}"));
        }
        warnings
    }
}

/// Keeps the program of a configuration, as it was when the run began.
pub fn keep(staged: &mut store::Staged, configuration: &Configuration, began: &str) -> Program {
    let Some(path) = configuration.command.first().map(PathBuf::from) else {
        return Program { not_kept: Some("no program was started".into()), ..Program::default() };
    };
    let mut program = Program { path: path.to_string_lossy().into_owned(), ..Program::default() };
    let about = match std::fs::metadata(&path) {
        Ok(about) if about.is_file() => about,
        Ok(_) => return Program { not_kept: Some(format!("`{}` is not a file", path.display())), ..program },
        Err(error) => return Program { not_kept: Some(format!("`{}`: {error}", path.display())), ..program },
    };
    if changed_since(&about, began) {
        // The copy would be of a program that was not measured.
        let why = format!("`{}` changed after the start of the run", path.display());
        return Program { not_kept: Some(why), ..program };
    }
    program.bytes = Some(about.len());
    program.leans_on = leans_on(&path, &about, &configuration.engine);
    if about.len() > LARGEST {
        let (size, most) = (model_files::size(about.len()), model_files::size(LARGEST));
        program.not_kept = Some(format!("it has {size}, and the limit of a copy is {most}"));
        program.digest = store::digest(&path).ok();
        return program;
    }
    match staged.keep_program(&path) {
        Ok((digest, kept)) => (program.digest, program.kept) = (Some(digest), Some(kept)),
        Err(error) => program.not_kept = Some(format!("{error:#}")),
    }
    program
}

/// Whether a file changed after the run began, by its change time (ctime), which a moved file has too. The run's
/// beginning is known to the second.
fn changed_since(about: &std::fs::Metadata, began: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(began) = humantime::parse_rfc3339(began) else { return false };
    let changed =
        u64::try_from(about.ctime().max(about.mtime())).map(Duration::from_secs).unwrap_or_default();
    SystemTime::UNIX_EPOCH + changed > began
}

fn leans_on(path: &Path, about: &std::fs::Metadata, engine: &str) -> Vec<Leaning> {
    let script = (about.len() <= LARGEST_SCRIPT).then(|| std::fs::read_to_string(path).ok()).flatten();
    let mut found: Vec<_> = match script.as_deref().filter(|text| text.starts_with("#!")) {
        Some(text) => named_in(text),
        None => library::own(path).iter().map(|it| Leaning::file(LeansOn::Library, it)).collect(),
    };
    found.extend(python_of(engine));
    found
}

/// The environment of an engine's Python worker, where its manifest has one. The worker's own files are compiled into its
/// program (`engine_kit::python`), and are kept with that.
fn python_of(engine: &str) -> Option<Leaning> {
    let registry = Registry::open().ok()?;
    let engine = registry.named(engine)?;
    match engine.own_python() {
        Some(own) => Some(Leaning::file(LeansOn::Python, &own.interpreter)),
        None => {
            let path = engine.environment()?.ok()?.to_string_lossy().into_owned();
            Some(Leaning { what: LeansOn::Environment, path, digest: None })
        }
    }
}

/// A script's interpreter, and the files that it names with absolute paths. Other files are not found.
fn named_in(script: &str) -> Vec<Leaning> {
    let first = script.lines().next().unwrap_or_default();
    let interpreter = first.trim_start_matches("#!").split_whitespace().next().unwrap_or_default();
    let leaning = Leaning { what: LeansOn::Interpreter, path: interpreter.into(), digest: None };
    let separators = |it: char| it.is_whitespace() || "'\"`;|&<>(){}=,".contains(it);
    let words = script.lines().skip(1).flat_map(|line| line.split(separators));
    let mut files: Vec<_> = words.map(Path::new).filter(|it| it.is_absolute() && it.is_file()).collect();
    files.sort();
    files.dedup();
    // Devices, locks and files of the system are no part of a script.
    let parts = files
        .into_iter()
        .filter(|it| !["/dev", "/proc", "/sys", "/usr", "/bin"].iter().any(|no| it.starts_with(no)));
    std::iter::once(leaning).chain(parts.map(|it| Leaning::file(LeansOn::Named, it))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_depends_on_its_interpreter_and_on_files_with_absolute_paths() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let script =
            format!("#!/bin/sh\n# starts it\nexec '{}' --relative/path /no/such/file\n", here.display());
        let found = named_in(&script);
        let whats: Vec<_> = found.iter().map(|it| (it.what, it.path.as_str())).collect();
        assert_eq!(whats, [(LeansOn::Interpreter, "/bin/sh"), (LeansOn::Named, here.to_str().unwrap())]);
        assert!(found[1].digest.is_some() && found[1].doubt().is_none());
        let changed = Leaning { digest: Some("another".into()), ..found[1].clone() };
        assert!(changed.doubt().unwrap().ends_with("has changed"));
        let gone = Leaning { path: "/no/such/file".into(), ..changed };
        assert!(gone.doubt().unwrap().ends_with("is missing"));
    }

    #[test]
    fn each_incomplete_copy_of_a_program_gets_a_warning() {
        let whole = Program { kept: Some("programs/x/y".into()), ..Program::default() };
        assert_eq!(whole.warnings("a"), Vec::<String>::new());
        let lean = |what, path: &str| Leaning { what, path: path.into(), digest: None };
        let script = Program { leans_on: vec![lean(LeansOn::Interpreter, "/bin/sh")], ..whole.clone() };
        assert!(script.warnings("a")[0].contains("the programs that it starts are not stored"));
        let python = Program { leans_on: vec![lean(LeansOn::Environment, "/data/environments/x")], ..whole };
        assert!(python.warnings("a")[0].contains("the Python environment `/data/environments/x`"));
        let large = Program { not_kept: Some("it has 2 GB".into()), ..Program::default() };
        assert!(large.warnings("a")[0].contains("--rerun-baseline cannot measure it: it has 2 GB"));
    }
}
