//! The levels of x86 processors.
#![expect(
    unsafe_code,
    reason = "a system call that no crate of the tree has, and instructions that are tried"
)]

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::LazyLock;

use super::{Entry, Instructions};
use crate::kernels::rows::tiles_are_right;

pub const LEVELS: &[Entry] = &[
    (Instructions::Portable, "portable", || true),
    (Instructions::Avx2, "avx2", avx2),
    (Instructions::Avx512, "avx512", avx512),
    (Instructions::Amx, "amx", amx),
];

fn avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

fn avx512() -> bool {
    avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
}

/// Checked once, because the permission is per process.
fn amx() -> bool {
    static AMX: LazyLock<bool> = LazyLock::new(|| {
        let level = avx512() && is_x86_feature_detected!("avx512bf16");
        // Leaf 7 exists if the highest leaf is at least 7.
        let has =
            level && __cpuid(0).eax >= 7 && tiles_by(__cpuid_count(7, 0).edx) && system::may_use_tiles();
        // SAFETY: the processor has tiles and the process may use them. A test product confirms that they work.
        has && unsafe { tiles_are_right() }
    });
    *AMX
}

/// Decodes CPUID leaf 7: bit 24 is tiles, 22 products of bf16, 25 of eight bits.
fn tiles_by(edx: u32) -> bool {
    [22, 24, 25].iter().all(|bit| edx >> bit & 1 == 1)
}

#[cfg(target_os = "linux")]
mod system {
    use std::arch::asm;

    const ARCH_PRCTL: u64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    /// The state component of tiles.
    const XFEATURE_XTILEDATA: u64 = 18;

    /// Requests permission for tiles. They enlarge a thread's saved state by 8 KiB, so a process must ask before any of its
    /// threads uses them. A kernel without support for tiles refuses.
    pub fn may_use_tiles() -> bool {
        let mut result = ARCH_PRCTL;
        // SAFETY: the call takes two numbers and touches none of our memory; the kernel overwrites rcx and r11.
        unsafe {
            asm!(
                "syscall",
                inout("rax") result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XFEATURE_XTILEDATA,
                lateout("rcx") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        result == 0
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// Only Linux has a known way to ask.
    pub fn may_use_tiles() -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_there_where_all_three_bits_say_so() {
        assert!(tiles_by(1 << 22 | 1 << 24 | 1 << 25));
        assert!(!tiles_by(1 << 24 | 1 << 25) && !tiles_by(1 << 22 | 1 << 24) && !tiles_by(0));
    }
}
