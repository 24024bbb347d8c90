//! GGUF headers, told and lying.
#![expect(clippy::unwrap_used, reason = "tests panic and print")]

mod tiny;

use model_files::gguf::{self, Value, read_header};
use model_files::{Format, ModelFolder};
use tiny::folder;

/// A file in the making.
struct Gguf(Vec<u8>);

impl Gguf {
    fn begin(version: u32, tensors: u64, values: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(version).u64(tensors).u64(values)
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn text(mut self, text: &str) -> Self {
        self = self.u64(text.len() as u64);
        self.0.extend(text.as_bytes());
        self
    }

    fn number(self, key: &str, value: u32) -> Self {
        self.text(key).u32(4).u32(value)
    }

    fn tensor(self, name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Self {
        let shaped = self.text(name).u32(dimensions.len() as u32);
        dimensions.iter().fold(shaped, |file, &size| file.u64(size)).u32(kind).u64(offset)
    }

    fn data(mut self, bytes: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + bytes, 0);
        self
    }

    fn write(&self, name: &str) -> std::path::PathBuf {
        let path = folder(&format!("gguf-{name}")).join("x.gguf");
        std::fs::write(&path, &self.0).unwrap();
        path
    }

    fn refusal(self, name: &str) -> String {
        let refused = format!("{:#}", read_header(&self.write(name), 0).unwrap_err());
        assert!(refused.contains("x.gguf"), "no file in: {refused}");
        refused
    }
}

fn llama() -> Gguf {
    let values = Gguf::begin(3, 2, 9).text("general.architecture").u32(8).text("llama");
    let numbers = [
        ("llama.context_length", 512),
        ("llama.embedding_length", 64),
        ("llama.block_count", 3),
        ("llama.attention.head_count", 4),
        ("llama.attention.head_count_kv", 2),
        ("tokenizer.ggml.bos_token_id", 1),
        ("tokenizer.ggml.eos_token_id", 2),
    ];
    let values = numbers.iter().fold(values, |file, (key, value)| file.number(key, *value));
    let words = values.text("tokenizer.ggml.tokens").u32(9).u32(8).u64(3).text("a").text("b").text("");
    words.tensor("token_embd.weight", &[64, 3], 8, 0).tensor("norm", &[5], 0, 224).data(256)
}

#[test]
fn a_gguf_file_tells_its_config_and_its_tensors() {
    let path = llama().write("good");
    let header = read_header(&path, 0).unwrap();
    assert_eq!(header.version, 3);
    assert_eq!(header.metadata["tokenizer.ggml.tokens"], Value::Array { length: 3 });
    let opened = ModelFolder::open(&path).unwrap();
    assert_eq!((opened.format, opened.name.as_str()), (Format::Gguf, "x"));
    assert_eq!((opened.parameters(), opened.weights_bytes()), (192 + 5, 192 / 32 * 34 + 20));
    assert_eq!(opened.tensors[0].shape, [3, 64], "outermost first");
    let config = &opened.config;
    assert_eq!((config.layers, config.head_dim, config.kv_heads, config.vocabulary_size), (3, 16, 2, 3));
    assert_eq!(
        (config.context_tokens, config.bos_id, config.eos_ids.as_slice()),
        (Some(512), Some(1), [2].as_slice())
    );
    assert!(config.tie_word_embeddings, "there is no output matrix");
    // The folder of the file is the same model.
    assert_eq!(ModelFolder::open(path.parent().unwrap()).unwrap().parameters(), 197);
    assert!(opened.tokenizer().unwrap_err().to_string().contains("no `tokenizer.json`"));
}

#[test]
fn what_is_not_gguf_of_a_known_version_is_refused() {
    assert!(Gguf(b"GGML1234".to_vec()).refusal("magic").contains("not a GGUF file: it begins with `GGML`"));
    assert!(Gguf(b"GG".to_vec()).refusal("two").contains("claims 4 bytes, and 2 are left"));
    assert!(Gguf::begin(1, 0, 0).refusal("one").contains("GGUF version 1 is not supported"));
    assert!(Gguf::begin(3_u32.swap_bytes(), 0, 0).refusal("big").contains("big-endian"));
}

#[test]
fn counts_that_the_file_cannot_hold_are_refused_before_anything_loops_over_them() {
    assert!(Gguf::begin(3, u64::MAX, 0).refusal("tensors").contains("claims 18446744073709551615 tensors"));
    assert!(
        Gguf::begin(3, 0, 1 << 40)
            .refusal("values")
            .contains("claims 1099511627776 metadata values, and 0 bytes")
    );
    let text = Gguf::begin(3, 0, 1).u64(u64::MAX).u32(0).u32(0);
    assert!(text.refusal("key").contains("key of metadata value 0: claims 18446744073709551615 bytes"));
    let array = Gguf::begin(3, 0, 1).text("list").u32(9).u32(4).u64(u64::MAX / 2);
    assert!(array.refusal("array").contains("metadata `list`: claims 9223372036854775807 array elements"));
    let texts = Gguf::begin(3, 0, 1).text("list").u32(9).u32(8).u64(1).u64(99);
    assert!(texts.refusal("texts").contains("claims 99 bytes, and 0 are left"));
}

#[test]
fn arrays_of_arrays_end_at_a_depth_that_is_not_the_files_to_choose() {
    let nested = (0..1000).fold(Gguf::begin(3, 0, 1).text("deep").u32(9), |file, _| file.u32(9).u64(1));
    assert!(nested.refusal("deep").contains("nested deeper"));
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let one = |dimensions: &[u64], kind, offset| {
        Gguf::begin(3, 1, 0).tensor("t", dimensions, kind, offset).data(64)
    };
    assert!(
        one(&[64], 0, 0)
            .refusal("beyond")
            .contains("tensor `t`: 256 bytes at 0 of the data, and the file holds 64")
    );
    assert!(one(&[1], 0, u64::MAX).refusal("offset").contains("tensor `t`: 4 bytes at 18446744073709551615"));
    assert!(one(&[u64::MAX, 2], 0, 0).refusal("overflow").contains("tensor `t`: shape"));
    assert!(one(&[1], 77, 0).refusal("type").contains("tensor `t`: unknown type 77"));
    assert!(one(&[33], 2, 0).refusal("block").contains("rows of 33 do not divide into blocks of 32 (Q4_0)"));
    assert!(one(&[1; 9], 0, 0).refusal("dimensions").contains("claims 9 dimensions"));
}

#[test]
fn every_cut_of_a_good_file_is_refused_and_none_panics() {
    let whole = llama().0;
    let path = folder("gguf-cuts").join("x.gguf");
    for cut in 0..whole.len() - 32 {
        std::fs::write(&path, &whole[..cut]).unwrap();
        assert!(gguf::read_header(&path, 0).is_err(), "cut at {cut} of {}", whole.len());
    }
}
