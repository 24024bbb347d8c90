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
        let files = [manifest.clone(), requirements(&manifest)];
        for file in files.iter().filter(|file| file.is_file()) {
            println!("cargo::rerun-if-changed={}", file.display());
        }
        let [manifest, requirements] = files;
        let requirements = match requirements.is_file() {
            true => format!("Some(include_str!({requirements:?}))"),
            false => "None".to_string(),
        };
        writeln!(table, "    (include_str!({manifest:?}), {requirements}),").expect("a string takes it");
    }
    table.push(']');
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&out).join("manifests.rs"), table).expect("cargo's own folder can be written");
}

/// The one file that a manifest names: what its environment is made from.
fn requirements(manifest: &Path) -> std::path::PathBuf {
    let text = std::fs::read_to_string(manifest).unwrap_or_default();
    let named = text.lines().find_map(|line| line.strip_prefix("requirements = \"")?.strip_suffix('"'));
    manifest.with_file_name(named.unwrap_or("requirements.txt"))
}
