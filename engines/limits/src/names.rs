//! The names of units in answers and records.

pub const F32_FMA: &str = "f32_fma";
pub const AVX512_BF16: &str = "avx512_bf16";
pub const AVX_VNNI: &str = "avx_vnni";
pub const AVX512_VNNI: &str = "avx512_vnni";
pub const AMX_BF16: &str = "amx_bf16";
pub const AMX_INT8: &str = "amx_int8";
pub const CUBLAS_BF16: &str = "cublas_bf16";
pub const CUBLAS_F16: &str = "cublas_f16";
pub const CUBLAS_TF32: &str = "cublas_tf32";
pub const CUBLAS_F32: &str = "cublas_f32";
