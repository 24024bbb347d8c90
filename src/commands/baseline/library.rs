//! Finds the own shared libraries of a program: those in folders that the program itself names (`DT_RUNPATH`, `DT_RPATH`). A copy
//! of such a program may not find its libraries, or may find newer ones. This code reads 64-bit little-endian files in the
//! Executable and Linkable Format (System V gABI, chapters 4 and 5); the libraries of any other file are unknown.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The maximum number of own libraries. Engines have far fewer.
const MAX_LIBRARIES: usize = 100;
/// The size of the largest file that is read. The libraries of a larger file are unknown.
const MAX_FILE_BYTES: u64 = 1 << 30;
// Limits against broken files: the entries of the dynamic section, and the bytes of one of its texts.
const MAX_ENTRIES: u64 = 10_000;
const MAX_TEXT_BYTES: usize = 4096;

// Types of program headers.
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;

// Tags of the entries in the dynamic section.
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// A program's own libraries, and the own libraries of these libraries.
pub fn own_libraries(program: &Path) -> Vec<PathBuf> {
    let mut libraries = BTreeSet::new();
    let mut to_read = vec![program.to_path_buf()];
    while let Some(file) = to_read.pop() {
        for library in direct_libraries(&file) {
            if libraries.len() < MAX_LIBRARIES && libraries.insert(library.clone()) {
                to_read.push(library);
            }
        }
    }
    libraries.into_iter().collect()
}

/// The libraries that a file needs and finds in its own paths.
fn direct_libraries(file: &Path) -> Vec<PathBuf> {
    let is_small = std::fs::metadata(file).is_ok_and(|metadata| metadata.len() <= MAX_FILE_BYTES);
    let Some(bytes) = is_small.then(|| std::fs::read(file).ok()).flatten() else { return Vec::new() };
    let Some(section) = DynamicSection::read(&bytes) else { return Vec::new() };
    let real = file.canonicalize().unwrap_or_else(|_| file.to_path_buf());
    let origin = real.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
    let expand =
        |path: &String| PathBuf::from(path.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin));
    let folders: Vec<_> = section.paths.iter().map(expand).filter(|folder| folder.is_absolute()).collect();
    let in_folders =
        |name: &String| folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    section.needed.iter().filter_map(in_folders).collect()
}

/// The names in the dynamic section of a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct DynamicSection {
    needed: Vec<String>,
    paths: Vec<String>,
}

impl DynamicSection {
    /// Parses a file; `None` for another kind of file or a broken one.
    fn read(bytes: &[u8]) -> Option<Self> {
        let file = Elf(bytes);
        if bytes.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        // Offsets in the file's header: e_phoff, e_phentsize, e_phnum. In a program header: p_offset, p_vaddr, p_filesz.
        let (headers, size, count) = (file.u64(32)?, u64::from(file.u16(54)?), u64::from(file.u16(56)?));
        let headers: Vec<u64> = (0..count).map_while(|index| headers.checked_add(index * size)).collect();
        let of_kind = |kind: u32| headers.iter().filter(move |&&header| file.u32(header) == Some(kind));
        let dynamic = *of_kind(PT_DYNAMIC).next()?;
        let (start, length) = (file.u64(dynamic + 8)?, file.u64(dynamic + 32)?);
        let entry = |index: u64| {
            Some((file.u64(start.checked_add(index * 16)?)?, file.u64(start.checked_add(index * 16 + 8)?)?))
        };
        let entries: Vec<(u64, u64)> = (0..(length / 16).min(MAX_ENTRIES)).map_while(entry).collect();
        let of_tag = |tag: u64| entries.iter().filter(move |entry| entry.0 == tag).map(|entry| entry.1);
        // `DT_STRTAB` has the address of the texts in memory; a segment maps it to an offset in the file.
        let address = of_tag(DT_STRTAB).next()?;
        let strings = of_kind(PT_LOAD).find_map(|&header| {
            let (offset, memory, length) =
                (file.u64(header + 8)?, file.u64(header + 16)?, file.u64(header + 32)?);
            let position = address.checked_sub(memory).filter(|&position| position < length)?;
            offset.checked_add(position)
        })?;
        let text = |at: u64| file.text(strings.checked_add(at)?);
        let paths = of_tag(DT_RUNPATH).chain(of_tag(DT_RPATH)).filter_map(text);
        let paths = paths.flat_map(|paths| paths.split(':').map(String::from).collect::<Vec<_>>());
        Some(Self { needed: of_tag(DT_NEEDED).filter_map(text).collect(), paths: paths.collect() })
    }
}

