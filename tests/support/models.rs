//! Models for tests: small models of every architecture, which the program makes, and functions that read them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model_files::{Architecture, Config, FileWeights, ModelFolder};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{Outcome, Scratch, finish};

/// The architectures. Each has a shape `tiny-ARCHITECTURE`.
pub const ARCHITECTURES: [&str; 7] = ["llama", "mistral", "qwen2", "qwen3", "phi3", "gpt2", "gemma"];

impl Scratch {
    /// Runs `orchestrate model WORDS` in this folder.
    pub fn model(&self, words: &[&str]) -> Outcome {
        finish(self.orchestrate().arg("model").args(words).current_dir(&self.path))
    }

    /// Runs `orchestrate model WORDS` and returns the path that the command prints.
    #[track_caller]
    pub fn make_model(&self, words: &[&str]) -> PathBuf {
        let outcome = self.model(words).exits_with(0);
        let path = self.join(outcome.stdout.trim_end());
        assert!(path.exists(), "{words:?}: {outcome:?}");
        path
    }

    /// Makes a model of this shape. The format is GGUF if `out` ends in `.gguf`, otherwise safetensors.
    #[track_caller]
    pub fn synth(&self, shape: &str, dtype: &str, out: &str) -> PathBuf {
        let format = if out.ends_with(".gguf") { "gguf" } else { "safetensors" };
        self.make_model(&["synth", shape, "--dtype", dtype, "--format", format, "--out", out])
    }

    /// The paths of every file, link and folder in this folder, without the data directory `home`.
    pub fn all_paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        walk(&self.path, &mut |path| {
            let name = path.strip_prefix(&self.path).unwrap().to_string_lossy().into_owned();
            paths.push(name);
        });
        paths.retain(|name| !name.starts_with("home"));
        paths.sort();
        paths
    }
}

/// Checks a refusal: this exit code, nothing on stdout, one error with these words.
#[track_caller]
pub fn assert_refused(outcome: &Outcome, code: i32, words: &[&str]) {
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(code), ""), "{outcome:?}");
    let errors = outcome.stderr.lines().filter(|line| line.starts_with("error: ")).count();
    assert_eq!(errors, 1, "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    outcome.assert_stderr(words);
}

/// The content of every file of a folder by its path, or of a single file under an empty path.
pub fn contents(path: &Path) -> BTreeMap<String, Vec<u8>> {
    if path.is_file() {
        return BTreeMap::from([(String::new(), std::fs::read(path).unwrap())]);
    }
    let mut contents = BTreeMap::new();
    walk(path, &mut |file| {
        if file.is_file() {
            let name = file.strip_prefix(path).unwrap().to_string_lossy().into_owned();
            contents.insert(name, std::fs::read(file).unwrap());
        }
    });
    contents
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The weights as numbers, by the safetensors names of the tensors.
pub fn weight_values(model: &Path) -> BTreeMap<String, Vec<f32>> {
    let model = ModelFolder::open(model).unwrap();
    let (specs, weights) = (model.tensor_specs().unwrap(), FileWeights::open(&model).unwrap());
    specs.iter().map(|spec| (spec.name.clone(), weights.values(spec).unwrap())).collect()
}

/// Writes a small model into the hub's cache under `home/hf`, as a pull does.
pub fn write_pulled_model(scratch: &Scratch, repository: &str) -> PathBuf {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let folder = format!("home/hf/hub/models--{}", repository.replace('/', "--"));
    std::fs::create_dir_all(scratch.join(&format!("{folder}/refs"))).unwrap();
    std::fs::write(scratch.join(&format!("{folder}/refs/main")), commit).unwrap();
    scratch.synth("tiny-llama", "bf16", &format!("{folder}/snapshots/{commit}"))
}

pub fn replace_bytes(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let (mut result, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        if bytes[at..].starts_with(old) {
            result.extend(new);
            at += old.len();
        } else {
            result.push(bytes[at]);
            at += 1;
        }
    }
    result
}

pub fn edit_json(path: &Path, edit: impl FnOnce(&mut Map<String, Value>)) {
    let mut value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    edit(value.as_object_mut().unwrap());
    std::fs::write(path, value.to_string()).unwrap();
}

/// Edits the header of a safetensors file.
pub fn edit_header(path: &Path, edit: impl FnOnce(Map<String, Value>) -> Value) {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = edit(serde_json::from_slice(&bytes[8..8 + length]).unwrap());
    std::fs::write(path, with_header(&header, &bytes[8 + length..])).unwrap();
}

/// The bytes of a safetensors file with aligned tensors.
pub fn with_header(header: &Value, tensors: &[u8]) -> Vec<u8> {
    let mut header = header.to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header, tensors].concat()
}

/// The config of a model that is large enough to interrupt its writing or conversion.
pub fn large_config() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16,
        "intermediate_size": 8192, "vocab_size": 2048, "max_position_embeddings": 128, "tie_word_embeddings": true
    })
}

/// Writes a model whose weights are all 0 and take no space on the disk.
pub fn write_sparse_model(folder: &Path, config: &Value) {
    std::fs::create_dir(folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let config = Config::parse(config.to_string().as_bytes(), None).unwrap();
    let specs = Architecture::named("llama").unwrap().tensor_specs(&config).unwrap();
    let (mut header, mut end) = (Map::new(), 0);
    for spec in specs {
        let begin = end;
        end += spec.elements() * 4;
        let entry = json!({ "dtype": "F32", "shape": spec.shape, "data_offsets": [begin, end] });
        header.insert(spec.name, entry);
    }
    let header = with_header(&Value::Object(header), &[]);
    let path = folder.join("model.safetensors");
    std::fs::write(&path, &header).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(header.len() as u64 + end).unwrap();
}

fn walk(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        visit(&entry.path());
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), visit);
        }
    }
}
