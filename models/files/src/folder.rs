//! A model on disk: its files, and the contents of their headers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::architecture::{Architecture, Component, TensorSpec, prefixed_name, rope};
use crate::config::invalid_id;
use crate::safetensors::shards;
use crate::text::printable;
use crate::tokenizer::{TokenizerFacts, TokenizerTables, facts_of_gguf, facts_of_json, from_gguf, from_json};
use crate::weights::{FileWeights, find};
use crate::{Config, Dtype, Problem, Tensor, Tokenizer, architecture, embedded, gguf, hub, safetensors};

/// A model: a folder with config.json and safetensors, a folder with one GGUF file, or a GGUF file.
#[derive(Debug, Clone)]
pub struct ModelFolder {
    /// The repository of a pulled model; else the name of the folder, or of the file without its extension.
    pub name: String,
    /// The path as given.
    pub path: PathBuf,
    pub format: Format,
    /// The files with tensors, shards in order.
    pub weights: Vec<PathBuf>,
    pub config: Config,
    /// The source of the architecture, in words, such as "the names of its tensors".
    pub architecture_from: &'static str,
    /// Every tensor of every file, as in the headers.
    pub tensors: Vec<Tensor>,
}

/// The name of the output matrix in safetensors.
const OUTPUT_MATRIX: &str = "lm_head.weight";

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

/// The command that lists the models.
const LIST: &str = "orchestrate model list";

/// The path of a named model. `None` and `embedded` name the embedded model; any other name is a path or a pulled
/// repository. A path takes precedence over a repository.
pub fn resolve(name_or_path: Option<&str>) -> Result<PathBuf> {
    let name = match name_or_path {
        None | Some("" | embedded::NAME) => return embedded::folder(),
        Some(name) => name,
    };
    let path = PathBuf::from(name);
    match path.try_exists() {
        Ok(true) => return Ok(path),
        Ok(false) => {}
        Err(error) => {
            let parent = path.parent().unwrap_or(&path).display();
            bail!(Problem::new(
                format!("cannot open the model `{name}`: {error}"),
                format!("chmod u+x '{parent}'")
            ))
        }
    }
    if let Some(snapshot) = hub::find(name) {
        return Ok(snapshot);
    }
    if hub::Repository::is_likely(name) {
        bail!(Problem::new(
            format!("no model at `{name}`, and none of this name was pulled"),
            format!("`orchestrate model pull {name}` fetches it from the Hugging Face hub")
        ));
    }
    bail!(Problem::new(format!("no model at `{name}`"), LIST))
}

impl ModelFolder {
    /// Finds the files and reads config and headers, never weights.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::open_files(path).map_err(|error| {
            let is_denied = |cause: &std::io::Error| cause.kind() == ErrorKind::PermissionDenied;
            match error.chain().any(|cause| cause.downcast_ref().is_some_and(is_denied)) {
                true => {
                    Problem::new(format!("{error:#}"), format!("chmod -R u+rX '{}'", path.display())).into()
                }
                false => error,
            }
        })
    }

    fn open_files(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).with_context(|| format!("model `{}`", path.display()))?;
        if metadata.is_file() {
            let is_gguf = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
            ensure!(
                is_gguf,
                Problem::new(
                    format!("model `{}`: expected a folder or a `.gguf` file", path.display()),
                    LIST
                )
            );
            return Self::open_gguf(path, path);
        }
        ensure!(
            metadata.is_dir(),
            "model `{}`: expected a folder or a `.gguf` file, found {}",
            path.display(),
            name_of_special_file(metadata.file_type())
        );
        let names = file_names(path)?;
        let with_ending =
            |end: &str| names.iter().filter(|name| name.ends_with(end)).cloned().collect::<Vec<_>>();
        let (safetensors_names, ggufs) = (with_ending(".safetensors"), with_ending(".gguf"));
        match ggufs.as_slice() {
            _ if !safetensors_names.is_empty() => {
                let weights = shards(path, &safetensors_names)?;
                Self::open_safetensors(path, weights)
            }
            [only] => Self::open_gguf(path, &path.join(only)),
            [] => {
                bail!("model `{}`: neither `*.safetensors` nor a `.gguf` file in the folder", path.display())
            }
            several => bail!(Problem::new(
                format!("model `{}`: {} `.gguf` files in the folder", path.display(), several.len()),
                format!("name one of them: `{}`", path.join(&several[0]).display())
            )),
        }
    }

    /// The folder of the weights, which also has the tokenizer and texts.
    pub fn folder(&self) -> &Path {
        if self.path.is_dir() { &self.path } else { self.path.parent().unwrap_or(Path::new("")) }
    }

    pub fn tokenizer_path(&self) -> PathBuf {
        self.folder().join("tokenizer.json")
    }

    /// Whether there is a tokenizer: a `tokenizer.json` beside the weights, or tables within a GGUF file.
    pub fn has_tokenizer(&self) -> bool {
        self.tokenizer_source().is_ok()
    }

    /// Builds the tokenizer from the `tokenizer.json` beside the weights, else from the tables within a GGUF file.
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
        let is_known = |id: &u32| (*id as usize) < tables.tokens.len();
        let bos = self.config.bos_id.filter(is_known);
        let eos = self.config.eos_ids.iter().copied().find(is_known);
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
        let gguf = self.config.raw.get("tokenizer.ggml.model").and_then(|_| self.weights.first());
        let in_gguf = gguf.filter(|_| self.format == Format::Gguf).map(|file| TokenizerSource::Gguf(file));
        in_gguf.with_context(|| format!("model `{}` has no `tokenizer.json` beside its weights", self.name))
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

    /// The elements of all stored tensors. An embedding that is also the output counts once, unless the files have it twice.
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
        let (mut tensors, mut names) = (Vec::new(), BTreeSet::new());
        for (file, weights_path) in weights.iter().enumerate() {
            for tensor in safetensors::read_header(weights_path, file)? {
                let is_new = names.insert(tensor.name.clone());
                ensure!(
                    is_new,
                    "`{}`: tensor `{}` is in another file too",
                    weights_path.display(),
                    printable(&tensor.name)
                );
                tensors.push(tensor);
            }
        }
        let name = name_of(path);
        let names = tensors.iter().map(|tensor: &Tensor| tensor.name.as_str());
        let (config, architecture_from) =
            Config::open(path, |raw| architecture::detect(raw, names.clone(), &name))?;
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

