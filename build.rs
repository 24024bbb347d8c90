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
