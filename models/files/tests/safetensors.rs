//! Tests valid and invalid safetensors headers. An error names the file, and comes before any allocation of a false size.
#![expect(clippy::unwrap_used, reason = "tests panic and print")]

mod tiny;

use model_files::safetensors::{parse_header, read_header};
use tiny::{folder, safetensors, safetensors_with};

fn error_of(name: &str, bytes: &[u8]) -> String {
    let path = folder(&format!("header-{name}")).join("x.safetensors");
    std::fs::write(&path, bytes).unwrap();
    let error = format!("{:#}", read_header(&path, 0).unwrap_err());
    assert!(error.contains("x.safetensors"), "no file in: {error}");
    error
}

fn tensor_error(name: &str, entry: &str, data_bytes: u64) -> String {
    error_of(name, &safetensors_with(&format!(r#"{{"t":{entry}}}"#), data_bytes))
}

#[test]
fn each_tensor_has_its_offset_in_the_file() {
    let path = folder("header-good").join("x.safetensors");
    std::fs::write(
        &path,
        safetensors(&[("a", "BF16", vec![2, 3], 12), ("b", "F32", vec![], 4), ("c", "I8", vec![0], 0)]),
    )
    .unwrap();
    let tensors = read_header(&path, 7).unwrap();
    let start = std::fs::metadata(&path).unwrap().len() - 16;
    let found: Vec<_> =
        tensors.iter().map(|t| (t.name.as_str(), t.elements(), t.file, t.offset, t.bytes)).collect();
    assert_eq!(found, [("a", 6, 7, start, 12), ("b", 1, 7, start + 12, 4), ("c", 0, 7, start + 16, 0)]);
}

#[test]
fn a_header_longer_than_the_file_is_refused() {
    assert!(error_of("short", b"1234567").contains("7 bytes are too few"));
    assert!(
        error_of("long", &u64::MAX.to_le_bytes())
            .contains("claims 18446744073709551615 bytes, and the file holds 0")
    );
    let cut = &safetensors(&[("t", "F32", vec![1], 4)])[..20];
    assert!(error_of("cut", cut).contains("the file holds 12 after the first 8"));
}

#[test]
fn a_header_that_is_not_an_object_of_tensors_is_refused() {
    assert!(error_of("list", &safetensors_with("[1]", 0)).contains("expected an object of tensors"));
    assert!(error_of("utf8", &safetensors_with("{\"\u{fffd}", 0)).contains("header"));
    assert!(tensor_error("nothing", "{}", 0).contains("missing field"));
    assert!(
        tensor_error("negative", r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#, 4)
            .contains("invalid value")
    );
    let deep = format!(r#"{{"t":{}1{}}}"#, "[".repeat(9000), "]".repeat(9000));
    assert!(error_of("deep", &safetensors_with(&deep, 0)).contains("header"));
}

#[test]
fn an_error_about_a_shape_or_offset_that_does_not_fit_names_the_tensor() {
    for (name, entry, expected) in [
        (
            "outside",
            r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#,
            "tensor `t`: the file is truncated: the tensor ends at byte 8 of the data, which has 4",
        ),
        (
            "backwards",
            r#"{"dtype":"F32","shape":[1],"data_offsets":[4,0]}"#,
            "tensor `t`: its first offset, 4, is above its second, 0",
        ),
        (
            "size",
            r#"{"dtype":"F32","shape":[2],"data_offsets":[0,4]}"#,
            "tensor `t`: shape [2] of F32 does not fill the 4 bytes",
        ),
        (
            "half",
            r#"{"dtype":"F4","shape":[3],"data_offsets":[0,4]}"#,
            "tensor `t`: shape [3] of F4 does not fill",
        ),
        (
            "overflow",
            r#"{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}"#,
            "does not fill the 0 bytes",
        ),
        ("dtype", r#"{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}"#, "tensor `t`: unknown dtype `Q9`"),
    ] {
        let error = tensor_error(name, entry, 4);
        assert!(error.contains(expected), "{name}: {error}");
    }
}

#[test]
fn a_name_from_a_header_is_escaped_for_a_terminal() {
    let header = r#"{"\u001b[2J":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#;
    let error = error_of("escape", &safetensors_with(header, 4));
    assert!(error.contains("tensor `\\u{1b}[2J`: shape"), "{error}");
}

#[test]
fn a_file_that_ends_within_its_header_is_refused() {
    let truncated = [99_000_000_u64.to_le_bytes().as_slice(), b"{}"].concat();
    let error = parse_header(truncated.as_slice(), 1 << 40, 0).unwrap_err();
    assert!(error.to_string().contains("the file ends within its header"), "{error}");
}

#[test]
fn bytes_that_belong_to_two_tensors_or_to_no_tensor_are_refused() {
    let entry = |from: u64, to: u64| {
        format!(r#"{{"dtype":"U8","shape":[{}],"data_offsets":[{from},{to}]}}"#, to - from)
    };
    let two = |a: String, b: String| format!(r#"{{"a":{a},"b":{b}}}"#);
    let overlap = safetensors_with(&two(entry(0, 4), entry(2, 6)), 6);
    assert!(error_of("overlap", &overlap).contains("tensor `b`: its bytes overlap"));
    let hole = safetensors_with(&two(entry(0, 2), entry(4, 6)), 6);
    assert!(error_of("hole", &hole).contains("tensor `b`: 2 bytes before it belong to no tensor"));
    let trailing = safetensors_with(&two(entry(0, 2), entry(2, 4)), 6);
    assert!(error_of("trailing", &trailing).contains("2 bytes after the last tensor"));
    let twice = safetensors_with(&format!(r#"{{"a":{0},"a":{0}}}"#, entry(0, 2)), 2);
    assert!(error_of("twice", &twice).contains("tensor `a` occurs twice"));
}
