//! What is kept comes back, and nothing else does.

use std::time::{Duration, SystemTime};

use engine_kit::sampling::Rng;

use super::*;
use crate::matrix::Format;
use crate::region::NewRegion;

const SHAPES: [(&str, Format, usize, usize); 4] = [
    ("q", Format::Q8_0, 48, 128),
    ("k", Format::Q4_0, 5, 96),
    ("head", Format::Q6K, 300, 256),
    ("x", Format::Bf16, 3, 7),
];

fn matrices(seed: u64) -> Vec<(&'static str, Matrix)> {
    let mut rng = Rng::new(seed);
    let matrix = |(name, format, outputs, inputs)| {
        let mut region = NewRegion::new(Matrix::bytes_for(format, outputs, inputs)).unwrap();
        region.bytes_mut().fill_with(|| (rng.next_f64() * 256.0) as u8);
        (name, Matrix::new(format, outputs, inputs, region.finish()))
    };
    SHAPES.map(matrix).into()
}

fn borrowed<'a>(matrices: &'a [(&'static str, Matrix)]) -> Vec<(&'static str, &'a Matrix)> {
    matrices.iter().map(|(name, matrix)| (*name, matrix)).collect()
}

fn assert_same(found: &Packed, expected: &[(&str, Matrix)]) {
    assert_eq!(found.len(), expected.len());
    for (name, matrix) in expected {
        let found = &found[*name];
        assert_eq!(
            (found.format, found.outputs, found.inputs),
            (matrix.format, matrix.outputs, matrix.inputs)
        );
        assert!(found.region().bytes() == matrix.region().bytes() && !found.region().is_own(), "{name}");
    }
}

/// A file of weights, and where what is made of it is kept.
fn place() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("model.safetensors");
    std::fs::write(&weights, "weights").unwrap();
    let shelf = folder.path().join("packed");
    (folder, weights, shelf)
}

#[test]
fn what_was_kept_is_mapped_by_the_next_load_of_the_same_files_in_the_same_form() {
    let ((_folder, weights, shelf), pool) = (place(), Pool::new(2));
    let of = |form| Sidecar::within(&shelf, std::slice::from_ref(&weights), form).unwrap();
    assert!(of("q8_0").read(&pool).is_none());
    let made = matrices(1);
    of("q8_0").write(&borrowed(&made), &pool).unwrap();
    assert_same(&of("q8_0").read(&pool).unwrap(), &made);
    assert!(of("q4_0").read(&pool).is_none());
    let others = matrices(2);
    of("q8_0").write(&borrowed(&others), &pool).unwrap();
    assert_same(&of("q8_0").read(&pool).unwrap(), &others);
    assert_eq!(std::fs::read_dir(&shelf).unwrap().count(), 1, "nothing is left of the writing");
}

#[test]
fn weights_that_were_changed_have_nothing_kept() {
    let ((_folder, weights, shelf), pool) = (place(), Pool::new(2));
    let of = || Sidecar::within(&shelf, std::slice::from_ref(&weights), "q8_0").unwrap();
    of().write(&borrowed(&matrices(1)), &pool).unwrap();
    let file = File::options().write(true).open(&weights).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(9)).unwrap();
    assert!(of().read(&pool).is_none());
    of().write(&borrowed(&matrices(1)), &pool).unwrap();
    assert!(of().read(&pool).is_some());
    std::fs::write(&weights, "longer weights").unwrap();
    assert!(of().read(&pool).is_none());
}

#[test]
fn a_file_that_is_cut_off_or_damaged_anywhere_that_matters_is_not_read() {
    let ((_folder, weights, shelf), pool) = (place(), Pool::new(2));
    let sidecar = Sidecar::within(&shelf, std::slice::from_ref(&weights), "q8_0").unwrap();
    let made = matrices(1);
    sidecar.write(&borrowed(&made), &pool).unwrap();
    let whole = std::fs::read(&sidecar.path).unwrap();
    for length in [0, 7, 8, 15, 16, 17, 400, 1 << 20, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&sidecar.path, &whole[..length]).unwrap();
        assert!(sidecar.read(&pool).is_none(), "{length}");
    }
    let header = usize::from_le_bytes(whole[8..16].try_into().unwrap());
    let mut rng = Rng::new(3);
    for turn in 0..300 {
        let mut damaged = whole.clone();
        // The header, and the last matrix.
        let (at, to) = if turn % 2 == 0 { (0, 32 + header) } else { (whole.len() - 42, whole.len()) };
        let at = at + (rng.next_f64() * (to - at) as f64) as usize;
        damaged[at] ^= 1 << (turn % 8);
        std::fs::write(&sidecar.path, &damaged).unwrap();
        assert!(sidecar.read(&pool).is_none(), "byte {at}");
    }
    sidecar.write(&borrowed(&made), &pool).unwrap();
    assert_same(&sidecar.read(&pool).unwrap(), &made);
}

#[test]
fn what_was_not_used_for_longest_goes_first_and_what_is_replaced_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, age: u64| {
        let path = folder.path().join(name);
        std::fs::write(&path, [0; 100]).unwrap();
        let used = SystemTime::now() - Duration::from_secs(age);
        File::options().write(true).open(&path).unwrap().set_modified(used).unwrap();
        path
    };
    let old = file("old.packed", 300);
    let [middle, new, mine] = [file("middle.packed", 200), file("new.packed", 100), file("mine.packed", 900)];
    let [left, busy, else_] = [file("a.part-1", 9000), file("b.part-2", 10), file("notes.txt", 90000)];
    shelf::shrink(folder.path(), 200, &mine);
    let there = |paths: &[&PathBuf]| paths.iter().map(|path| path.exists()).collect::<Vec<_>>();
    assert_eq!(
        there(&[&old, &middle, &new, &mine, &left, &busy, &else_]),
        [false, true, true, true, false, true, true]
    );
    shelf::shrink(folder.path(), 0, &mine);
    assert_eq!(there(&[&middle, &new, &mine]), [false, false, true]);
}

#[test]
fn where_nothing_can_be_written_the_load_is_told_and_nothing_is_left() {
    let ((folder, weights, _), pool) = (place(), Pool::new(1));
    let shelf = folder.path().join("file");
    std::fs::write(&shelf, "no folder").unwrap();
    let sidecar = Sidecar::within(&shelf, &[weights], "q8_0").unwrap();
    let error = sidecar.write(&borrowed(&matrices(1)), &pool).unwrap_err();
    assert!(format!("{error:#}").contains("cannot write"), "{error:#}");
    assert!(sidecar.read(&pool).is_none());
}
