//! Dtypes by the names that engines and model files use. Engines choose their names freely; `model_files` has the names in
//! files.

use model_files::Dtype;

/// A float type that engines compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Float {
    F64,
    F32,
    Tf32,
    Bf16,
    F16,
}

/// The names of float types in model files, in PyTorch and in engines.
const FLOATS: &[(Float, &[&str])] = &[
    (Float::F64, &["f64", "float64", "fp64"]),
    (Float::F32, &["f32", "float32", "fp32"]),
    (Float::Tf32, &["tf32"]),
    (Float::Bf16, &["bf16", "bfloat16"]),
    (Float::F16, &["f16", "float16", "fp16", "half"]),
];

/// The bits per number of dtypes that are neither a `Float` nor a dtype of model files.
const OTHER_DTYPES: &[(&str, f64)] = &[
    (PACKED_BF16, 12.25),
    ("int8", 8.0),
    ("fp8", 8.0),
    ("i4", 4.0),
    ("int4", 4.0),
    ("nf4", 4.0),
    ("fp4", 4.0),
];

/// Packed bf16: lossless, with exponents of four bits.
const PACKED_BF16: &str = "bf16z";

/// The dtype of model files for the beginning of a name: `q4` and `q4_k_m` both count as `q4_k`. A variant may mix several
/// dtypes, but only the main one counts here.
const FILE_DTYPE_OF_BEGINNING: &[(&str, &str)] =
    &[("q8", "q8_0"), ("q6", "q6_k"), ("q5", "q5_k"), ("q4", "q4_k"), ("q3", "q3_k"), ("q2", "q2_k")];

impl Float {
    pub fn named(dtype: &str) -> Option<Self> {
        let matches = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(dtype));
        FLOATS.iter().find(|(_, names)| matches(names)).map(|(float, _)| *float)
    }

    /// The bits of a number in memory.
    fn bits(self) -> u32 {
        match self {
            Self::F64 => 64,
            Self::F32 | Self::Tf32 => 32,
            Self::Bf16 | Self::F16 => 16,
        }
    }

    /// The bits that take part in arithmetic. TF32 has the exponent of f32 and the mantissa of f16, despite its name.
    fn nominal_bits(self) -> u32 {
        if self == Self::Tf32 { 19 } else { self.bits() }
    }
}

/// The bits per number in this dtype, including its share of the scales. `None` for an unknown dtype.
pub fn bits(dtype: &str) -> Option<f64> {
    let name = dtype.to_ascii_lowercase();
    let other = || OTHER_DTYPES.iter().find(|(other, _)| *other == name).map(|(_, bits)| *bits);
    let variant = || {
        let found = FILE_DTYPE_OF_BEGINNING.iter().find(|(beginning, _)| name.starts_with(beginning));
        Dtype::bits_of(found?.1)
    };
    let float = Float::named(&name).map(|float| f64::from(float.bits()));
    float.or_else(other).or_else(|| Dtype::bits_of(&name)).or_else(variant)
}

/// The known dtypes, each by one name.
pub fn names() -> Vec<&'static str> {
    let floats = FLOATS.iter().filter_map(|(_, names)| names.first().copied());
    let others = OTHER_DTYPES.iter().map(|(name, _)| *name);
    floats.chain(others).chain(FILE_DTYPE_OF_BEGINNING.iter().map(|(_, name)| *name)).collect()
}

/// The width of a precision: the bits of a weight, then those of the arithmetic, which are the same if no other dtype is named. In
/// thousandths of a bit; an unknown dtype counts as zero.
pub fn width(weights: Option<&str>, compute: Option<&str>) -> [u32; 2] {
    let thousandths = |dtype: &str| bits(dtype).map(|bits| (1000.0 * bits) as u32);
    [weights, compute.or(weights)].map(|dtype| dtype.and_then(thousandths).unwrap_or(0))
}

/// The beginnings of dtype names, up to the first digit.
const DTYPE_BEGINNINGS: &[&str] = &[
    "f", "fp", "float", "bf", "bfloat", "tf", "q", "iq", "tq", "i", "int", "u", "uint", "nf", "mxfp", "nvfp",
    "w",
];

/// The bits of a number without scales: those in the arithmetic of a `Float`, or else the first number in the name (`q4_k`,
/// `int8`, `w4a16`). `None` if the name does not begin like a dtype's.
pub fn nominal_bits(dtype: &str) -> Option<u32> {
    if let Some(float) = Float::named(dtype) {
        return Some(float.nominal_bits());
    }
    let name = dtype.to_ascii_lowercase();
    let beginning: &str = name.split(|char: char| char.is_ascii_digit()).next().unwrap_or_default();
    if !DTYPE_BEGINNINGS.contains(&beginning) {
        return None;
    }
    let digits: String =
        dtype.chars().skip_while(|char| !char.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Whether two names are the same dtype: `float16` and `f16`, `Q8_0` and `q8_0`.
pub fn is_same(dtype: &str, other: &str) -> bool {
    let float = Float::named(dtype);
    dtype.eq_ignore_ascii_case(other) || float.is_some() && float == Float::named(other)
}

/// Whether two dtypes hold the same numbers: the same dtype by any name, or packed bf16 and bf16.
pub fn has_same_numbers(dtype: &str, other: &str) -> bool {
    is_same(unpacked(dtype), unpacked(other))
}

/// Whether `dtype` has fewer bits than `other`. False if one of them is unknown.
pub fn is_narrower(dtype: &str, other: &str) -> bool {
    let bits = |name: &str| bits(unpacked(name));
    bits(dtype).zip(bits(other)).is_some_and(|(bits, other)| bits < other)
}

/// Packed bf16 rounds nothing, so it counts as bf16.
fn unpacked(dtype: &str) -> &str {
    if dtype.eq_ignore_ascii_case(PACKED_BF16) { "bf16" } else { dtype }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_are_known_by_the_names_of_files_and_of_frameworks() {
        let names = ["F32", "bfloat16", "bf16z", "Q8_0", "q4_k_m"];
        assert_eq!(names.map(bits), [32.0, 16.0, 12.25, 8.5, 4.5].map(Some));
        assert_eq!(bits("fancy"), None);
        assert_eq!([bits("IQ4_NL"), bits("f8_e4m3fnuz")], [Some(4.5), Some(8.0)], "names of model files");
        assert_eq!([Float::named("FP16"), Float::named("half")], [Some(Float::F16); 2]);
        assert_eq!(["half", "TF32", "fp32"].map(nominal_bits), [16, 19, 32].map(Some));
        assert_eq!(nominal_bits("bf16z"), Some(16), "packing keeps every bit of bf16");
        assert!(is_same("float16", "f16") && is_same("Q8_0", "q8_0") && !is_same("f16", "bf16"));
        assert!(has_same_numbers("bf16z", "bfloat16") && !has_same_numbers("bf16z", "f16"));
        assert!(!is_narrower("bf16z", "bf16") && is_narrower("q8_0", "bf16z"));
        assert!(is_narrower("q8_0", "bf16") && !is_narrower("bf16", "f16") && !is_narrower("fancy", "f32"));
    }
}
