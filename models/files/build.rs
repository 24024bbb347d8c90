//! Names the embedded model by its content, and says plainly when its files are not there.

use std::path::Path;

const FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
    "heldout.txt",
];

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_EMBEDDED").is_none() {
        return Ok(());
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../embedded");
    let mut contents = Vec::new();
    for name in FILES {
        println!("cargo::rerun-if-changed={}", folder.join(name).display());
        let bytes = std::fs::read(folder.join(name)).map_err(|error| {
            format!("models/embedded/{name}: {error}; models/README.md tells how the embedded model is made")
        })?;
        contents.extend_from_slice(name.as_bytes());
        contents.extend_from_slice(&bytes);
    }
    println!("cargo::rustc-env=EMBEDDED_MODEL_DIGEST={}", places::digest(&contents));
    Ok(())
}
