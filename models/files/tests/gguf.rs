//! Tests valid and invalid GGUF headers.
#![expect(clippy::unwrap_used, reason = "tests panic and print")]

mod gguf_file;
mod tiny;

use std::path::PathBuf;

use gguf_file::Gguf;
use model_files::gguf::{self, Value, ValueToWrite, read_header};
use model_files::{Format, ModelFolder};
use tiny::folder;

fn error_of(file: Gguf, name: &str) -> String {
    let error = format!("{:#}", read_header(&file.write(name), 0).unwrap_err());
    assert!(error.contains("x.gguf"), "no file in: {error}");
    error
}

fn llama() -> Gguf {
    let file = Gguf::begin(3, 2, 9).text("general.architecture").u32(8).text("llama");
    let numbers = [
        ("llama.context_length", 512),
        ("llama.embedding_length", 64),
        ("llama.block_count", 3),
        ("llama.attention.head_count", 4),
        ("llama.attention.head_count_kv", 2),
        ("tokenizer.ggml.bos_token_id", 1),
        ("tokenizer.ggml.eos_token_id", 2),
    ];
    let file = numbers.iter().fold(file, |file, (key, value)| file.number(key, *value));
    let file = file.text("tokenizer.ggml.tokens").u32(9).u32(8).u64(3).text("a").text("b").text("");
    file.tensor("token_embd.weight", &[64, 3], 8, 0).tensor("norm", &[5], 0, 224).data(256)
}

#[test]
fn a_gguf_file_has_its_config_and_its_tensors() {
    let path = llama().write("good");
    let header = read_header(&path, 0).unwrap();
    assert_eq!(header.version, 3);
    let tokens = offset_of(&llama().0, &[1, 0, 0, 0, 0, 0, 0, 0, b'a', 1, 0, 0, 0, 0, 0, 0, 0, b'b']);
    assert_eq!(header.metadata["tokenizer.ggml.tokens"], Value::Array { kind: 8, length: 3, offset: tokens });
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
    // The path of the file's folder opens the same model.
    assert_eq!(ModelFolder::open(path.parent().unwrap()).unwrap().parameters(), 197);
    assert!(opened.tokenizer().unwrap_err().to_string().contains("no `tokenizer.json`"));
}

#[test]
fn a_file_that_is_not_gguf_of_a_known_version_is_refused() {
    assert!(error_of(Gguf(b"GGML1234".to_vec()), "magic").contains("not a GGUF file: it begins with `GGML`"));
    let short = error_of(Gguf(b"GG".to_vec()), "two");
    assert!(
        short.contains("not a GGUF file: the file ends here: 4 bytes are needed, and 2 are left"),
        "{short}"
    );
    assert!(error_of(Gguf::begin(1, 0, 0), "one").contains("GGUF version 1 is not supported"));
    assert!(error_of(Gguf::begin(3_u32.swap_bytes(), 0, 0), "big").contains("big-endian"));
}

#[test]
fn counts_beyond_the_file_are_refused_before_a_loop_uses_them() {
    assert!(error_of(Gguf::begin(3, u64::MAX, 0), "tensors").contains("claims 18446744073709551615 tensors"));
    assert!(
        error_of(Gguf::begin(3, 0, 1 << 40), "values")
            .contains("claims 1099511627776 metadata values, and 0 bytes")
    );
    let text = Gguf::begin(3, 0, 1).u64(u64::MAX).u32(0).u32(0);
    assert!(error_of(text, "key").contains("key of metadata value 0: claims 18446744073709551615 bytes"));
    let array = Gguf::begin(3, 0, 1).text("list").u32(9).u32(4).u64(u64::MAX / 2);
    assert!(error_of(array, "array").contains("metadata `list`: claims 9223372036854775807 array elements"));
    let texts = Gguf::begin(3, 0, 1).text("list").u32(9).u32(8).u64(1).u64(99);
    assert!(error_of(texts, "texts").contains("metadata `list`: text 0: claims 99 bytes, and 0 are left"));
}

/// Writes the file and extends it to 2^41 bytes. It is sparse: only a few hundred bytes are on disk.
fn sparse(file: Gguf, name: &str) -> PathBuf {
    let path = file.write(name);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 41).unwrap();
    path
}

