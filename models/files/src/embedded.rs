//! The small model of this project, from the checkout if there is one, else unpacked from the binary.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// The name of this model in flags, messages and records.
pub const NAME: &str = "embedded";

pub fn folder() -> Result<PathBuf> {
    let in_checkout = paths::checkout().map(|root| root.join("models/embedded"));
    match in_checkout.filter(|folder| folder.join("model.safetensors").is_file()) {
        Some(folder) => Ok(folder),
        None => unpack_embedded(),
    }
}

/// Text that the model was not trained on.
pub fn heldout_text() -> Result<String> {
    let path = folder()?.join("heldout.txt");
    std::fs::read_to_string(&path).with_context(|| format!("`{}`", path.display()))
}

#[cfg(not(feature = "embedded"))]
fn unpack_embedded() -> Result<PathBuf> {
    anyhow::bail!(crate::Problem::new(
        "this program was built without the embedded model",
        "name a model folder with `--model`"
    ))
}

#[cfg(feature = "embedded")]
const FILES: [(&str, &[u8]); 8] = [
    ("config.json", include_bytes!("../../embedded/config.json")),
    ("generation_config.json", include_bytes!("../../embedded/generation_config.json")),
    ("tokenizer.json", include_bytes!("../../embedded/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../embedded/tokenizer_config.json")),
    ("model.safetensors", include_bytes!("../../embedded/model.safetensors")),
    ("heldout.txt", include_bytes!("../../embedded/heldout.txt")),
    ("reference-answers.json", include_bytes!("../../embedded/reference-answers.json")),
    ("dtype-costs.json", include_bytes!("../../embedded/dtype-costs.json")),
];

#[cfg(feature = "embedded")]
fn unpack_embedded() -> Result<PathBuf> {
    let models = paths::data_dir()?.join("models");
    unpack(&models, concat!("embedded-", env!("EMBEDDED_MODEL_DIGEST")), &FILES)
}

/// Writes a temporary folder and renames it when it is complete, so that no reader sees a part of the model.
#[cfg(any(feature = "embedded", test))]
fn unpack(models: &std::path::Path, name: &str, files: &[(&str, &[u8])]) -> Result<PathBuf> {
    let folder = models.join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    let written = crate::write::write_atomically(&folder, |temporary| {
        std::fs::create_dir_all(temporary)?;
        files.iter().try_for_each(|(name, bytes)| std::fs::write(temporary.join(name), bytes))
    });
    // Another process may have finished first; its folder has the same bytes.
    if folder.is_dir() { Ok(folder) } else { written.map(|()| folder) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacking_creates_a_complete_folder_and_leaves_no_temporary_one() {
        let scratch = tempfile::tempdir().unwrap();
        let models = scratch.path();
        let files: [(&str, &[u8]); 2] = [("a", b"one"), ("b", b"two")];
        let folder = unpack(models, "m", &files).unwrap();
        assert_eq!(std::fs::read(folder.join("b")).unwrap(), b"two");
        // A second program finds the folder and changes nothing.
        assert_eq!(unpack(models, "m", &[]).unwrap(), folder);
        let entries: Vec<_> =
            std::fs::read_dir(models).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(entries, ["m"]);
    }

    #[test]
    fn the_error_for_a_folder_that_cannot_be_written_names_the_folder() {
        let error = unpack(std::path::Path::new("/dev/null"), "m", &[]).unwrap_err();
        assert!(format!("{error:#}").contains("/dev/null/m"), "{error:#}");
    }
}