#[derive(Clone, Copy)]
struct Elf<'a>(&'a [u8]);

impl Elf<'_> {
    fn bytes<const N: usize>(self, at: u64) -> Option<[u8; N]> {
        let at = usize::try_from(at).ok()?;
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn u16(self, at: u64) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }

    fn u32(self, at: u64) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    fn u64(self, at: u64) -> Option<u64> {
        self.bytes(at).map(u64::from_le_bytes)
    }

    fn text(self, at: u64) -> Option<String> {
        let bytes = self.0.get(usize::try_from(at).ok()?..)?;
        let end = bytes.iter().take(MAX_TEXT_BYTES).position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with one loaded segment and these names in its dynamic section.
    fn elf(entries: &[(u64, &str)]) -> Vec<u8> {
        let (mut strings, mut dynamic) = (vec![0], Vec::new());
        for (tag, text) in entries {
            dynamic.extend([*tag, strings.len() as u64]);
            strings.extend(text.bytes().chain([0]));
        }
        const HEADERS_BYTES: u64 = 64 + 2 * 56;
        let length = 16 * (entries.len() as u64 + 2);
        // Loaded at 0x1000, so that an address differs from its offset in the file.
        dynamic.extend([DT_STRTAB, 0x1000 + HEADERS_BYTES + length, 0, 0]);
        let mut file = b"\x7fELF\x02\x01".to_vec();
        file.resize(32, 0);
        file.extend(64u64.to_le_bytes());
        file.resize(54, 0);
        // Two program headers of 56 bytes.
        file.extend([56, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        let file_length = HEADERS_BYTES + length + strings.len() as u64;
        for (kind, offset, memory, length) in
            [(PT_LOAD, 0, 0x1000, file_length), (PT_DYNAMIC, HEADERS_BYTES, 0x1000 + HEADERS_BYTES, length)]
        {
            file.extend(u64::from(kind).to_le_bytes());
            file.extend([offset, memory, memory, length, length, 8].iter().flat_map(|it| it.to_le_bytes()));
        }
        file.extend(dynamic.iter().flat_map(|it| it.to_le_bytes()));
        file.extend(strings);
        file
    }

    #[test]
    fn needed_libraries_and_search_paths_are_read_from_an_elf_file() {
        let bytes =
            elf(&[(DT_NEEDED, "libx.so.1"), (DT_NEEDED, "libc.so.6"), (DT_RUNPATH, "$ORIGIN:/opt/x/lib")]);
        let section = DynamicSection::read(&bytes).unwrap();
        assert_eq!(section.needed, ["libx.so.1", "libc.so.6"]);
        assert_eq!(section.paths, ["$ORIGIN", "/opt/x/lib"]);
    }

    #[test]
    fn own_libraries_are_followed_recursively_without_system_libraries() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().canonicalize().unwrap();
        let write = |name: &str, needed: &str| {
            let elf = elf(&[(DT_NEEDED, needed), (DT_NEEDED, "libc.so.6"), (DT_RUNPATH, "$ORIGIN")]);
            std::fs::write(folder.join(name), elf).unwrap();
        };
        write("engine", "liba.so");
        write("liba.so", "libb.so");
        // Two libraries that need each other are read once.
        write("libb.so", "liba.so");
        assert_eq!(own_libraries(&folder.join("engine")), [folder.join("liba.so"), folder.join("libb.so")]);
    }

    #[test]
    fn broken_elf_files_are_ignored_without_a_panic() {
        let complete = elf(&[(DT_NEEDED, "libx.so.1"), (DT_RUNPATH, "/opt/x/lib")]);
        for cut in 0..complete.len() {
            let _ = DynamicSection::read(&complete[..cut]);
        }
        for at in 0..complete.len() {
            let mut broken = complete.clone();
            broken[at] = 0xff;
            let _ = DynamicSection::read(&broken);
        }
        assert_eq!(DynamicSection::read(b"#!/bin/sh\n"), None);
        assert_eq!(own_libraries(Path::new("/no/such/file")), Vec::<PathBuf>::new());
    }

    #[cfg(all(target_os = "linux", target_pointer_width = "64", target_endian = "little"))]
    #[test]
    fn the_c_library_is_not_an_own_library_of_this_program() {
        let program = std::env::current_exe().unwrap();
        let linked = DynamicSection::read(&std::fs::read(&program).unwrap()).unwrap();
        assert!(linked.needed.iter().any(|name| name.starts_with("libc.")), "{linked:?}");
        assert!(own_libraries(&program).iter().all(|it| !it.ends_with("libc.so.6")));
    }
}