#[test]
fn an_error_about_a_text_beyond_the_limit_names_the_text() {
    let begin = |tensors, values| Gguf::begin(3, tensors, values);
    let huge = 1_u64 << 40;
    let (key_limit, limit) = (65_535, 1_u64 << 27);
    let claim = |bytes: u64, limit: u64| format!("claims a text of {bytes} bytes, and the limit is {limit}");
    for (file, expected) in [
        (begin(0, 1).u64(huge), format!("key of metadata value 0: {}", claim(huge, key_limit))),
        (begin(0, 1).u64(65_536), format!("key of metadata value 0: {}", claim(65_536, key_limit))),
        (begin(1, 0).u64(huge), format!("name of tensor 0: {}", claim(huge, key_limit))),
        (begin(0, 1).text("chat").u32(8).u64(huge), format!("metadata `chat`: {}", claim(huge, limit))),
        (
            begin(0, 1).text("chat").u32(8).u64(limit + 1),
            format!("metadata `chat`: {}", claim(limit + 1, limit)),
        ),
        // The text is at the limit; text and key together are above it.
        (begin(0, 1).text("chat").u32(8).u64(limit), "metadata `chat`: all texts together exceed".into()),
    ] {
        let error = format!("{:#}", read_header(&sparse(file, "texts"), 0).unwrap_err());
        assert!(error.contains(&expected) && error.contains("x.gguf"), "{error}");
    }
    let allowed = Gguf::begin(3, 0, 1).text(&"k".repeat(65_535)).u32(8).text(&"t".repeat(1 << 20));
    assert_eq!(read_header(&allowed.write("long"), 0).unwrap().metadata.len(), 1);
}

#[test]
fn an_error_about_an_array_beyond_the_limit_names_its_key() {
    for (kind, length) in [(6, 1 << 30), (5, 1 << 38), (6, (1 << 24) + 1)] {
        let path = sparse(Gguf::begin(3, 0, 1).text("list").u32(9).u32(kind).u64(length), "arrays-sparse");
        let header = read_header(&path, 0).unwrap();
        let error = match kind {
            6 => gguf::read_f32s(&path, &header, "list").unwrap_err(),
            _ => gguf::read_i32s(&path, &header, "list").unwrap_err(),
        };
        let expected = format!("metadata `list`: claims {length} array elements, and the limit is 16777216");
        assert!(format!("{error:#}").contains(&expected), "{error:#}");
    }
    // One text has a false length; the header's reader skips the elements.
    let texts = Gguf::begin(3, 0, 1).text("list").u32(9).u32(8).u64(2).text("a").u64(1 << 40);
    let path = sparse(texts, "array-text");
    let header = read_header(&path, 0).unwrap();
    let error = format!("{:#}", gguf::read_texts(&path, &header, "list").unwrap_err());
    assert!(error.contains("metadata `list`: text 1: claims a text of 1099511627776 bytes"), "{error}");
}

fn offset_of(file: &[u8], bytes: &[u8]) -> u64 {
    file.windows(bytes.len()).position(|window| window == bytes).unwrap() as u64
}

#[test]
fn the_elements_of_an_array_are_read_on_demand() {
    let texts = ["", "a", "Ġb", "🙂"].map(String::from).to_vec();
    let file = Gguf::begin(3, 0, 4)
        .value("texts", &ValueToWrite::Texts(texts.clone()))
        .value("floats", &ValueToWrite::F32s(vec![-1.5, f32::MAX]))
        .value("whole", &ValueToWrite::I32s(vec![i32::MIN, 7]));
    let path = file.text("broken").u32(9).u32(8).u64(1).u64(1).bytes(&[0xff]).write("arrays");
    let header = read_header(&path, 0).unwrap();
    assert_eq!(gguf::read_texts(&path, &header, "texts").unwrap(), texts);
    assert_eq!(gguf::read_f32s(&path, &header, "floats").unwrap(), [-1.5, f32::MAX]);
    assert_eq!(gguf::read_i32s(&path, &header, "whole").unwrap(), [i32::MIN, 7]);
    let message = |error: anyhow::Error| format!("{error:#}");
    let broken = message(gguf::read_texts(&path, &header, "broken").unwrap_err());
    assert!(broken.contains("metadata `broken`: text 0: invalid utf-8"), "{broken}");
    let kind = message(gguf::read_i32s(&path, &header, "floats").unwrap_err());
    assert!(kind.contains("metadata `floats`: expected an array of i32 (type 5), found type 6"), "{kind}");
    assert!(
        message(gguf::read_f32s(&path, &header, "none").unwrap_err()).contains("`none`: this key is missing")
    );
    // The file shrinks after its header was read.
    std::fs::write(&path, file_start(&path, 60)).unwrap();
    assert!(message(gguf::read_texts(&path, &header, "texts").unwrap_err()).contains("are left"));
}

