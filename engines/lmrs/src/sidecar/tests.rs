//! Tests that packed weights are read back only if they are intact, and match the model's files and the plan.

use std::time::{Duration, SystemTime};

use super::*;
use crate::formats::{FORMATS, Format};
use crate::region::NewRegion;
use engine_kit::sampling::Rng;

const NO_MATRICES: BTreeSet<String> = BTreeSet::new();

fn packed_region(seed: u64) -> Region {
    let mut rng = Rng::new(seed);
    let mut region = NewRegion::new(300_001).unwrap(); // no multiple of a word
    region.bytes_mut().fill_with(|| (rng.next_f64() * 256.0) as u8);
    region.finish()
}

fn assert_same(actual: Option<Region>, expected: &Region) {
    assert!(actual.unwrap().bytes() == expected.bytes());
}

/// Makes a temporary folder with a file of weights. Returns the folder, the file, and a path for a cache directory in the folder.
fn files() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("model.safetensors");
    std::fs::write(&weights, "weights").unwrap();
    let directory = folder.path().join("packed");
    (folder, weights, directory)
}

#[test]
fn packed_weights_are_mapped_by_the_next_load_of_the_same_files_and_plan() {
    let ((_folder, weights, directory), pool) = (files(), Pool::new(2));
    let sidecar = |plan| Sidecar::in_directory(&directory, std::slice::from_ref(&weights), plan).unwrap();
    assert!(sidecar("q8_0").read("q8_0", &pool).is_none());
    let first = packed_region(1);
    sidecar("q8_0").write("q8_0", &NO_MATRICES, &first, &pool).unwrap();
    assert_same(sidecar("q8_0").read("q8_0", &pool), &first);
    assert!(sidecar("q4_0").read("q4_0", &pool).is_none());
    let second = packed_region(2);
    sidecar("q8_0").write("q8_0", &NO_MATRICES, &second, &pool).unwrap();
    assert_same(sidecar("q8_0").read("q8_0", &pool), &second);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "no temporary file remains");
}

#[test]
fn packed_weights_are_not_read_from_the_cache_after_the_weights_changed() {
    let ((_folder, weights, directory), pool) = (files(), Pool::new(2));
    let sidecar = || Sidecar::in_directory(&directory, std::slice::from_ref(&weights), "q8_0").unwrap();
    sidecar().write("q8_0", &NO_MATRICES, &packed_region(1), &pool).unwrap();
    let file = File::options().write(true).open(&weights).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(9)).unwrap();
    assert!(sidecar().read("q8_0", &pool).is_none());
    sidecar().write("q8_0", &NO_MATRICES, &packed_region(1), &pool).unwrap();
    assert!(sidecar().read("q8_0", &pool).is_some());
    std::fs::write(&weights, "longer weights").unwrap();
    assert!(sidecar().read("q8_0", &pool).is_none());
}

#[test]
fn a_truncated_or_damaged_file_is_not_read() {
    let ((_folder, weights, directory), pool) = (files(), Pool::new(2));
    let sidecar = Sidecar::in_directory(&directory, std::slice::from_ref(&weights), "q8_0").unwrap();
    let region = packed_region(1);
    sidecar.write("q8_0", &NO_MATRICES, &region, &pool).unwrap();
    let whole = std::fs::read(&sidecar.path).unwrap();
    for length in [0, 7, 8, 15, 16, 31, 32, 33, 400, PACKED_OFFSET, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&sidecar.path, &whole[..length]).unwrap();
        assert!(sidecar.read("q8_0", &pool).is_none(), "{length}");
    }
    let json_bytes = usize::from_le_bytes(whole[8..16].try_into().unwrap());
    let mut rng = Rng::new(3);
    for number in 0..300 {
        let mut damaged = whole.clone();
        let (from, to) = if number % 2 == 0 { (0, 32 + json_bytes) } else { (PACKED_OFFSET, whole.len()) };
        let at = from + (rng.next_f64() * (to - from) as f64) as usize;
        damaged[at] ^= 1 << (number % 8);
        std::fs::write(&sidecar.path, &damaged).unwrap();
        assert!(sidecar.read("q8_0", &pool).is_none(), "byte {at}");
    }
    sidecar.write("q8_0", &NO_MATRICES, &region, &pool).unwrap();
    assert_same(sidecar.read("q8_0", &pool), &region);
}

