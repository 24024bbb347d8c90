//! A model on disk: which files it consists of, and what their headers say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::{Config, Tensor, Tokenizer, embedded, gguf, safetensors};

/// A model: a folder with config.json and safetensors, a folder with one GGUF file, or a GGUF file.
#[derive(Debug, Clone)]
pub struct ModelFolder {
    /// The folder's name, or the file's without its extension.
    pub name: String,
    /// As it was given.
    pub path: PathBuf,
    pub format: Format,
    /// The files that hold tensors, shards in order.
    pub weights: Vec<PathBuf>,
    pub config: Config,
    /// Every tensor of every file, as the headers describe them.
    pub tensors: Vec<Tensor>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Safetensors,
    Gguf,
}

impl Format {
    /// As the protocol's `formats` spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
        }
    }
}

/// Where the model of this name is: nothing or `embedded` is the embedded one, all else is a path.
pub fn resolve(name_or_path: Option<&str>) -> Result<PathBuf> {
    match name_or_path {
        None | Some("" | embedded::NAME) => embedded::folder(),
        Some(path) => {
            let found = PathBuf::from(path);
            ensure!(
                found.exists(),
                "no model at `{path}`\nhint: give a model folder, a `.gguf` file, or `embedded`"
            );
            Ok(found)
        }
    }
}

impl ModelFolder {
    /// Finds the files and reads config and headers, never weights.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let metadata = std::fs::metadata(path).with_context(|| format!("model `{}`", path.display()))?;
        if metadata.is_file() {
            let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
            ensure!(is_gguf, "model `{}`: expected a folder or a `.gguf` file", path.display());
            return Self::open_gguf(path, path);
        }
        let names = file_names(path)?;
        let ending = |end: &str| names.iter().filter(|name| name.ends_with(end)).cloned().collect::<Vec<_>>();
        let (tensors, ggufs) = (ending(".safetensors"), ending(".gguf"));
        match ggufs.as_slice() {
            _ if !tensors.is_empty() => {
                let weights = shards(path, &tensors)?;
                Self::open_safetensors(path, weights)
            }
            [only] => Self::open_gguf(path, &path.join(only)),
            [] => bail!("model `{}`: neither `*.safetensors` nor a `.gguf` file in it", path.display()),
            several => bail!(
                "model `{}`: {} `.gguf` files in it\nhint: name one of them: `{}`",
                path.display(),
                several.len(),
                path.join(&several[0]).display()
            ),
        }
    }

    /// The folder that holds the weights: tokenizer and texts lie there.
    pub fn folder(&self) -> &Path {
        if self.path.is_dir() { &self.path } else { self.path.parent().unwrap_or(Path::new("")) }
    }

    pub fn tokenizer_path(&self) -> PathBuf {
        self.folder().join("tokenizer.json")
    }

    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let path = self.tokenizer_path();
        ensure!(path.is_file(), "model `{}` has no `tokenizer.json` beside its weights", self.name);
        Tokenizer::open(&path)
    }

    /// Text to cut prompts from: the model's own `heldout.txt`, else the embedded model's.
    pub fn heldout_text(&self) -> Result<String> {
        let path = self.folder().join("heldout.txt");
        if !path.is_file() {
            return embedded::heldout_text();
        }
        std::fs::read_to_string(&path).with_context(|| format!("`{}`", path.display()))
    }

    /// Bytes of all tensors as they lie on disk.
    pub fn weights_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes).sum()
    }

    /// Elements of all tensors; shared embeddings count once, as they are stored.
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(Tensor::elements).sum()
    }

    /// The dtypes of the tensors, with the bytes that each takes.
    pub fn dtypes(&self) -> BTreeMap<&'static str, u64> {
        let mut bytes = BTreeMap::new();
        for tensor in &self.tensors {
            *bytes.entry(tensor.dtype).or_default() += tensor.bytes;
        }
        bytes
    }

    fn open_safetensors(path: &Path, weights: Vec<PathBuf>) -> Result<Self> {
        let config = Config::open(path)?;
        let (mut tensors, mut seen) = (Vec::new(), BTreeSet::new());
        for (file, weights_path) in weights.iter().enumerate() {
            for tensor in safetensors::read_header(weights_path, file)? {
                let new = seen.insert(tensor.name.clone());
                ensure!(
                    new,
                    "`{}`: tensor `{}` stands in another file too",
                    weights_path.display(),
                    tensor.name
                );
                tensors.push(tensor);
            }
        }
        let (name, path) = (name_of(path), path.to_path_buf());
        Ok(Self { name, path, format: Format::Safetensors, weights, config, tensors })
    }

    fn open_gguf(path: &Path, file: &Path) -> Result<Self> {
        let header = gguf::read_header(file, 0)?;
        let config = Config::from_gguf(&header).with_context(|| format!("`{}`", file.display()))?;
        let (weights, tensors) = (vec![file.to_path_buf()], header.tensors);
        Ok(Self {
            name: name_of(path),
            path: path.to_path_buf(),
            format: Format::Gguf,
            weights,
            config,
            tensors,
        })
    }
}

const INDEX: &str = "model.safetensors.index.json";

/// Which of a folder's safetensors files make up the model: those of its index, else `model.safetensors`, else the only one.
fn shards(folder: &Path, found: &[String]) -> Result<Vec<PathBuf>> {
    let index = folder.join(INDEX);
    if index.is_file() {
        return shards_of_index(folder, &index).with_context(|| format!("`{}`", index.display()));
    }
    match found {
        [only] => Ok(vec![folder.join(only)]),
        several if several.iter().any(|name| name == "model.safetensors") => {
            Ok(vec![folder.join("model.safetensors")])
        }
        several => {
            bail!("model `{}`: {} safetensors files and no `{INDEX}`", folder.display(), several.len())
        }
    }
}

fn shards_of_index(folder: &Path, index: &Path) -> Result<Vec<PathBuf>> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let Index { weight_map } = serde_json::from_slice(&std::fs::read(index)?)?;
    let names: BTreeSet<&String> = weight_map.values().collect();
    ensure!(!names.is_empty(), "`weight_map` is empty");
    let mut paths = Vec::new();
    for name in names {
        // A shard lies in the folder; an index that points elsewhere is broken or worse.
        ensure!(
            Path::new(name).file_name() == Some(name.as_ref()),
            "`{}` is no file name",
            name.escape_debug()
        );
        let path = folder.join(name);
        ensure!(path.is_file(), "shard `{name}` is missing");
        let held: BTreeSet<String> =
            safetensors::read_header(&path, 0)?.into_iter().map(|tensor| tensor.name).collect();
        let absent = weight_map.iter().find(|(tensor, shard)| *shard == name && !held.contains(*tensor));
        ensure!(absent.is_none(), "tensor `{}` is not in `{name}`", absent.map_or("", |(tensor, _)| tensor));
        paths.push(path);
    }
    Ok(paths)
}

fn file_names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("model `{}`", folder.display()))? {
        names.extend(entry?.file_name().into_string().ok());
    }
    names.sort();
    Ok(names)
}

fn name_of(path: &Path) -> String {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = if full.is_dir() { full.file_name() } else { full.file_stem() };
    name.map_or_else(|| full.display().to_string(), |name| name.to_string_lossy().into_owned())
}
