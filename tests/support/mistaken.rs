//! Models with one mistake, and an engine that always loads such a model: a stand-in for an engine that reads a model wrongly.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Scratch, write_program};

/// A model folder to be changed and written elsewhere.
pub struct Copy {
    from: PathBuf,
    pub config: Value,
    header: Value,
    numbers: Vec<u8>,
}

impl Copy {
    pub fn of(folder: &Path) -> Self {
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let weights = std::fs::read(folder.join("model.safetensors")).unwrap();
        let (size, rest) = weights.split_at(8);
        let (header, numbers) = rest.split_at(u64::from_le_bytes(size.try_into().unwrap()) as usize);
        let header = serde_json::from_slice(header).unwrap();
        Self { from: folder.into(), config, header, numbers: numbers.into() }
    }

    /// Reverses the rows of every matrix of one layer.
    pub fn with_layer_permuted(mut self, layer: u32) -> Self {
        let begins = format!("model.layers.{layer}.");
        let tensors = self.header.as_object().unwrap().clone();
        let matrices = tensors.iter().filter(|(name, _)| name.starts_with(&begins));
        let mut permuted = 0;
        for (_, tensor) in matrices.filter(|(_, it)| it["shape"].as_array().unwrap().len() == 2) {
            let whole = |value: &Value| value.as_u64().unwrap() as usize;
            let (start, end) = (whole(&tensor["data_offsets"][0]), whole(&tensor["data_offsets"][1]));
            let row = (end - start) / whole(&tensor["shape"][0]);
            let rows: Vec<Vec<u8>> = self.numbers[start..end].chunks(row).map(<[u8]>::to_vec).collect();
            self.numbers[start..end].copy_from_slice(&rows.into_iter().rev().collect::<Vec<_>>().concat());
            permuted += 1;
        }
        assert_eq!(permuted, 7);
        self
    }

    /// Adds Llama 3's scaling of rotations, for texts longer than `original`.
    pub fn with_rope_scaling(mut self, original: u32) -> Self {
        self.config["rope_scaling"] = json!({
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": original,
        });
        self
    }

    pub fn write(&self, to: &Path) -> PathBuf {
        std::fs::create_dir_all(to).unwrap();
        for file in std::fs::read_dir(&self.from).unwrap().flatten() {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
        std::fs::write(to.join("config.json"), self.config.to_string()).unwrap();
        let mut header = self.header.to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let weights = [&(header.len() as u64).to_le_bytes()[..], &header, &self.numbers].concat();
        std::fs::write(to.join("model.safetensors"), weights).unwrap();
        to.into()
    }
}

/// A program called `name`: it is `engine`, but always loads `model`.
pub fn loads_another(scratch: &Scratch, name: &str, engine: &Path, model: &Path) -> PathBuf {
    let script = include_str!("loads-another.py")
        .replace("@ENGINE@", &engine.to_string_lossy())
        .replace("@MODEL@", &model.to_string_lossy());
    let path = scratch.join(name);
    write_program(&path, &script);
    path
}
