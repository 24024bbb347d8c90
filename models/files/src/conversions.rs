//! The cache of conversions for engines that need another format, keyed by content. The same model is converted once to each
//! format and dtype, also if several folders have it.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::convert::{Goal, convert};
use crate::write::{OnProgress, cannot_write, remove_abandoned, temporary_name};
use crate::{Dtype, Format, ModelFolder};

pub const DEFAULT_LIMIT_BYTES: u64 = 20_000_000_000;

/// A conversion in the cache: one model in one format and dtype.
#[derive(Debug, Clone)]
pub struct Conversion {
    /// The name of the original model.
    pub model: String,
    pub format: String,
    pub dtype: String,
    pub folder: PathBuf,
    pub bytes: u64,
    /// The time of the last use.
    pub used: SystemTime,
}

/// The content of a conversion's label file.
#[derive(Serialize, Deserialize)]
struct Label {
    model: String,
    format: String,
    dtype: String,
}

/// The label file of a conversion. It is written last, and again at every use, so its file time is the time of the last use.
const LABEL_FILE: &str = "conversion.json";
/// The file with the limit of the cache in bytes.
const LIMIT_FILE: &str = "limit";

/// Returns the path of the model in this format and dtype, after a conversion if it is not in the cache.
pub fn convert_cached(
    model: &ModelFolder,
    format: Format,
    dtype: Dtype,
    on_progress: OnProgress,
) -> Result<PathBuf> {
    let name = dtype.as_str().to_ascii_lowercase();
    let file_name = match format {
        Format::Safetensors => model.short_name().to_string(),
        Format::Gguf => format!("{}-{name}.gguf", model.short_name()),
    };
    let label = Label { model: model.name.clone(), format: format.as_str().into(), dtype: name };
    find_or_create(model, &label, "", &file_name, &|out| {
        convert(model, &Goal { format, dtype, out: out.into() }, on_progress).map(drop)
    })
}

/// A program of another project that converts models into folders.
#[derive(Debug, Clone, Copy)]
pub struct ExternalConverter<'a> {
    /// The format and the dtype that the program writes, as the engine names them.
    pub format: &'a str,
    pub dtype: &'a str,
    /// The program's name, version and settings. A conversion by another version is not used again.
    pub converter: &'a str,
}

/// Returns the folder of a conversion by a program of another project. If the cache has none, `make` gets a path, and creates
/// and fills a folder there.
pub fn convert_cached_by(
    model: &ModelFolder,
    by: ExternalConverter,
    make: &dyn Fn(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let is_word = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    for word in [by.format, by.dtype] {
        // Both are parts of a folder's name.
        ensure!(is_word(word), "`{word}`: a format or dtype has only letters, digits, `-` and `_`");
    }
    let label = Label { model: model.name.clone(), format: by.format.into(), dtype: by.dtype.into() };
    find_or_create(model, &label, by.converter, model.short_name(), make)
}

/// Returns the path in the cache that belongs to the model, the label and the converter. `file_name` is the name of a new
/// file or folder, which `make` writes.
fn find_or_create(
    model: &ModelFolder,
    label: &Label,
    converter: &str,
    file_name: &str,
    make: &dyn Fn(&Path) -> Result<()>,
) -> Result<PathBuf> {
    // `identity` below skips this check if an identity is stored. The config may have changed since the identity was stored.
    model.refuse_second_output_matrix()?;
    let digest = digest_of_other_files(model, converter);
    let folder = cache()?.join(format!("{}-{digest}-{}-{}", model.identity()?, label.format, label.dtype));
    match model_in(&folder) {
        Some(_) => label.write(&folder)?,
        None => create(label, &folder, file_name, make)?,
    }
    shrink(limit()?, Some(&folder))?;
    model_in(&folder).with_context(|| format!("`{}` was removed while it was in use", folder.display()))
}

/// The version of the rules that convert a model: a conversion by other rules is not used again.
const RULES_VERSION: u8 = 2;

/// A digest of the files beside the weights and of the converter's name: the same weights with another config or by another
/// converter are another conversion.
fn digest_of_other_files(model: &ModelFolder, converter: &str) -> String {
    let mut content = vec![RULES_VERSION];
    content.extend(converter.as_bytes());
    content.extend(model.config.raw.to_string().into_bytes());
    for name in ["generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        // A missing or unreadable file counts as empty.
        content.extend(std::fs::read(model.folder().join(name)).unwrap_or_default());
    }
    if model.format == Format::Gguf {
        content.extend(header_bytes(model).unwrap_or_default());
    }
    paths::digest(&content)[..8].to_string()
}

/// All bytes before the first tensor's data. They include the vocabulary, while the config has only its length.
fn header_bytes(model: &ModelFolder) -> Option<Vec<u8>> {
    let data_start = model.tensors.iter().map(|tensor| tensor.offset).min()?;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(model.weights.first()?).ok()?;
    std::io::Read::read_to_end(&mut std::io::Read::take(file, data_start), &mut bytes).ok()?;
    Some(bytes)
}

/// Converts into a temporary folder and renames it when complete, so that another run finds a complete folder or makes its
/// own.
fn create(label: &Label, folder: &Path, file_name: &str, make: &dyn Fn(&Path) -> Result<()>) -> Result<()> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.with_file_name(temporary_name(&name));
    std::fs::create_dir_all(&temporary).with_context(|| cannot_write(&temporary))?;
    let created = make(&temporary.join(file_name)).and_then(|()| {
        label.write(&temporary)?;
        if model_in(folder).is_none() {
            // If the folder exists, it has no complete model, for example because a user removed files.
            let _ = std::fs::remove_dir_all(folder);
            let renamed = std::fs::rename(&temporary, folder);
            renamed.with_context(|| cannot_write(folder))?;
        }
        Ok(())
    });
    // The temporary folder still exists after a failure, or if another run finished first.
    let _ = std::fs::remove_dir_all(&temporary);
    created
}

