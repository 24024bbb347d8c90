//! Embeds the manifests of the engines in the tree, and the files that they name, so that an installed `orchestrate` knows them
//! without a checkout. Sets the variables that `src/commands/version.rs` reads.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut table = String::from("&[\n");
    for (manifest, files) in manifests(&root) {
        write!(table, "    (include_str!({manifest:?}), &[").expect("writing never fails");
        for (name, file) in files {
            write!(table, "({name:?}, include_str!({file:?})), ").expect("writing never fails");
        }
        table.push_str("]),\n");
    }
    table.push(']');
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&out).join("manifests.rs"), table).expect("cargo's own folder can be written");
    for path in watched(&root) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    set_version(&root);
}

/// The files that a manifest names: each name as the manifest writes it, with its path.
type NamedFiles = Vec<(String, PathBuf)>;

/// Each engine's manifest, with the files that it names and that exist.
fn manifests(root: &Path) -> Vec<(PathBuf, NamedFiles)> {
    let folders = std::fs::read_dir(root.join("engines")).into_iter().flatten().flatten();
    let mut manifests: Vec<_> = folders.map(|folder| folder.path().join("engine.toml")).collect();
    manifests.retain(|manifest| manifest.is_file());
    manifests.sort();
    let with_files = |manifest: PathBuf| {
        let files = named_files(&manifest).into_iter().map(|name| (manifest.with_file_name(&name), name));
        let files = files.filter(|(file, _)| file.is_file()).map(|(file, name)| (name, file)).collect();
        (manifest, files)
    };
    manifests.into_iter().map(with_files).collect()
}

/// The paths whose change runs this script again. Cargo watches a folder with all of its files, so `engines` is not among them:
/// each change of an engine's source would compile the program again. A new engine with Rust changes `Cargo.toml`; one without Rust
/// is embedded at the next run of this script.
pub fn watched(root: &Path) -> Vec<PathBuf> {
    let embedded = manifests(root).into_iter().flat_map(|(manifest, files)| {
        std::iter::once(manifest).chain(files.into_iter().map(|(_, file)| file))
    });
    embedded.chain(SOURCES.iter().map(|source| root.join(source))).collect()
}

/// The files and folders that the program is built from, besides the manifests. A test compares them with its dependencies.
pub const SOURCES: &[&str] = &[
    "Cargo.lock",
    "Cargo.toml",
    "build.rs",
    "engines/limits",
    "engines/paths",
    "engines/system",
    "models",
    "protocol",
    "src",
];

/// Passes the commit and the target to the compiler. Cargo compiles the whole program again after each run of this script, and
/// this takes a minute in release. So the script runs only when the sources change: then the program is compiled anyway. A
/// commit without a change of sources runs it in one case only: the last release build had uncommitted changes, so its version
/// (`-dirty`) does not name an exact commit.
fn set_version(root: &Path) {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo::rustc-env=BUILD_TARGET={}", variable("TARGET"));
    println!("cargo::rustc-env=BUILD_TARGET_FEATURES={}", variable("CARGO_CFG_TARGET_FEATURE"));
    let Some(commit) = commit(root) else { return };
    println!("cargo::rustc-env=BUILD_COMMIT={commit}");
    if commit.ends_with(DIRTY) && variable("PROFILE") == "release" {
        // Git adds a line to this file at each commit and each change of branch. It also exists for a worktree.
        let log = git(root, &["rev-parse", "--git-path", "logs/HEAD"]).map(|path| root.join(path));
        if let Some(log) = log.filter(|log| log.exists()) {
            println!("cargo::rerun-if-changed={}", log.display());
        }
    }
}

const DIRTY: &str = "-dirty";

/// The commit of the checkout, with `-dirty` if the program's sources have changes. `None` without git, and in a package
/// that lies in another project's checkout.
pub fn commit(root: &Path) -> Option<String> {
    let checkout = git(root, &["rev-parse", "--show-toplevel"])?;
    let is_this_checkout = Path::new(&checkout).canonicalize().ok()? == root.canonicalize().ok()?;
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"]).filter(|_| is_this_checkout)?;
    let manifests = [":(glob)engines/*/engine.toml"];
    let arguments = ["--no-optional-locks", "status", "--porcelain", "--"];
    let changes = git(root, &[&arguments[..], SOURCES, &manifests].concat())?;
    Some(if changes.is_empty() { commit } else { format!("{commit}{DIRTY}") })
}

/// The output of git. `None` if it fails or is not installed.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "cargo waits for this script and its processes")]
    let output = std::process::Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}

/// The files that a manifest names for its environment. Invalid TOML is refused here; `orchestrate` refuses an unknown key
/// when it reads the manifest.
fn named_files(manifest: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(manifest).unwrap_or_default();
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("`{}`: {error}", manifest.display()));
    let environment_field = |name: &str| table.get("environment")?.get(name);
    let requirements = environment_field("requirements").into_iter();
    let build = environment_field("build").and_then(toml::Value::as_array).into_iter().flatten();
    requirements.chain(build).filter_map(|name| Some(name.as_str()?.to_string())).collect()
}