impl ModelFolder {
    /// The name without its owner, for a file name: `tiny` of `someone/tiny`.
    pub fn short_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    pub fn architecture(&self) -> Result<&'static Architecture> {
        Architecture::of(&self.config, self.format).with_context(|| format!("model `{}`", self.name))
    }

    /// Compares the user's expected architecture with the model's.
    pub fn expect_architecture(&self, expected: &str) -> Result<()> {
        let found = self.config.architecture.as_str();
        // Some architectures have another name in GGUF.
        let is_its_gguf_name = self.format == Format::Gguf
            && Architecture::named(expected).is_some_and(|architecture| architecture.gguf == found);
        ensure!(
            expected.eq_ignore_ascii_case(found) || is_its_gguf_name,
            "model type mismatch: expected `{}`, found `{}`",
            printable(expected),
            printable(found)
        );
        Ok(())
    }

    /// The tensors that the config requires, after a check that the files have each of them in the required shape.
    pub fn tensor_specs(&self) -> Result<Vec<TensorSpec>> {
        let (format, source) = (self.format, self.config_source());
        let architecture = self.architecture()?;
        let split_count = self.config.raw.get("split.count").and_then(Value::as_u64).unwrap_or(1);
        ensure!(
            self.format != Format::Gguf || split_count <= 1,
            Problem::new(
                format!(
                    "`{}`: one of {split_count} files of a split model, which must be joined before it is loaded",
                    self.weights.first().unwrap_or(&self.path).display()
                ),
                "`llama-gguf-split --merge` joins them"
            )
        );
        let (layers, count) = (self.config.layers as usize, self.tensors.len());
        // This check comes before an allocation for each layer.
        ensure!(layers <= count, "{source}: {layers} layers cannot consist of {count} tensors");
        // If the config names the wrong architecture, an error about one field would mislead.
        let specs = architecture.tensor_specs(&self.config).map_err(|error| {
            match self.mismatch_message(architecture, &source) {
                Some(mismatch) => anyhow!(mismatch),
                None => error.context(source.clone()),
            }
        })?;
        if let Some(message) = invalid_id(&self.config) {
            bail!("{source}: {message}");
        }
        // This call refuses invalid factors of RoPE scaling.
        rope::llama3(&self.config).with_context(|| source.clone())?;
        let tensors: HashMap<String, &Tensor> =
            self.tensors.iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        for spec in &specs {
            let name = spec.name_in(format);
            let tensor =
                find(&tensors, name).with_context(|| self.missing_message(architecture, name, &source))?;
            let expected = spec.shape_in(format);
            ensure!(
                tensor.shape == expected,
                "model `{}`: tensor `{}` has the shape {:?} in `{}`, and {source} requires {expected:?}",
                self.name,
                tensor.name,
                tensor.shape,
                self.weights[tensor.file].display()
            );
        }
        Ok(specs)
    }

    /// Refuses a checkpoint with an output matrix that differs from the embedding, if the config ties the two: programs do not
    /// agree on the matrix to use. An equal output matrix is a copy of the embedding, and is accepted. Reads both tensors.
    pub fn refuse_second_output_matrix(&self) -> Result<()> {
        let output = self.tensors.iter().find(|tensor| tensor.name == OUTPUT_MATRIX);
        let Some(output) = output.filter(|_| self.config.tie_word_embeddings) else { return Ok(()) };
        let embedding = self.tensor_specs()?.into_iter().find(|spec| spec.component == Component::Embedding);
        let tensors: HashMap<String, &Tensor> =
            self.tensors.iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        let Some(embedding) = embedding.and_then(|spec| find(&tensors, &spec.name).copied()) else {
            return Ok(());
        };
        ensure!(
            FileWeights::open(self)?.are_equal(embedding, output)?,
            Problem::new(
                format!(
                    "model `{}`: `tie_word_embeddings` is true, and `{OUTPUT_MATRIX}` differs from `{}`",
                    self.name, embedding.name
                ),
                format!(
                    "set `tie_word_embeddings` to false in `{}` to use `{OUTPUT_MATRIX}`",
                    self.folder().join("config.json").display()
                )
            )
        );
        Ok(())
    }

    /// The tensors that the network does not use. A copy of the embedding as the output, and tensors that can be computed from
    /// the config, do not count.
    pub fn unused_tensors(&self, specs: &[TensorSpec]) -> Vec<&Tensor> {
        let (known, format) = (self.names_of(specs), self.format);
        let architecture = Architecture::of(&self.config, format).ok();
        let tied = self.config.tie_word_embeddings && format == Format::Safetensors;
        let is_unused = |tensor: &&Tensor| {
            let is_derived = is_derived(format, architecture, &tensor.name);
            // Some checkpoints store the tied output too, as a copy of the embedding.
            let is_copy = tied && tensor.name == OUTPUT_MATRIX;
            !(is_derived || is_copy || known.contains(&tensor.name))
        };
        self.tensors.iter().filter(is_unused).collect()
    }

    /// The message for the first tensor in a dtype that this crate cannot read.
    pub fn unreadable_tensor_message(&self, specs: &[TensorSpec]) -> Option<String> {
        let mut unreadable =
            self.tensors.iter().filter(|tensor| Dtype::named(tensor.dtype).is_none()).peekable();
        unreadable.peek()?;
        let known = self.names_of(specs);
        unreadable.find(|tensor| known.contains(&tensor.name)).map(|tensor| self.unreadable_message(tensor))
    }

    /// The message for a tensor in a dtype that this crate cannot read.
    pub(crate) fn unreadable_message(&self, tensor: &Tensor) -> String {
        let (path, name) = (self.weights[tensor.file].display(), printable(&tensor.name));
        format!("`{path}`: tensor `{name}` is {}, which this program cannot read", tensor.dtype)
    }

    /// Every name that these tensors may have in this format, with and without the prefix that some checkpoints use.
    fn names_of(&self, specs: &[TensorSpec]) -> HashSet<String> {
        let names = specs.iter().map(|spec| spec.name_in(self.format));
        names.flat_map(|name| [Some(name.to_string()), prefixed_name(name)]).flatten().collect()
    }

    /// The source of the config, for messages.
    fn config_source(&self) -> String {
        match self.format {
            Format::Safetensors => format!("`{}`", self.folder().join("config.json").display()),
            Format::Gguf => {
                format!("the metadata of `{}`", self.weights.first().unwrap_or(&self.path).display())
            }
        }
    }

    fn missing_message(&self, architecture: &Architecture, name: &str, source: &str) -> String {
        let missing =
            || format!("model `{}`: tensor `{name}` is missing, and {source} requires it", self.name);
        self.mismatch_message(architecture, source).unwrap_or_else(missing)
    }

    /// The message for a config that names another architecture than its tensors have; else `None`.
    fn mismatch_message(&self, architecture: &Architecture, source: &str) -> Option<String> {
        let names = self.tensors.iter().map(|tensor| tensor.name.as_str());
        let matching = architecture::matching_architectures(names);
        let is_own = matching.iter().any(|candidate| candidate.name == architecture.name);
        let actual = matching.first().filter(|_| self.format == Format::Safetensors && !is_own)?.name;
        let stated = architecture.name;
        Some(format!(
            "model type mismatch: {source} names `{stated}`, and its tensors are those of `{actual}`"
        ))
    }
}

/// Whether a tensor of this name can be computed from the config, or holds RoPE factors.
fn is_derived(format: Format, architecture: Option<&Architecture>, name: &str) -> bool {
    match format {
        Format::Safetensors => architecture
            .is_some_and(|architecture| architecture.buffers.iter().any(|end| name.ends_with(end))),
        Format::Gguf => name == rope::FACTORS,
    }
}

fn name_of_special_file(kind: std::fs::FileType) -> &'static str {
    match kind {
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "another kind of file",
    }
}

fn file_names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("model `{}`", folder.display()))? {
        let entry = entry?;
        // Reading a pipe would never end. Links are followed, because the hub's cache consists of links.
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
