//! Checks that all tensors of a config exist, each in its shape.

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::architecture::{Architecture, Layout, Part, longer_name, rope};
use crate::text::shown;
use crate::weights::find;
use crate::{Dtype, Format, ModelFolder, Tensor, detect, ids};

/// Whether a tensor of this name follows from the config, or holds RoPE factors.
fn follows(layout: Layout, architecture: Option<&Architecture>, name: &str) -> bool {
    match layout {
        Layout::HuggingFace => {
            architecture.is_some_and(|it| it.buffers.iter().any(|end| name.ends_with(end)))
        }
        Layout::Gguf => name == rope::FACTORS,
    }
}

impl ModelFolder {
    /// The parts of the model, after a check that each exists in the shape of the config.
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
        // Checked before anything is allocated for each layer.
        ensure!(layers <= held, "{source}: {layers} layers cannot consist of {held} tensors");
        // If the config names the wrong architecture, an error about one field would mislead.
        let parts =
            architecture.parts(&self.config).map_err(|error| match self.mismatch(architecture, &source) {
                Some(mismatch) => anyhow!(mismatch),
                None => error.context(source.clone()),
            })?;
        if let Some(beyond) = ids::beyond(&self.config) {
            bail!("{source}: {beyond}");
        }
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

    /// Tensors that are not in the network of the config and do not follow from the config.
    pub fn unasked(&self, parts: &[Part]) -> Vec<&Tensor> {
        let (known, layout) = (self.names_of(parts), Layout::of(self.format));
        let architecture = Architecture::of(&self.config, layout).ok();
        let tied = self.config.tie_word_embeddings && layout == Layout::HuggingFace;
        let is_unasked = |tensor: &&Tensor| {
            let follows = follows(layout, architecture, &tensor.name);
            // A copy of the embedding as output.
            let again = tied && tensor.name == "lm_head.weight";
            !(follows || again || known.contains(&tensor.name))
        };
        self.tensors.iter().filter(is_unasked).collect()
    }

    /// The message for a part in a dtype that this crate cannot read.
    pub fn unread(&self, parts: &[Part]) -> Option<String> {
        let mut others = self.tensors.iter().filter(|tensor| Dtype::named(tensor.dtype).is_none()).peekable();
        others.peek()?;
        let known = self.names_of(parts);
        others.find(|tensor| known.contains(&tensor.name)).map(|tensor| self.unreadable(tensor))
    }

    pub(crate) fn unreadable(&self, tensor: &Tensor) -> String {
        let (path, name) = (self.weights[tensor.file].display(), shown(&tensor.name));
        format!("`{path}`: tensor `{name}` is {}, which cannot be read here", tensor.dtype)
    }

    /// Every name that a tensor of these parts may have in this format.
    fn names_of(&self, parts: &[Part]) -> HashSet<String> {
        let names = parts.iter().map(|part| part.name_in(Layout::of(self.format)));
        names.flat_map(|name| [Some(name.to_string()), longer_name(name)]).flatten().collect()
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

    fn missing(&self, architecture: &Architecture, name: &str, source: &str) -> String {
        let missing =
            || format!("model `{}`: tensor `{name}` is missing, which {source} asks for", self.name);
        self.mismatch(architecture, source).unwrap_or_else(missing)
    }

    /// The error for tensors of another architecture than the config names.
    fn mismatch(&self, architecture: &Architecture, source: &str) -> Option<String> {
        let names = self.tensors.iter().map(|tensor| tensor.name.as_str());
        let found = detect::family(names);
        let is_own = found.iter().any(|found| found.name == architecture.name);
        let of = found.first().filter(|_| self.format == Format::Safetensors && !is_own)?.name;
        let says = architecture.name;
        Some(format!("model type mismatch: {source} says `{says}`, and its tensors are those of `{of}`"))
    }
}
