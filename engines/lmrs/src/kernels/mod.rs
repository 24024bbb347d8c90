//! Arithmetic on slices, once for each level of what a processor can do. Knows no model and no thread.

pub mod outputs;
pub mod panels;

/// What a processor can do, the least first. Each does what those before it do, faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Portable,
    #[cfg(target_arch = "aarch64")]
    Neon,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Amx,
}
