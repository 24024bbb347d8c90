//! The fuzz targets, and the conversion of their input bytes to files.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use model_files::{Config, ModelFacts, ModelFolder, gguf as gguf_file, safetensors as safetensors_file};

use crate::properties::{check_config, check_no_overlap, check_tensors, read_within_bound};

/// Reads an input and returns whether it was accepted. Panics, or ends the process, if a property does not hold.
pub type Target = fn(&[u8]) -> bool;

/// Each target's name, which is also its program's name, and its function.
pub const TARGETS: [(&str, Target); 4] =
    [("safetensors", safetensors), ("gguf", gguf), ("config", config), ("folder", folder)];

/// Allowed bytes of memory for each byte of a header. An entry of about twenty bytes becomes a tensor of about a hundred
/// bytes. While a list grows, memory holds it twice.
const HEADER_MULTIPLE: usize = 32;

/// Allowed bytes of memory for each byte of JSON. An object with one entry takes eight bytes in a file, and a map node of 632
/// bytes in memory.
const JSON_MULTIPLE: usize = 128;

/// Allowed bytes of memory for each byte of a model, when the tensors that it requires are listed. A config may claim as many
/// layers as the headers have tensors, and the list has a dozen tensors for each layer.
const PARTS_MULTIPLE: usize = 512;

/// The separator of files. It never occurs in UTF-8, so it never cuts JSON in two.
pub const SEPARATOR: u8 = 0xff;

/// Reads a safetensors file. The lower 31 bits of the first four bytes are the length of the data; the file's beginning follows.
/// If the highest bit is set, the target corrects the header's length, so that a changed header is not always refused for its
/// length.
pub fn safetensors(bytes: &[u8]) -> bool {
    let Some((word, rest)) = bytes.split_first_chunk() else { return false };
    let word = u32::from_le_bytes(*word);
    let mut file = rest.to_vec();
    if word >> 31 == 1 && file.len() >= 8 {
        let header_bytes = file.len() as u64 - 8;
        file[..8].copy_from_slice(&header_bytes.to_le_bytes());
    }
    let file_bytes = file.len() as u64 + u64::from(word & !(1 << 31));
    let read = || safetensors_file::parse_header(file.as_slice(), file_bytes, 0);
    let Some(tensors) = read_within_bound(HEADER_MULTIPLE, file.len(), read) else { return false };
    check_tensors(&tensors, file_bytes);
    check_no_overlap(&tensors);
    true
}

/// Reads a GGUF file. The first two bytes give the number of zero bytes at the file's end; its beginning follows.
pub fn gguf(bytes: &[u8]) -> bool {
    static FILE: LazyLock<(PathBuf, File)> = LazyLock::new(|| {
        let path = scratch_folder("gguf").join("x.gguf");
        let file = File::create(&path).expect("a file can be made in the folder for temporary files");
        (path, file)
    });
    let Some((zeros, start)) = bytes.split_first_chunk() else { return false };
    let file_bytes = start.len() as u64 + u64::from(u16::from_le_bytes(*zeros));
    let (path, file) = &*FILE;
    // The file is cut before it is extended, so that zeros follow and not bytes of an earlier input.
    let write = || {
        file.write_all_at(start, 0)?;
        file.set_len(start.len() as u64)?;
        file.set_len(file_bytes)
    };
    write().expect("the file can be written");
    let file_size = usize::try_from(file_bytes).expect("files are small");
    let Some(header) = read_within_bound(HEADER_MULTIPLE, file_size, || gguf_file::read_header(path, 0))
    else {
        return false;
    };
    check_tensors(&header.tensors, file_bytes);
    let Some(opened) = read_within_bound(HEADER_MULTIPLE, file_size, || ModelFolder::open(path)) else {
        return false;
    };
    check_folder(&opened, file_size);
    true
}

/// Reads config.json, and generation_config.json if the input has a second piece.
pub fn config(bytes: &[u8]) -> bool {
    let mut pieces = bytes.splitn(2, |&byte| byte == SEPARATOR);
    let config = pieces.next().unwrap_or_default();
    let Some(config) = read_within_bound(JSON_MULTIPLE, bytes.len(), || Config::parse(config, pieces.next()))
    else {
        return false;
    };
    check_config(&config);
    true
}

/// Reads the files of a folder in sequence: config, generation config, index, and two weight files. A weight file is two
/// bytes with the number of zero bytes after its header, then the header. An empty piece means no file.
pub fn folder(bytes: &[u8]) -> bool {
    const FILES: [&str; 5] = [
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "model.safetensors",
        "b.safetensors",
    ];
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| scratch_folder("folder"));
    let mut pieces = bytes.splitn(FILES.len(), |&byte| byte == SEPARATOR);
    let mut file_bytes = 0;
    for name in FILES {
        let content = pieces.next().unwrap_or_default();
        let content = if name.ends_with(".safetensors") { weight_file(content) } else { content.to_vec() };
        file_bytes += content.len();
        let path = FOLDER.join(name);
        let written = match content.as_slice() {
            [] => fs::remove_file(path).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            }),
            content => fs::write(path, content),
        };
        written.expect("a file can be made or removed in the folder for temporary files");
    }
    let Some(opened) = read_within_bound(JSON_MULTIPLE, file_bytes, || ModelFolder::open(&*FOLDER)) else {
        return false;
    };
    check_folder(&opened, file_bytes);
    for (file, path) in opened.weights.iter().enumerate() {
        let tensors: Vec<_> = opened.tensors.iter().filter(|tensor| tensor.file == file).cloned().collect();
        check_tensors(&tensors, fs::metadata(path).map_or(0, |metadata| metadata.len()));
    }
    true
}

fn weight_file(piece: &[u8]) -> Vec<u8> {
    let Some((zeros, header)) = piece.split_first_chunk() else { return Vec::new() };
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.resize(file.len() + usize::from(u16::from_le_bytes(*zeros)), 0);
    file
}

fn check_folder(opened: &ModelFolder, file_bytes: usize) {
    check_config(&opened.config);
    assert_eq!(opened.dtypes().values().sum::<u64>(), opened.weights_bytes());
    let _ = opened.parameters();
    assert!(opened.tensors.iter().all(|tensor| tensor.file < opened.weights.len()));
    // `ModelFacts::of` must accept or refuse the model in memory that is limited in proportion to the bytes of its files.
    if let Some(facts) = read_within_bound(PARTS_MULTIPLE, file_bytes, || ModelFacts::of(opened)) {
        let component_bytes: u64 = facts.components.iter().map(|component| component.bytes).sum();
        assert!(
            component_bytes <= facts.weights_bytes,
            "components of {component_bytes} bytes in {} bytes of weights",
            facts.weights_bytes
        );
        let _ = facts.memory_bytes(u64::MAX);
    }
}

/// Removes the files that the targets wrote. libFuzzer does not call this function, so scripts/fuzz removes them.
pub fn remove_scratch_files() -> io::Result<()> {
    let folder = scratch_root();
    if folder.exists() { fs::remove_dir_all(folder) } else { Ok(()) }
}

fn scratch_root() -> PathBuf {
    std::env::temp_dir().join(format!("model-files-fuzz-{}", std::process::id()))
}

/// The scratch folder of this process and a target.
fn scratch_folder(target: &str) -> PathBuf {
    let folder = scratch_root().join(target);
    fs::create_dir_all(&folder).expect("a folder can be made among temporary files");
    folder
}
