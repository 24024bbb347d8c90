//! Intel's matrix unit (AMX), which multiplies tiles.
#![expect(unsafe_code, reason = "a system call that no safe crate has")]

use std::arch::x86_64::{__cpuid, __cpuid_count};

/// The products of tiles that this process may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Products {
    pub bf16: bool,
    pub int8: bool,
}

impl Products {
    /// Reads the products of this processor, and requests permission for tiles if there are any.
    pub fn request() -> Self {
        // Leaf 7 exists if the highest leaf is at least 7.
        if __cpuid(0).eax < 7 {
            return Self::default();
        }
        let products = Self::from_cpuid(__cpuid_count(7, 0).edx);
        if products == Self::default() || request_tiles() { products } else { Self::default() }
    }

    /// Decodes CPUID leaf 7: bit 24 is tiles, 22 products of bf16, 25 of int8.
    fn from_cpuid(edx: u32) -> Self {
        let bit = |bit: u32| edx >> bit & 1 == 1;
        Self { bf16: bit(24) && bit(22), int8: bit(24) && bit(25) }
    }
}

/// Requests permission for tiles. They enlarge a thread's saved state by 8 KiB, so a process needs permission before any of its
/// threads uses them. A kernel without support for tiles returns an error.
#[cfg(target_os = "linux")]
fn request_tiles() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    /// The state component of tiles.
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and accesses no memory of this process.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Returns false, because only Linux has a known request.
#[cfg(not(target_os = "linux"))]
fn request_tiles() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_supported_only_together_with_tiles() {
        let (bf16, tile, int8) = (1 << 22, 1 << 24, 1 << 25);
        assert_eq!(Products::from_cpuid(bf16 | int8), Products::default());
        assert_eq!(Products::from_cpuid(tile | bf16), Products { bf16: true, int8: false });
        assert_eq!(Products::from_cpuid(tile | bf16 | int8), Products { bf16: true, int8: true });
    }
}