#[test]
fn the_list_of_unfit_matrices_is_stored_under_the_plan_in_which_all_fit() {
    let ((_folder, weights, directory), pool) = (files(), Pool::new(2));
    let sidecar = || Sidecar::in_directory(&directory, std::slice::from_ref(&weights), "all fit").unwrap();
    assert_eq!(sidecar().unfit(), NO_MATRICES);
    let (region, unfit) = (packed_region(1), BTreeSet::from(["blk.0.ffn_up.weight".to_string()]));
    sidecar().write("one does not fit", &unfit, &region, &pool).unwrap();
    assert_eq!(sidecar().unfit(), unfit);
    assert_same(sidecar().read("one does not fit", &pool), &region);
    assert!(sidecar().read("all fit", &pool).is_none());
    std::fs::write(&weights, "longer weights").unwrap();
    assert_eq!(sidecar().unfit(), NO_MATRICES, "other weights may fit");
}

/// Creates a file of a hundred bytes with this age in seconds.
fn file_with_age(folder: &Path, name: &str, age: u64) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, [0; 100]).unwrap();
    let used = SystemTime::now() - Duration::from_secs(age);
    File::options().write(true).open(&path).unwrap().set_modified(used).unwrap();
    path
}

#[test]
fn the_least_recently_used_file_is_removed_first_and_a_replaced_file_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, age: u64| file_with_age(folder.path(), name, age);
    let old = file("old.packed", 300);
    let [middle, new, replaced] =
        [file("middle.packed", 200), file("new.packed", 100), file("mine.packed", 900)];
    let [stale, busy, other] = [file("a.part-1", 9000), file("b.part-2", 10), file("notes.txt", 90000)];
    shrink(folder.path(), 200, &replaced);
    let exist = |paths: &[&PathBuf]| paths.iter().map(|path| path.exists()).collect::<Vec<_>>();
    assert_eq!(
        exist(&[&old, &middle, &new, &replaced, &stale, &busy, &other]),
        [false, true, true, true, false, true, true]
    );
    shrink(folder.path(), 0, &replaced);
    assert_eq!(exist(&[&middle, &new, &replaced]), [false, false, true]);
}

/// Makes room for a file of 1000 bytes that replaces `mine.packed`, on a disk with this free space while it has three
/// cached files. Also returns the names of the remaining files.
fn make_room_on_disk(free_with_three_files: u64) -> (Result<(), String>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    for (name, age) in [("old.packed", 300), ("new.packed", 100), ("mine.packed", 900), ("a.part-1", 9000)] {
        file_with_age(folder.path(), name, age);
    }
    let names = || {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let free = |_: &Path| Ok(free_with_three_files + 300 - 100 * names().len() as u64);
    let result = make_room(folder.path(), 1000, &folder.path().join("mine.packed"), free);
    (result.map_err(|error| error.to_string()), names())
}

#[test]
fn cached_files_make_room_on_a_full_disk_before_a_write_is_refused() {
    // Every write leaves one GB free.
    let needed = 1_000_001_000;
    let all = ["mine.packed", "new.packed", "old.packed"];
    let refused = "the disk has less than 1000001000 bytes free";
    for (free, expected_files, outcome) in [
        (needed, &all[..], Ok(())),
        (needed - 100, &all[..2], Ok(())),
        (needed - 101, &all[..1], Ok(())),
        (needed - 200, &all[..1], Ok(())),
        // Nothing is removed if that would not help.
        (needed - 201, &all[..], Err(refused.to_string())),
    ] {
        let (result, remaining) = make_room_on_disk(free);
        assert_eq!(result, outcome, "{free} free");
        assert_eq!(remaining, expected_files, "{free} free");
    }
}

#[test]
fn a_disk_that_stays_full_without_the_cache_refuses_the_write() {
    let folder = tempfile::tempdir().unwrap();
    let cached = file_with_age(folder.path(), "old.packed", 300);
    let refused = make_room(folder.path(), 1000, folder.path(), |_| Ok(1_000_000_990));
    assert_eq!(refused.unwrap_err().to_string(), "the disk has less than 1000001000 bytes free");
    assert!(!cached.exists());
}

#[test]
fn a_file_beyond_the_limit_of_the_cache_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = make_room(folder.path(), 20_000_000_001, folder.path(), |_| Ok(u64::MAX));
    assert_eq!(refused.unwrap_err().to_string(), "20000000001 bytes are more than the limit of 20000000000");
}

