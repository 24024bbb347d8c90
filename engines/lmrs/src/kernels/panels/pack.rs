//! Rows of blocks, as files have them, into panels, as `crate::matrix` lays them out.

use crate::matrix::{Format, PANEL};

/// Up to 16 rows of `inputs` numbers into one panel. Rows that are missing, and inputs after the last, get the scale 0.
/// Panics where a row or the panel has not its size: whoever calls has checked what a file says of itself.
pub fn pack(format: Format, inputs: usize, rows: &[&[u8]], panel: &mut [u8]) {
    assert!(rows.len() <= PANEL, "a panel has 16 rows");
    assert_eq!(
        panel.len(),
        inputs.div_ceil(format.stretch()) * format.stretch_bytes(),
        "the bytes of a panel"
    );
    panel.fill(0);
    for (output, row) in rows.iter().enumerate() {
        match format {
            Format::Q8_0 => pack_q8_0(inputs, row, panel, output),
            Format::Q4_0 => pack_q4_0(inputs, row, panel, output),
            Format::Q4K => pack_q4_k(inputs, row, panel, output),
            Format::Q6K => pack_q6_k(inputs, row, panel, output),
            Format::F32 | Format::F16 | Format::Bf16 | Format::Bf16z => panic!("floats lie in rows"),
        }
    }
}

/// The blocks of a row, of which there must be just so many.
fn blocks<const BYTES: usize>(inputs: usize, numbers: usize, row: &[u8]) -> &[[u8; BYTES]] {
    let (blocks, rest) = row.as_chunks();
    assert!(rest.is_empty() && blocks.len() * numbers == inputs, "the bytes of a row of {inputs} inputs");
    blocks
}

fn pack_q8_0(inputs: usize, row: &[u8], panel: &mut [u8], output: usize) {
    let groups = panel.chunks_exact_mut(17 * 64);
    for (blocks, group) in blocks::<34>(inputs, 32, row).chunks(2).zip(groups) {
        for (half, [d0, d1, quants @ ..]) in blocks.iter().enumerate() {
            let lines = group[(1 + half * 8) * 64..].chunks_exact_mut(64);
            for (quad, line) in quants.as_chunks::<4>().0.iter().zip(lines) {
                line[output * 4..][..4].copy_from_slice(&quad.map(|quant| quant ^ 0x80));
            }
            group[half * 32 + output * 2..][..2].copy_from_slice(&[*d0, *d1]);
        }
    }
}

fn pack_q4_0(inputs: usize, row: &[u8], panel: &mut [u8], output: usize) {
    let groups = panel.chunks_exact_mut(9 * 64);
    for (blocks, group) in blocks::<18>(inputs, 32, row).chunks(2).zip(groups) {
        for (half, [d0, d1, quants @ ..]) in blocks.iter().enumerate() {
            // The file has input i below input i + 16; the panel has block 0 below block 1.
            for (quad, pairs) in quants.as_chunks::<4>().0.iter().enumerate() {
                for (byte, pair) in pairs.iter().enumerate() {
                    group[(quad + 1) * 64 + output * 4 + byte] |= (pair & 15) << (4 * half);
                    group[(quad + 5) * 64 + output * 4 + byte] |= (pair >> 4) << (4 * half);
                }
            }
            group[half * 32 + output * 2..][..2].copy_from_slice(&[*d0, *d1]);
        }
    }
}

fn pack_q4_k(inputs: usize, row: &[u8], panel: &mut [u8], output: usize) {
    let stretches = panel.chunks_exact_mut(Format::Q4K.stretch_bytes());
    for (block, stretch) in blocks::<144>(inputs, 256, row).iter().zip(stretches) {
        let (head, groups) = stretch.split_at_mut(64);
        head[output * 2..][..2].copy_from_slice(&block[..2]);
        head[32 + output * 2..][..2].copy_from_slice(&block[2..4]);
        for (number, group) in groups.chunks_exact_mut(9 * 64).enumerate() {
            for half in 0..2 {
                let (scale, minimum) = q4_k_scale(&block[4..16], number * 2 + half);
                group[half * 16 + output] = scale;
                group[32 + half * 16 + output] = minimum;
            }
            // Both have run 2n below run 2n + 1, byte by byte.
            let lines = group[64..].chunks_exact_mut(64);
            for (quad, line) in block[16 + number * 32..][..32].as_chunks::<4>().0.iter().zip(lines) {
                line[output * 4..][..4].copy_from_slice(quad);
            }
        }
    }
}

/// Scale and minimum of a run, from the twelve bytes that have eight of each: the upper two bits of the first eight bytes
/// belong to the scales and minima of the last four runs.
fn q4_k_scale(packed: &[u8], run: usize) -> (u8, u8) {
    match run.checked_sub(4) {
        None => (packed[run] & 63, packed[run + 4] & 63),
        Some(last) => {
            let lower = packed[last + 8];
            (lower & 15 | packed[last] >> 6 << 4, lower >> 4 | packed[last + 4] >> 6 << 4)
        }
    }
}

fn pack_q6_k(inputs: usize, row: &[u8], panel: &mut [u8], output: usize) {
    let stretches = panel.chunks_exact_mut(Format::Q6K.stretch_bytes());
    for (block, stretch) in blocks::<210>(inputs, 256, row).iter().zip(stretches) {
        let (head, groups) = stretch.split_at_mut(64);
        head[output * 2..][..2].copy_from_slice(&block[208..]);
        for run in 0..8 {
            // Of 32 numbers: which half of which bytes of the file, and of which lines of the panel.
            let (half, file, part) = (run % 2, run / 4, run % 4);
            let group = &mut groups[run / 2 * 13 * 64..][..13 * 64];
            for sixteen in 0..2 {
                group[(half * 2 + sixteen) * 16 + output] = block[192 + run * 2 + sixteen];
            }
            for i in 0..32 {
                let lower = block[file * 64 + part % 2 * 32 + i] >> (part / 2 * 4) & 15;
                let upper = block[128 + file * 32 + i] >> (part * 2) & 3;
                group[(1 + i / 4) * 64 + output * 4 + i % 4] |= lower << (4 * half);
                group[(9 + i / 4 % 4) * 64 + output * 4 + i % 4] |= upper << (4 * half + i / 16 * 2);
            }
        }
    }
}
