//! Builds valid and invalid GGUF files.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::PathBuf;

use model_files::gguf::ValueToWrite;

use crate::tiny::folder;

/// A GGUF file under construction. Numbers of value types: 4 is u32, 5 i32, 6 f32, 8 a text, 9 an array.
pub struct Gguf(pub Vec<u8>);

impl Gguf {
    /// A file that claims these numbers of tensors and of metadata values.
    pub fn begin(version: u32, tensors: u64, values: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(version).u64(tensors).u64(values)
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub fn text(self, text: &str) -> Self {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    pub fn number(self, key: &str, value: u32) -> Self {
        self.text(key).u32(4).u32(value)
    }

    pub fn value(self, key: &str, value: &ValueToWrite) -> Self {
        let file = self.text(key);
        let array = |file: Self, kind: u32, length: usize| file.u32(9).u32(kind).u64(length as u64);
        match value {
            ValueToWrite::U32(value) => file.u32(4).u32(*value),
            ValueToWrite::I32(value) => file.u32(5).bytes(&value.to_le_bytes()),
            ValueToWrite::U64(value) => file.u32(10).u64(*value),
            ValueToWrite::F32(value) => file.u32(6).bytes(&value.to_le_bytes()),
            ValueToWrite::Bool(value) => file.u32(7).bytes(&[u8::from(*value)]),
            ValueToWrite::Text(value) => file.u32(8).text(value),
            ValueToWrite::Texts(values) => values.iter().fold(array(file, 8, values.len()), |f, v| f.text(v)),
            ValueToWrite::I32s(values) => {
                values.iter().fold(array(file, 5, values.len()), |f, v| f.bytes(&v.to_le_bytes()))
            }
            ValueToWrite::F32s(values) => {
                values.iter().fold(array(file, 6, values.len()), |f, v| f.bytes(&v.to_le_bytes()))
            }
        }
    }

    /// The entry of a tensor. Types (`kind`): 0 is F32, 2 Q4_0, 8 Q8_0, 24 I8. The offset counts from the first byte of data.
    pub fn tensor(self, name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Self {
        let shaped = self.text(name).u32(dimensions.len() as u32);
        dimensions.iter().fold(shaped, |file, &size| file.u64(size)).u32(kind).u64(offset)
    }

    /// Pads the header to a multiple of 32 bytes, and adds this many bytes of weights.
    pub fn data(mut self, bytes: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + bytes, 0);
        self
    }

    pub fn write(&self, name: &str) -> PathBuf {
        let path = folder(&format!("gguf-{name}")).join("x.gguf");
        std::fs::write(&path, &self.0).unwrap();
        path
    }
}

/// The smallest model with a tokenizer: a config, these values, and an embedding with a row for each token.
pub fn with_tokenizer(values: &[(String, ValueToWrite)], vocabulary: u32) -> Gguf {
    let config = [
        ("llama.context_length", 512),
        ("llama.embedding_length", 1),
        ("llama.block_count", 1),
        ("llama.attention.head_count", 1),
        ("llama.attention.head_count_kv", 1),
        ("llama.feed_forward_length", 1),
    ];
    let count = (1 + config.len() + values.len()) as u64;
    let file = Gguf::begin(3, 1, count).text("general.architecture").u32(8).text("llama");
    let file = config.iter().fold(file, |file, (key, value)| file.number(key, *value));
    let file = values.iter().fold(file, |file, (key, value)| file.value(key, value));
    file.tensor("token_embd.weight", &[1, u64::from(vocabulary)], 24, 0).data(vocabulary as usize)
}
