//! Packing and unpacking keep every bit, at every level.

use super::*;
use crate::formats::Unfit;
use crate::kernels::Level;
use crate::kernels::test_rng::TestRng;

/// Numbers like the weights of a layer: sums of four random numbers, so that large ones are rare.
fn numbers(rng: &mut TestRng, inputs: usize) -> Vec<u16> {
    let number = |rng: &mut TestRng| (0..4).map(|_| rng.number()).sum::<f32>() / 50.0;
    (0..inputs).map(|_| (number(rng).to_bits() >> 16) as u16).collect()
}

fn pack_one_row(numbers: &[u16]) -> Result<Vec<u8>, Unfit> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut row = vec![7; row_bytes(numbers.len())];
    pack(numbers.len(), &bytes, &mut row).map(|()| row)
}

fn assert_round_trip(numbers: &[u16]) {
    assert_rows_round_trip(&[numbers]);
}

fn assert_rows_round_trip(rows: &[&[u16]]) {
    let inputs = rows[0].len();
    let bytes: Vec<u8> = rows.concat().iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut packed_rows = vec![7; rows.len() * row_bytes(inputs)];
    pack(inputs, &bytes, &mut packed_rows).unwrap();
    let block = Block::new(&packed_rows, rows.len(), inputs);
    for level in Level::available() {
        for (at, row) in rows.iter().enumerate() {
            let mut unpacked_row = vec![7; inputs];
            block.unpack(level, at..at + 1, &mut unpacked_row);
            assert_eq!(unpacked_row, *row, "{level}, row {at} of {}", rows.len());
        }
        let mut all = vec![7; rows.len() * inputs];
        block.unpack(level, 0..rows.len(), &mut all);
        assert_eq!(all, rows.concat(), "{level}");
    }
}

#[test]
fn rows_of_various_lengths_are_restored_bit_by_bit() {
    let mut rng = TestRng::new(77);
    for inputs in [0, 128, 256, 896, 2048, 4864, 1 << 16] {
        assert_round_trip(&numbers(&mut rng, inputs));
    }
}

#[test]
fn rows_that_are_packed_together_are_restored_one_by_one() {
    let mut rng = TestRng::new(80);
    for (count, inputs) in
        [(1, 128), (2, 256), (3, 2048), (4, 4864), (4, 128), (4, 0), (7, 2176), (16, 256), (13, 8192)]
    {
        let mut rows: Vec<_> = (0..count).map(|_| numbers(&mut rng, inputs)).collect();
        // Each row has other exceptions.
        for (at, row) in rows.iter_mut().enumerate() {
            row.iter_mut().skip(at * 17).step_by(300).for_each(|number| *number = 0x7f80 + at as u16);
        }
        assert_rows_round_trip(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
}

#[test]
fn sixteen_exponents_of_any_sign_and_mantissa_need_no_exception() {
    let all: Vec<u16> = (0..=u16::MAX).filter(|bits| (100..116).contains(&(bits >> 7 & 0xff))).collect();
    assert_eq!(all.len(), 2 * 16 * 128); // signs, exponents, mantissas
    assert_round_trip(&all);
    assert_eq!(pack_one_row(&all).unwrap()[COUNT_OFFSET], 0);
}

#[test]
fn zeros_nans_and_rare_exponents_are_restored() {
    let mut rng = TestRng::new(78);
    let mut row = numbers(&mut rng, 2048);
    row[..1200].fill(0);
    // Rare numbers at both ends, in all four sets, and side by side.
    let positions = [0, 31, 32, 63, 64, 127, 128, 1200, 2046, 2047];
    let rare = [0x7f80, 0xff80, 0x7fc1, 0x0001, 0x8000, 0x7f7f, 0x4049, 0x8001, 0x6000, 0xe123];
    for (position, bits) in positions.into_iter().zip(rare) {
        row[position] = bits;
    }
    assert_round_trip(&row);
    assert_round_trip(&[0x8000; 128]);
}

#[test]
fn a_row_is_refused_only_for_too_many_exceptions() {
    // Sixteen exponents occur about a hundred times each, the others once. A header has room for 11 exceptions.
    let row = |exceptions: u16| {
        let mut row: Vec<u16> = (0..1664).map(|at| (at % 16 + 100) << 7).collect();
        for exception in 0..exceptions {
            row[usize::from(exception) * 90] = (exception + 150) << 7;
        }
        row
    };
    assert_round_trip(&row(11));
    assert_eq!(pack_one_row(&row(12)), Err(Unfit));
}

/// The bytes come from a sidecar, which may be damaged.
#[test]
fn any_bytes_unpack_to_the_same_numbers_at_every_level() {
    let mut rng = TestRng::new(79);
    for _ in 0..50 {
        let rows: Vec<u8> = (0..2 * row_bytes(256)).map(|_| rng.bits() as u8).collect();
        let unpacked = |level| {
            let mut unpacked_row = vec![0; 256];
            Block::new(&rows, 2, 256).unpack(level, 1..2, &mut unpacked_row);
            unpacked_row
        };
        let expected = unpacked(Level::available()[0]);
        assert!(Level::available().into_iter().all(|level| unpacked(level) == expected));
    }
}
