//! Computes a digest of the embedded model's files, and fails with a message if one is missing. Makes a table of the shapes
//! (the configs in `models/shapes`), so that a new shape needs only its file.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const FILES: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
    "heldout.txt",
    "reference-answers.json",
    "dtype-costs.json",
];

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    write_shape_table()?;
    if std::env::var_os("CARGO_FEATURE_EMBEDDED").is_none() {
        return Ok(());
    }
    let folder = model_sources()?.join("embedded");
    let mut contents = Vec::new();
    for name in FILES {
        println!("cargo::rerun-if-changed={}", folder.join(name).display());
        let bytes = std::fs::read(folder.join(name)).map_err(|error| {
            format!(
                "models/embedded/{name}: {error}; models/README.md describes how the embedded model is made"
            )
        })?;
        contents.extend_from_slice(name.as_bytes());
        contents.extend_from_slice(&bytes);
    }
    println!("cargo::rustc-env=EMBEDDED_MODEL_DIGEST={}", paths::digest(&contents));
    Ok(())
}

/// The folder `models`, read while the script runs: a shared build folder keeps a script that was compiled for another checkout.
fn model_sources() -> Result<PathBuf, String> {
    let package =
        std::env::var("CARGO_MANIFEST_DIR").map_err(|error| format!("CARGO_MANIFEST_DIR: {error}"))?;
    Ok(Path::new(&package).join(".."))
}

/// Writes the table of shapes, sorted by name: first the shapes of real models, then the tiny ones.
fn write_shape_table() -> Result<(), String> {
    let folder = model_sources()?.join("shapes");
    println!("cargo::rerun-if-changed={}", folder.display());
    let message = |error: std::io::Error| format!("models/shapes: {error}");
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(message)? {
        files.extend(
            Some(entry.map_err(message)?.path()).filter(|path| path.extension() == Some("json".as_ref())),
        );
    }
    let name = |path: &PathBuf| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    files.sort_by_key(|path| (name(path).starts_with("tiny-"), name(path)));
    let mut table = String::from("[\n");
    for path in &files {
        // Names and paths are written as Rust string literals, so that no character breaks the table.
        let _ = writeln!(table, "    ({:?}, include_str!({:?})),", name(path), path.to_string_lossy());
    }
    table.push_str("]\n");
    let output = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets no OUT_DIR")?).join("shapes.rs");
    std::fs::write(&output, format!("&{table}")).map_err(|error| format!("{}: {error}", output.display()))
}
