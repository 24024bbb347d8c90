//! The number of bits of a dtype, by the names that engines and files use. Engines choose these names freely.

/// Packed bf16: lossless, with exponents of four bits.
const ZIPPED: &str = "bf16z";

/// The bits of a number in this dtype, with its share of the block's scales. `None` for an unknown dtype.
pub fn bits(dtype: &str) -> Option<f64> {
    let name = dtype.to_ascii_lowercase();
    let named = match name.as_str() {
        "f64" | "float64" | "fp64" => 64.0,
        "f32" | "float32" | "fp32" | "tf32" => 32.0,
        "bf16" | "bfloat16" | "f16" | "float16" | "fp16" | "half" => 16.0,
        ZIPPED => 12.25,
        "q8_0" | "q8_1" => 8.5,
        "i8" | "int8" | "u8" | "fp8" | "f8_e4m3" | "f8_e5m2" => 8.0,
        "q5_1" => 6.0,
        "q4_1" => 5.0,
        "i4" | "int4" | "nf4" | "fp4" => 4.0,
        // K formats, without the other formats that some of their variants mix in.
        _ if name.starts_with("q8") => 8.5,
        _ if name.starts_with("q6") => 6.5625,
        _ if name.starts_with("q5") => 5.5,
        _ if name.starts_with("q4") => 4.5,
        _ if name.starts_with("q3") => 3.4375,
        _ if name.starts_with("q2") => 2.625,
        _ => return None,
    };
    Some(named)
}

/// The beginnings of dtype names, up to the first digit.
const BEGINNINGS: &[&str] = &[
    "f", "fp", "float", "bf", "bfloat", "tf", "q", "iq", "tq", "i", "int", "u", "uint", "nf", "mxfp", "nvfp",
    "w",
];

/// The bits of a number without scales: the first number in the name (`q4_k`, `bf16`, `float32`, `int8`, `w4a16`). `None` for
/// a name that is no dtype's, whatever number it has.
pub fn nominal_bits(dtype: &str) -> Option<u32> {
    let name = dtype.to_ascii_lowercase();
    if name == "half" {
        return Some(16);
    }
    let beginning: &str = name.split(|char: char| char.is_ascii_digit()).next().unwrap_or_default();
    if !BEGINNINGS.contains(&beginning) {
        return None;
    }
    // TF32 has the exponent of f32 and the mantissa of f16, despite its name.
    if dtype.eq_ignore_ascii_case("tf32") {
        return Some(19);
    }
    let digits: String =
        dtype.chars().skip_while(|char| !char.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Whether one dtype has fewer bits than another, where both are known.
pub fn is_narrower(one: &str, other: &str) -> bool {
    // Packed bf16 rounds nothing, so it counts as bf16.
    let of = |name: &str| bits(if name.eq_ignore_ascii_case(ZIPPED) { "bf16" } else { name });
    of(one).zip(of(other)).is_some_and(|(one, other)| one < other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_are_known_by_the_names_of_files_and_of_frameworks() {
        for (name, expected) in
            [("F32", 32.0), ("bfloat16", 16.0), ("bf16z", 12.25), ("Q8_0", 8.5), ("q4_k_m", 4.5)]
        {
            assert_eq!(bits(name), Some(expected), "{name}");
        }
        assert_eq!(bits("fancy"), None);
        assert_eq!(nominal_bits("bf16z"), Some(16), "it has every bit of a number in bf16");
        assert!(!is_narrower("bf16z", "bf16") && is_narrower("q8_0", "bf16z"));
        assert!(is_narrower("q8_0", "bf16") && !is_narrower("bf16", "f16") && !is_narrower("fancy", "f32"));
    }
}