fn file_start(path: &std::path::Path, bytes: usize) -> Vec<u8> {
    std::fs::read(path).unwrap()[..bytes].to_vec()
}

#[test]
fn duplicate_names_and_overlapping_tensors_are_refused() {
    let twice = Gguf::begin(3, 2, 0).tensor("t", &[4], 0, 0).tensor("t", &[4], 0, 32).data(64);
    assert!(error_of(twice, "twice").contains("tensor `t` occurs twice"));
    let key = Gguf::begin(3, 0, 2).number("k", 1).number("k", 2);
    assert!(error_of(key, "key-twice").contains("metadata `k` occurs twice"));
    let overlapping = Gguf::begin(3, 2, 0).tensor("b", &[4], 0, 32).tensor("a", &[9], 0, 0).data(64);
    assert!(error_of(overlapping, "overlap").contains("tensors `a` and `b` overlap"));
    let side_by_side = Gguf::begin(3, 2, 0).tensor("b", &[4], 0, 32).tensor("a", &[8], 0, 0).data(64);
    assert_eq!(read_header(&side_by_side.write("beside"), 0).unwrap().tensors.len(), 2);
}

#[test]
fn arrays_of_arrays_and_of_unknown_types_are_refused() {
    let nested = Gguf::begin(3, 0, 1).text("list").u32(9).u32(9).u64(1).u32(9).u32(4).u64(0);
    assert!(error_of(nested, "nested").contains("metadata `list`: an array of arrays is not supported"));
    let unknown = Gguf::begin(3, 0, 1).text("list").u32(9).u32(77).u64(1).u64(0);
    assert!(error_of(unknown, "unknown").contains("metadata `list`: array of unknown value type 77"));
}

#[test]
fn deeply_nested_arrays_are_refused_at_the_first_level() {
    let nested = (0..1000).fold(Gguf::begin(3, 0, 1).text("deep").u32(9), |file, _| file.u32(9).u64(1));
    assert!(error_of(nested, "deep").contains("an array of arrays is not supported"));
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let file = |dimensions: &[u64], kind, offset| {
        Gguf::begin(3, 1, 0).tensor("t", dimensions, kind, offset).data(64)
    };
    assert!(
        error_of(file(&[64], 0, 0), "beyond")
            .contains("tensor `t`: 256 bytes at offset 0 of the data, which has 64 bytes")
    );
    assert!(
        error_of(file(&[1], 0, u64::MAX), "offset")
            .contains("tensor `t`: 4 bytes at offset 18446744073709551615")
    );
    assert!(error_of(file(&[u64::MAX, 2], 0, 0), "overflow").contains("tensor `t`: shape"));
    assert!(error_of(file(&[1], 77, 0), "type").contains("tensor `t`: unknown type 77"));
    assert!(
        error_of(file(&[33], 2, 0), "block")
            .contains("rows of 33 numbers do not divide into blocks of 32 (Q4_0)")
    );
    assert!(error_of(file(&[1; 9], 0, 0), "dimensions").contains("claims 9 dimensions"));
}

#[test]
fn a_dimension_of_zero_does_not_hide_an_overflow() {
    let huge = [0, 1 << 63, 2];
    let error = error_of(Gguf::begin(3, 1, 0).tensor("t", &huge, 0, 0).data(64), "zero");
    assert!(error.contains("tensor `t`: shape [0, 9223372036854775808, 2] overflows"), "{error}");
}

#[test]
fn the_offset_of_an_empty_tensor_is_within_the_file() {
    let path = Gguf::begin(3, 1, 0).tensor("t", &[0], 0, 0).write("empty");
    let header = read_header(&path, 0).unwrap();
    assert!(header.tensors[0].offset <= std::fs::metadata(&path).unwrap().len(), "{:?}", header.tensors[0]);
}

#[test]
fn a_name_from_a_file_is_escaped_for_a_terminal() {
    let error = error_of(Gguf::begin(3, 1, 0).tensor("\u{1b}[2J", &[64], 0, 0).data(64), "escape");
    assert!(error.contains("tensor `\\u{1b}[2J`: 256 bytes"), "{error}");
}

/// The message of the error for a Llama model with this metadata value.
fn error_with_value(key: &str, value: ValueToWrite) -> String {
    let file = Gguf::begin(3, 0, 6).text("general.architecture").u32(8).text("llama");
    let file = [("embedding_length", 64), ("block_count", 3), ("attention.head_count", 4), ("vocab_size", 9)]
        .iter()
        .fold(file, |file, (key, value)| file.number(&format!("llama.{key}"), *value));
    let error = ModelFolder::open(file.value(key, &value).write("value")).unwrap_err();
    format!("{error:#}")
}

