//! Embeds the manifests of the engines in the tree, so that an installed `orchestrate` knows them without a checkout.

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
        write!(table, "    (include_str!({manifest:?}), &[").expect("a string takes it");
        for name in named_files(&manifest) {
            let file = folder.join(&name);
            if file.is_file() {
                println!("cargo::rerun-if-changed={}", file.display());
                write!(table, "({name:?}, include_str!({file:?})), ").expect("a string takes it");
            }
        }
        table.push_str("]),\n");
    }
    table.push(']');
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&out).join("manifests.rs"), table).expect("cargo's own folder can be written");
}

/// The files that a manifest names: what its environment is made from. Each of the two stands on a line of its own.
fn named_files(manifest: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(manifest).unwrap_or_default();
    let starts = ["requirements = ", "build = "];
    let values = text.lines().filter_map(|line| starts.iter().find_map(|start| line.strip_prefix(start)));
    // Between quotation marks: every second piece.
    values.flat_map(|value| value.split('"').skip(1).step_by(2)).map(str::to_string).collect()
}
