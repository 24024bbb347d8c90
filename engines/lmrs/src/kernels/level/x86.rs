//! What x86 processors can do.
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

/// Asked once: the permission, too, is the process's.
fn amx() -> bool {
    static AMX: LazyLock<bool> = LazyLock::new(|| {
        let level = avx512() && is_x86_feature_detected!("avx512bf16");
        // Leaf 7 is there where the highest leaf is no lower.
        let has =
            level && __cpuid(0).eax >= 7 && tiles_by(__cpuid_count(7, 0).edx) && system::may_use_tiles();
        // SAFETY: it has them, and may use them. They are tried all the same.
        has && unsafe { tiles_are_right() }
    });
    *AMX
}

/// By CPUID leaf 7: bit 24 is tiles, 22 products of bf16, 25 of eight bits.
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

    /// Tiles make a thread's saved state 8 KiB larger, so a process must ask before any of its threads uses them. A kernel
    /// that knows nothing of tiles says no.
    pub fn may_use_tiles() -> bool {
        let mut result = ARCH_PRCTL;
        // SAFETY: the call takes two numbers and touches no memory of ours; the kernel overwrites rcx and r11.
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
    /// How to ask is known on Linux alone.
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
