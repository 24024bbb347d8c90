//! The eight scales and eight minima of 6 bits that Q4_K and Q5_K pack into 12 bytes.
//!
//! ```text
//! byte j      for j < 4: lower 6 bits scale j, upper 2 bits the upper bits of scale j + 4
//! byte 4 + j             lower 6 bits minimum j, upper 2 bits the upper bits of minimum j + 4
//! byte 8 + j             lower half the lower bits of scale j + 4, upper half those of minimum j + 4
//! ```

/// The scale and the minimum of one run.
pub fn unpack(packed: &[u8], run: usize) -> (u8, u8) {
    let j = run % 4;
    if run < 4 {
        (packed[j] & 63, packed[4 + j] & 63)
    } else {
        (packed[8 + j] & 15 | packed[j] >> 6 << 4, packed[8 + j] >> 4 | packed[4 + j] >> 6 << 4)
    }
}

/// Packs values that are all below 64.
pub fn pack(scales: [u8; 8], minima: [u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[4 + j] = minima[j] | minima[j + 4] >> 4 << 6;
        packed[8 + j] = scales[j + 4] & 15 | minima[j + 4] << 4;
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        let scales = [1, 2, 3, 63, 17, 32, 48, 63];
        let minima = [63, 0, 60, 5, 15, 16, 47, 62];
        let packed = pack(scales, minima);
        for run in 0..8 {
            assert_eq!(unpack(&packed, run), (scales[run], minima[run]));
        }
    }
}
