//! Are all tensors there that a config asks for, each in its shape?

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::architecture::{Architecture, Layout, Part, rope};
use crate::weights::find;
use crate::{Format, ModelFolder, Tensor, detect};

impl ModelFolder {
    /// The parts that the model consists of, each of which is there in the shape that the config gives it.
    pub fn parts(&self) -> Result<Vec<Part>> {
        let (layout, source) = (Layout::of(self.format), self.config_source());
        let architecture = self.architecture()?;
        let pieces = self.config.raw.get("split.count").and_then(Value::as_u64).unwrap_or(1);
        ensure!(
            self.format != Format::Gguf || pieces <= 1,
            "`{}`: one of the {pieces} pieces of a model, and pieces of GGUF are not read here\n\
             hint: llama-gguf-split --merge joins them",
            self.weights.first().unwrap_or(&self.path).display()
        );
        let (layers, held) = (self.config.layers as usize, self.tensors.len());
        // Before anything is made for each of them.
        ensure!(layers <= held, "{source}: {layers} layers cannot consist of {held} tensors");
        let parts = architecture.parts(&self.config).with_context(|| source.clone())?;
        let beyond = self.config.eos_ids.iter().chain(&self.config.bos_id);
        let beyond = beyond.copied().find(|id| *id >= self.config.vocabulary_size);
        ensure!(
            beyond.is_none(),
            "{source}: id {} begins or ends a text, and the vocabulary has {}",
            beyond.unwrap_or_default(),
            self.config.vocabulary_size
        );
        rope::llama3(&self.config).with_context(|| source.clone())?;
        let tensors: HashMap<String, &Tensor> =
            self.tensors.iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        for part in &parts {
            let name = part.name_in(layout);
            let tensor = find(&tensors, name).with_context(|| self.missing(architecture, name, &source))?;
            let expected = part.shape_in(layout);
            ensure!(
                tensor.shape == expected,
                "model `{}`: tensor `{}` has the shape {:?} in `{}`, and {source} asks for {expected:?}",
                self.name,
                tensor.name,
                tensor.shape,
                self.weights[tensor.file].display()
            );
        }
        Ok(parts)
    }

    /// What the config was read from, for messages.
    fn config_source(&self) -> String {
        match self.format {
            Format::Safetensors => format!("`{}`", self.folder().join("config.json").display()),
            Format::Gguf => {
                format!("the metadata of `{}`", self.weights.first().unwrap_or(&self.path).display())
            }
        }
    }

    /// The tensors may be those of another architecture than the config names.
    fn missing(&self, architecture: &Architecture, name: &str, source: &str) -> String {
        let names = self.tensors.iter().map(|tensor| tensor.name.as_str());
        let found = detect::family(names).filter(|_| self.format == Format::Safetensors);
        match found.filter(|found| !found.contains(&architecture.name)) {
            Some(found) => format!(
                "model type mismatch: {source} says `{}`, and its tensors are those of `{}`",
                architecture.name, found[0]
            ),
            None => format!("model `{}`: tensor `{name}` is missing, which {source} asks for", self.name),
        }
    }
}
