//! Embeds the manifests of the engines in the tree, so that an installed `orchestrate` knows them without a checkout. Sets the
//! variables of `src/commands/version.rs`.

use std::fmt::Write as _;
use std::path::Path;

fn main() {
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let engines = Path::new(&root).join("engines");
    println!("cargo::rerun-if-changed={}", engines.display());
    let mut folders: Vec<_> =
        std::fs::read_dir(&engines).into_iter().flatten().flatten().map(|it| it.path()).collect();
    folders.sort();
    let mut table = String::from("&[\n");
    for folder in folders.iter().filter(|folder| folder.join("engine.toml").is_file()) {
        let manifest = folder.join("engine.toml");
        println!("cargo::rerun-if-changed={}", manifest.display());
        write!(table, "    (include_str!({manifest:?}), &[").expect("writing never fails");
        for name in named_files(&manifest) {
            let file = folder.join(&name);
            if file.is_file() {
                println!("cargo::rerun-if-changed={}", file.display());
                write!(table, "({name:?}, include_str!({file:?})), ").expect("writing never fails");
            }
        }
        table.push_str("]),\n");
    }
    table.push(']');
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&out).join("manifests.rs"), table).expect("cargo's own folder can be written");
    set_version(Path::new(&root));
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
/// this takes a minute in release. So the script runs when the sources change, and the program is compiled then anyway. A
/// commit alone starts it in one case: a release build had uncommitted changes, and would name no commit exactly.
fn set_version(root: &Path) {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
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
