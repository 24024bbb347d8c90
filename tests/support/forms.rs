//! The small shapes of `model-files`, each in the formats that engines read.

use std::path::{Path, PathBuf};

use model_files::{
    Architecture, Dtype, Format, Goal, ModelFolder, SHAPES, Shape, Tokenizer, convert, embedded, synthesise,
};

use super::Scratch;

/// All shapes that are small enough for a test.
pub fn tiny() -> Vec<Shape> {
    let names = SHAPES.iter().map(|(name, _)| *name).filter(|name| name.starts_with("tiny-"));
    names.map(|name| Shape::named(name).unwrap()).collect()
}

pub fn architecture_of(shape: &Shape) -> &'static Architecture {
    let name = shape.config["model_type"].as_str().unwrap();
    Architecture::named(name).unwrap_or_else(|| panic!("{}: no architecture `{name}`", shape.name))
}

/// A shape's model on disk. Each format is made at its first use.
pub struct Forms<'a> {
    shape: &'a Shape,
    folder: PathBuf,
}

impl<'a> Forms<'a> {
    pub fn of(shape: &'a Shape, scratch: &Scratch) -> Self {
        Self { shape, folder: scratch.join("models").join(&shape.name) }
    }

    /// A folder of safetensors, synthesised.
    pub fn safetensors(&self, dtype: &str) -> PathBuf {
        let goal = self.goal(Format::Safetensors, dtype, &format!("safetensors-{dtype}"));
        if !goal.out.exists() {
            synthesise(self.shape, SEED, &goal, &|_, _| Ok(())).unwrap();
        }
        goal.out
    }

    /// A GGUF file, converted, without a `tokenizer.json` beside it.
    pub fn gguf(&self, dtype: &str) -> PathBuf {
        let from = if dtype == "bf16" { dtype } else { "f32" };
        let goal = self.goal(Format::Gguf, dtype, &format!("{dtype}.gguf"));
        converted(&self.safetensors(from), goal)
    }

    /// The numbers of a GGUF file as safetensors in f32.
    pub fn widened(&self, dtype: &str) -> PathBuf {
        let goal = self.goal(Format::Safetensors, "f32", &format!("widened-{dtype}"));
        converted(&self.gguf(dtype), goal)
    }

    pub fn tokenizer(&self) -> Tokenizer {
        ModelFolder::open(self.safetensors("f32")).unwrap().tokenizer().unwrap()
    }

    /// Ids of a text that people wrote.
    pub fn ids(&self, count: usize) -> Vec<u32> {
        let text = embedded::heldout_text().unwrap();
        let start: String = text.chars().take(40 * count).collect();
        let mut ids = self.tokenizer().encode(&start).unwrap();
        assert!(ids.len() >= count);
        ids.truncate(count);
        ids
    }

    fn goal(&self, format: Format, dtype: &str, name: &str) -> Goal {
        Goal { format, dtype: Dtype::named(dtype).unwrap(), out: self.folder.join(name) }
    }
}

fn converted(from: &Path, goal: Goal) -> PathBuf {
    if !goal.out.exists() {
        convert(&ModelFolder::open(from).unwrap(), &goal, &|_, _| Ok(())).unwrap();
    }
    goal.out
}

const SEED: u64 = 0;
