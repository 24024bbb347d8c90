//! Tests of `build.rs`: the commit that it finds, and the sources that it watches.

use std::collections::BTreeSet;
use std::path::Path;

use crate::support::tree::engine_folders;
use crate::support::workspace::Workspace;
use crate::support::{Scratch, command, root};

#[path = "../../build.rs"]
#[allow(dead_code, clippy::print_stdout, reason = "cargo runs it and reads its output")]
mod script;

fn git(folder: &Path, arguments: &[&str]) {
    let mut git = command("git");
    git.args(["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "init.defaultBranch=main"]);
    let output = git.arg("-C").arg(folder).args(arguments).output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn checkout() -> Scratch {
    let scratch = Scratch::outside_checkout();
    std::fs::create_dir_all(scratch.join("src")).unwrap();
    std::fs::write(scratch.join("src/main.rs"), "fn main() {}").unwrap();
    std::fs::write(scratch.join("README.md"), "x").unwrap();
    scratch
}

#[test]
fn the_commit_is_that_of_the_checkout_with_a_mark_if_the_sources_have_changes() {
    let scratch = checkout();
    assert_eq!(script::commit(&scratch.path), None, "no git");
    git(&scratch.path, &["init", "--quiet"]);
    assert_eq!(script::commit(&scratch.path), None, "no commit");
    git(&scratch.path, &["add", "."]);
    git(&scratch.path, &["commit", "--quiet", "-m", "x"]);
    let clean = script::commit(&scratch.path).unwrap();
    assert!(clean.len() == 12 && clean.bytes().all(|it| it.is_ascii_hexdigit()), "{clean}");
    // A page is no source of the program.
    std::fs::write(scratch.join("README.md"), "y").unwrap();
    assert_eq!(script::commit(&scratch.path), Some(clean.clone()));
    std::fs::write(scratch.join("src/new.rs"), "").unwrap();
    assert_eq!(script::commit(&scratch.path), Some(format!("{clean}-dirty")));
    git(&scratch.path, &["add", "src"]);
    git(&scratch.path, &["commit", "--quiet", "-m", "y"]);
    let next = script::commit(&scratch.path).unwrap();
    assert!(next != clean && next.len() == 12, "{next}");
    let worktree = scratch.join("elsewhere");
    git(&scratch.path, &["worktree", "add", "--quiet", "--detach", worktree.to_str().unwrap()]);
    assert_eq!(script::commit(&worktree), Some(next));
    // An unpacked package inside another project's checkout has no commit of its own.
    assert_eq!(script::commit(&scratch.join("src")), None);
}

#[test]
fn the_build_script_watches_every_crate_that_the_program_is_built_from() {
    let workspace = Workspace::read();
    let mut folders = BTreeSet::new();
    let mut pending = vec!["orchestrate".to_string()];
    while let Some(package) = pending.pop() {
        let Some((folder, dependencies)) = workspace.packages.get(&package) else { continue };
        if folders.insert(folder.clone()) {
            pending.extend(dependencies.clone());
        }
    }
    let is_watched =
        |folder: &str| script::SOURCES.iter().any(|source| Path::new(folder).starts_with(source));
    let missing: Vec<_> = folders.iter().filter(|folder| !folder.is_empty() && !is_watched(folder)).collect();
    assert!(folders.len() > 5 && missing.is_empty(), "add these folders to SOURCES of build.rs: {missing:?}");
    for source in script::SOURCES {
        assert!(root().join(source).exists(), "SOURCES of build.rs has `{source}`, which does not exist");
    }
}

#[test]
fn a_change_of_an_engines_source_does_not_compile_the_program_again() {
    let watched = script::watched(root());
    let manifests = watched.iter().filter(|path| path.ends_with("engine.toml")).count();
    assert_eq!(manifests, engine_folders().len(), "{watched:?}");
    for folder in engine_folders() {
        let source = root().join("engines").join(&folder).join("src/main.rs");
        let watching = watched.iter().find(|path| source.starts_with(path));
        assert_eq!(watching, None, "build.rs watches the source of `{folder}`");
    }
}
