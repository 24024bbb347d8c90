//! A model on disk: its files, and the contents of their headers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::safetensors::shards;
use crate::text::shown;
use crate::tokenizer::{TokenizerFacts, TokenizerTables, facts_of_gguf, facts_of_json, from_gguf, from_json};
use crate::{Config, Tensor, Tokenizer, detect, embedded, gguf, hub, safetensors};

/// A model: a folder with config.json and safetensors, a folder with one GGUF file, or a GGUF file.
#[derive(Debug, Clone)]
pub struct ModelFolder {
    /// The repository that it was pulled from; else the name of the folder, or of the file without its extension.
    pub name: String,
    /// The path as given.
    pub path: PathBuf,
    pub format: Format,
    /// The files with tensors, shards in order.
    pub weights: Vec<PathBuf>,
    pub config: Config,
    /// The source of the architecture.
    pub architecture_from: &'static str,
    /// Every tensor of every file, as in the headers.
    pub tensors: Vec<Tensor>,
}

/// The location of a model's tokenizer.
enum TokenizerSource<'a> {
    Json(PathBuf),
    Gguf(&'a Path),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Safetensors,
    Gguf,
}

impl Format {
    pub fn named(name: &str) -> Option<Self> {
        [Self::Safetensors, Self::Gguf].into_iter().find(|format| format.as_str() == name)
    }

    /// The spelling in the protocol's `formats`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
        }
    }
}