#[test]
fn a_failed_write_is_reported_and_leaves_no_file() {
    let ((folder, weights, _), pool) = (files(), Pool::new(1));
    let directory = folder.path().join("file");
    std::fs::write(&directory, "no folder").unwrap();
    let sidecar = Sidecar::in_directory(&directory, &[weights], "q8_0").unwrap();
    let error = sidecar.write("q8_0", &NO_MATRICES, &packed_region(1), &pool).unwrap_err();
    assert!(format!("{error:#}").contains("cannot write packed weights"), "{error:#}");
    assert!(sidecar.read("q8_0", &pool).is_none());
}

#[test]
fn every_packed_layout_has_the_digest_of_its_version() {
    let packed = |format: &Format| {
        // One panel, or rows of two parts: a part has at most 2048 inputs.
        let (rows, inputs) = if format.is_panels() { (16, 512) } else { (6, 2176) };
        let rows_of_blocks =
            || (0..format.dtype.bytes(rows * inputs)).map(|at| (at * 31 % 251) as u8).collect();
        let rows_of_floats =
            || (0..rows * inputs).flat_map(|at| (0x3f00 + (at * 31 % 251) as u16).to_le_bytes()).collect();
        let numbers: Vec<u8> = if format.is_panels() { rows_of_blocks() } else { rows_of_floats() };
        let mut packed = vec![0; format.bytes(rows as usize, inputs as usize)];
        format.pack(inputs as usize, &numbers, &mut packed).unwrap();
        paths::digest(&packed)
    };
    let is_packed = |format: &&&Format| format.is_panels() || format.packed_rows().is_some();
    let mut newest = 0;
    for format in FORMATS.iter().filter(is_packed) {
        let (layout, digest) = format.packed.expect("a digest of the packed bytes");
        assert_eq!(packed(format), digest, "{format:?}: raise `LAYOUT_VERSION`");
        newest = newest.max(layout);
    }
    assert_eq!(newest, LAYOUT_VERSION, "`LAYOUT_VERSION` is the newest layout of all formats");
}

#[test]
fn the_checksum_finds_a_flipped_bit_and_swapped_bytes_on_any_number_of_threads() {
    let (single, double) = (Pool::new(1), Pool::new(2));
    let mut rng = Rng::new(1);
    let mut below = |limit: usize| (rng.next_f64() * limit as f64) as usize;
    for length in
        [1, 7, 64, 65, 4096, SUMMED_BYTES - 1, SUMMED_BYTES, SUMMED_BYTES + 1, 3 * SUMMED_BYTES + 100]
    {
        let mut bytes: Vec<u8> = (0..length).map(|_| below(256) as u8).collect();
        let expected = checksum(&single, &bytes);
        assert_eq!(checksum(&double, &bytes), expected);
        for _ in 0..3 {
            let (at, bit) = (below(length), below(8));
            bytes[at] ^= 1 << bit;
            assert_ne!(checksum(&double, &bytes), expected);
            bytes[at] ^= 1 << bit;
        }
        if length > 1000 {
            bytes.swap(3, 900);
            assert!(bytes[3] == bytes[900] || checksum(&double, &bytes) != expected);
            bytes.swap(3, 900);
        }
        assert_ne!(checksum(&double, &bytes[..length - 1]), expected);
    }
}