#[test]
fn an_error_about_nan_or_infinity_names_its_key() {
    for key in ["rope.freq_base", "attention.layer_norm_rms_epsilon", "rope.scaling.factor", "anything"] {
        for (number, found) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
            let error = error_with_value(&format!("llama.{key}"), ValueToWrite::F32(number));
            let expected = format!("x.gguf`: metadata `llama.{key}`: expected a number, found `{found}`");
            assert!(error.ends_with(&expected), "{error}");
        }
    }
}

#[test]
fn an_error_about_an_invalid_value_names_the_expected_and_the_found_value() {
    let text = |text: &str| ValueToWrite::Text(text.into());
    for (key, value, expected) in [
        ("llama.context_length", text("\u{1b}[2J"), "a whole number of 32 bits, found `\"\\u{1b}[2J\"`"),
        ("llama.context_length", ValueToWrite::F32(512.0), "a whole number of 32 bits, found `512.0`"),
        ("llama.context_length", ValueToWrite::I32(-2), "a whole number of 32 bits, found `-2`"),
        ("llama.rope.freq_base", ValueToWrite::U32(10_000), "a number with a fraction, found `10000`"),
        (
            "llama.rope.freq_base",
            ValueToWrite::F32(-1.0),
            "a number above 0 in the range of f32, found `-1.0`",
        ),
        ("general.alignment", text("32"), "a number of bytes from 1 to 1048576, found `\"32\"`"),
        ("general.alignment", ValueToWrite::U32(0), "a number of bytes from 1 to 1048576, found `0`"),
    ] {
        let error = error_with_value(key, value);
        let name = key.strip_prefix("llama.").unwrap_or(key);
        assert!(error.contains(&format!("{name}`: expected ")) && error.ends_with(expected), "{error}");
    }
    let nameless = Gguf::begin(3, 0, 1).number("general.architecture", 1).write("nameless");
    let error = format!("{:#}", ModelFolder::open(nameless).unwrap_err());
    assert!(error.ends_with("`general.architecture`: expected a text, found `1`"), "{error}");
}

#[test]
fn the_error_about_every_truncated_file_names_the_incomplete_item() {
    let whole = llama().0;
    let path = folder("gguf-cuts").join("x.gguf");
    let names = [
        "not a GGUF file",
        "version",
        "number of tensors",
        "number of metadata values",
        "claims 2 tensors",
        "claims 9 metadata values",
    ];
    // The last 12 bytes belong to no tensor, so the file is complete without them.
    for cut in 0..whole.len() - 12 {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let error = format!("{:#}", gguf::read_header(&path, 0).unwrap_err());
        let has_name = error.contains("metadata `") || error.contains("tensor `");
        let has_number = error.contains("key of metadata value ") || error.contains("name of tensor ");
        // The counts are checked first: they need 24 bytes, and 9 metadata values of 13 bytes or more.
        let is_in_counts = cut < 24 + 9 * 13 && names.iter().any(|name| error.contains(name));
        assert!(has_name || has_number || is_in_counts, "cut at {cut} of {}: {error}", whole.len());
    }
}

#[test]
fn an_error_about_a_truncated_header_names_the_incomplete_item() {
    let value = || Gguf::begin(3, 0, 1).text("general.list");
    let tensor = || Gguf::begin(3, 1, 0).text("token_embd.weight").u32(2);
    for (file, expected) in [
        (Gguf(b"GGUF".to_vec()), "version: the file ends here: 4 bytes are needed, and 0 are left"),
        (Gguf(b"GGUF".to_vec()).u32(3).u32(0), "number of tensors: the file ends here: 8 bytes"),
        (value(), "metadata `general.list`: type: the file ends here"),
        (value().u32(9).u32(4).u32(0), "metadata `general.list`: length: the file ends here"),
        (value().u32(9).u32(8).u64(2).text("a").u64(1), "metadata `general.list`: text 1: claims 1 bytes"),
        (tensor().u32(0), "tensor `token_embd.weight`: dimension 0: the file ends here"),
        (tensor().u64(1).u32(0), "tensor `token_embd.weight`: dimension 1: the file ends here"),
        (tensor().u64(1).u64(1), "tensor `token_embd.weight`: type: the file ends here"),
        (tensor().u64(1).u64(1).u32(0).u32(0), "tensor `token_embd.weight`: offset: the file ends here"),
    ] {
        let error = error_of(file, "within");
        assert!(error.contains(expected), "{error}");
    }
}