/// The path of a named model. No name, or `embedded`, is the embedded one; otherwise a path, or the name of a pulled
/// repository. A path takes precedence over a name.
pub fn resolve(name_or_path: Option<&str>) -> Result<PathBuf> {
    let name = match name_or_path {
        None | Some("" | embedded::NAME) => return embedded::folder(),
        Some(name) => name,
    };
    let path = PathBuf::from(name);
    if path.exists() {
        return Ok(path);
    }
    if let Some(snapshot) = hub::find(name) {
        return Ok(snapshot);
    }
    if hub::Repository::is_likely(name) {
        bail!(
            "no model at `{name}`, and none of this name was pulled\nhint: `orchestrate model pull {name}` fetches it from the Hugging Face hub"
        );
    }
    bail!("no model at `{name}`\nhint: give a model folder, a `.gguf` file, or `embedded`")
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

    /// The folder of the weights, which also has the tokenizer and texts.
    pub fn folder(&self) -> &Path {
        if self.path.is_dir() { &self.path } else { self.path.parent().unwrap_or(Path::new("")) }
    }

    pub fn tokenizer_path(&self) -> PathBuf {
        self.folder().join("tokenizer.json")
    }

    /// Whether text can become ids, with a `tokenizer.json` beside the weights or tables within a GGUF file.
    pub fn has_tokenizer(&self) -> bool {
        self.tokenizer_source().is_ok()
    }

    /// The `tokenizer.json` beside the weights, else the tables within a GGUF file.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        let (path, tokenizer) = match self.tokenizer_source()? {
            TokenizerSource::Json(path) => (path.clone(), Tokenizer::open(&path)?),
            TokenizerSource::Gguf(path) => {
                let built = Tokenizer::from_tables(&from_gguf(path, &gguf::read_header(path, 0)?)?);
                (path.to_path_buf(), built.with_context(|| format!("`{}`", path.display()))?)
            }
        };
        let fits = tokenizer.check_fits(self.config.vocabulary_size);
        fits.with_context(|| format!("`{}`", path.display()))?;
        Ok(tokenizer)
    }

    /// The tokenizer as tables, for another format. If no tokenizer file names the BOS and EOS tokens, the config does.
    pub fn tokenizer_tables(&self) -> Result<TokenizerTables> {
        let mut tables = match self.tokenizer_source()? {
            TokenizerSource::Json(path) => from_json(&path)?,
            TokenizerSource::Gguf(path) => from_gguf(path, &gguf::read_header(path, 0)?)?,
        };
        let known = |id: &u32| (*id as usize) < tables.tokens.len();
        let bos = self.config.bos_id.filter(known);
        let eos = self.config.eos_ids.iter().copied().find(known);
        tables.bos = tables.bos.or(bos);
        tables.eos = tables.eos.or(eos);
        Ok(tables)
    }

    /// The facts of the tokenizer, without building it; `None` if there is none.
    pub fn tokenizer_facts(&self) -> Result<Option<TokenizerFacts>> {
        match self.tokenizer_source() {
            Err(_) => Ok(None),
            Ok(TokenizerSource::Json(path)) => facts_of_json(&path).map(Some),
            Ok(TokenizerSource::Gguf(path)) => Ok(facts_of_gguf(path, &self.config)),
        }
    }

    fn tokenizer_source(&self) -> Result<TokenizerSource<'_>> {
        let path = self.tokenizer_path();
        if path.is_file() {
            return Ok(TokenizerSource::Json(path));
        }
        let tables = self.config.raw.get("tokenizer.ggml.model").and_then(|_| self.weights.first());
        let within = tables.filter(|_| self.format == Format::Gguf).map(|file| TokenizerSource::Gguf(file));
        within.with_context(|| format!("model `{}` has no `tokenizer.json` beside its weights", self.name))
    }

    /// Text for prompts: the model's own `heldout.txt`, else the embedded model's.
    pub fn heldout_text(&self) -> Result<String> {
        let path = self.folder().join("heldout.txt");
        if !path.is_file() {
            return embedded::heldout_text();
        }
        std::fs::read_to_string(&path).with_context(|| format!("`{}`", path.display()))
    }

    /// The bytes of all tensors on disk.
    pub fn weights_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes).sum()
    }

    /// Elements of all tensors; shared embeddings count once, as they are stored.
    pub fn parameters(&self) -> u64 {
        self.tensors.iter().map(Tensor::elements).sum()
    }

    /// The dtypes of the tensors, with the bytes of each.
    pub fn dtypes(&self) -> BTreeMap<&'static str, u64> {
        let mut bytes = BTreeMap::new();
        for tensor in &self.tensors {
            *bytes.entry(tensor.dtype).or_default() += tensor.bytes;
        }
        bytes
    }

    fn open_safetensors(path: &Path, weights: Vec<PathBuf>) -> Result<Self> {
        let (mut tensors, mut seen) = (Vec::new(), BTreeSet::new());
        for (file, weights_path) in weights.iter().enumerate() {
            for tensor in safetensors::read_header(weights_path, file)? {
                let new = seen.insert(tensor.name.clone());
                ensure!(
                    new,
                    "`{}`: tensor `{}` stands in another file too",
                    weights_path.display(),
                    shown(&tensor.name)
                );
                tensors.push(tensor);
            }
        }
        let name = name_of(path);
        let names = tensors.iter().map(|tensor: &Tensor| tensor.name.as_str());
        let (config, architecture_from) =
            Config::open(path, |raw| detect::architecture(raw, names.clone(), &name))?;
        let (path, format) = (path.to_path_buf(), Format::Safetensors);
        Ok(Self { name, path, format, weights, config, architecture_from, tensors })
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
            architecture_from: "`general.architecture` of its metadata",
            tensors,
        })
    }
}

fn file_names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("model `{}`", folder.display()))? {
        let entry = entry?;
        // Reading a pipe would never end. Links are followed, as the hub's cache needs.
        if entry.path().is_file() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort();
    Ok(names)
}

fn name_of(path: &Path) -> String {
    // In the hub's cache a folder's name is a commit, and a file's path ends in a hash.
    if let Some(name) = hub::name_of(path) {
        return name;
    }
    let full = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = if full.is_dir() { full.file_name() } else { full.file_stem() };
    name.map_or_else(|| full.display().to_string(), |name| name.to_string_lossy().into_owned())
}
