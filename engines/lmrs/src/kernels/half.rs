//! Conversion of single f16 numbers.

/// Widens exactly, subnormals included.
#[inline(always)]
pub fn from_bits(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff) << 13;
    // The exponent bias differs by 112. A multiplication corrects it, and normalizes subnormals.
    let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let finite = f32::to_bits(scaled);
    let special = magnitude | 0x7f80_0000;
    f32::from_bits(sign | if bits & 0x7c00 == 0x7c00 { special } else { finite })
}

#[inline(always)]
pub fn at(bytes: &[u8], index: usize) -> f32 {
    from_bits(u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]))
}

#[cfg(test)]
mod tests {
    use super::from_bits;

    #[test]
    fn every_f16_is_what_model_files_says() {
        for bits in 0..=u16::MAX {
            let mut expected = [0.0];
            model_files::blocks::widen(model_files::Dtype::F16, &bits.to_le_bytes(), &mut expected).unwrap();
            let found = from_bits(bits);
            assert!(found == expected[0] || found.is_nan() && expected[0].is_nan(), "{bits:04x}");
        }
    }
}