impl Label {
    fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(LABEL_FILE);
        std::fs::write(&path, serde_json::to_vec(self)?).with_context(|| cannot_write(&path))
    }
}

/// The conversions in the cache, most recently used first.
pub fn list() -> Result<Vec<Conversion>> {
    let mut conversions = Vec::new();
    for entry in read_folder(&cache()?)? {
        let folder = entry.path();
        let Ok(text) = std::fs::read(folder.join(LABEL_FILE)) else { continue };
        let Ok(label) = serde_json::from_slice::<Label>(&text) else { continue };
        let used = folder.join(LABEL_FILE).metadata().and_then(|metadata| metadata.modified());
        conversions.push(Conversion {
            model: label.model,
            format: label.format,
            dtype: label.dtype,
            bytes: size(&folder)?,
            used: used.unwrap_or(SystemTime::UNIX_EPOCH),
            folder,
        });
    }
    conversions.sort_by_key(|conversion| std::cmp::Reverse(conversion.used));
    Ok(conversions)
}

pub fn limit() -> Result<u64> {
    let path = cache()?.join(LIMIT_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().with_context(|| format!("`{}`", path.display())),
        Err(_) => Ok(DEFAULT_LIMIT_BYTES),
    }
}

/// Sets the limit and applies it. Returns the bytes removed.
pub fn set_limit(bytes: u64) -> Result<u64> {
    let cache = cache()?;
    std::fs::create_dir_all(&cache).with_context(|| cannot_write(&cache))?;
    let path = cache.join(LIMIT_FILE);
    std::fs::write(&path, format!("{bytes}\n")).with_context(|| cannot_write(&path))?;
    shrink(bytes, None)
}

/// Removes all conversions. Returns the bytes removed.
pub fn clear() -> Result<u64> {
    let mut removed = 0;
    // This includes interrupted conversions, which have no label.
    for entry in read_folder(&cache()?)?.iter().filter(|entry| entry.path().is_dir()) {
        removed += size(&entry.path())?;
        remove(&entry.path())?;
    }
    Ok(removed)
}

/// Keeps `in_use` and, from the most recently used on, every conversion that still fits into the limit. Removes the others.
/// Returns the bytes removed.
fn shrink(limit: u64, in_use: Option<&Path>) -> Result<u64> {
    remove_abandoned(&cache()?, None);
    let (mut total, mut removed) = (0, 0);
    for conversion in list()? {
        total += conversion.bytes;
        if total > limit && in_use != Some(conversion.folder.as_path()) {
            remove(&conversion.folder)?;
            total -= conversion.bytes;
            removed += conversion.bytes;
        }
    }
    Ok(removed)
}

fn cache() -> Result<PathBuf> {
    Ok(paths::data_dir()?.join("conversions"))
}

/// The path of the model in a complete conversion. Its last part is the name of the first model with this content.
fn model_in(folder: &Path) -> Option<PathBuf> {
    let entries = read_folder(folder).ok().filter(|_| folder.join(LABEL_FILE).is_file())?;
    entries.iter().map(std::fs::DirEntry::path).find(|path| path.file_name() != Some(LABEL_FILE.as_ref()))
}

fn read_folder(folder: &Path) -> Result<Vec<std::fs::DirEntry>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let read = || std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>();
    read().with_context(|| format!("`{}`", folder.display()))
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in read_folder(folder)? {
        let metadata = entry.metadata().with_context(|| format!("`{}`", entry.path().display()))?;
        bytes += if metadata.is_dir() { size(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

fn remove(folder: &Path) -> Result<()> {
    std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove `{}`", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Goal, Shape, synthesise};

    #[test]
    fn gguf_files_with_different_vocabularies_have_different_digests() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("x.gguf");
        let goal = Goal { format: Format::Gguf, dtype: Dtype::F32, out: out.clone() };
        synthesise(&Shape::named("tiny-gpt2").unwrap(), 0, &goal, &|_, _| Ok(())).unwrap();
        let digest = || digest_of_other_files(&ModelFolder::open(&out).unwrap(), "");
        let first_digest = digest();
        assert_eq!(digest(), first_digest);
        let mut bytes = std::fs::read(&out).unwrap();
        // Swaps two neighbouring tokens of one letter each.
        let letters = b"\x01\0\0\0\0\0\0\0a\x01\0\0\0\0\0\0\0b";
        let at = bytes.windows(letters.len()).position(|window| window == letters).unwrap();
        bytes.swap(at + 8, at + 17);
        std::fs::write(&out, bytes).unwrap();
        assert_ne!(digest(), first_digest);
    }
}
