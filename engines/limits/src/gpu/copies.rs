//! The speed of copies within a GPU's memory.

use std::time::Duration;

use super::driver::Context;
use crate::Copies;

const MIB: u64 = 1 << 20;
/// Bytes of each of the two buffers. Two of the smallest are four times the largest cache of any GPU (126 MiB). A copy of the
/// largest takes most of a millisecond on the fastest GPU.
const SMALLEST: u64 = 256 * MIB;
const LARGEST: u64 = 1024 * MIB;
/// The divisor of the free memory for each buffer.
const SHARE: u64 = 4;

/// Read and written bytes, with the time of the best pass.
pub fn probe(context: &Context, budget: Duration) -> Result<Copies, String> {
    let free = context.free_bytes()?;
    let bytes = size(free).ok_or_else(|| format!("only {} MiB of its memory are free", free / MIB))?;
    let (source, destination) = (context.allocate(bytes)?, context.allocate(bytes)?);
    source.set(0x5a)?;
    let ns = context.fastest(budget, || destination.copy_from(&source))?;
    Ok(Copies { bytes: 2 * bytes as u64, ns })
}

fn size(free: u64) -> Option<usize> {
    let bytes = (free / SHARE / MIB * MIB).min(LARGEST);
    usize::try_from(bytes).ok().filter(|_| bytes >= SMALLEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_a_quarter_of_the_free_memory_and_neither_too_small_nor_too_large() {
        assert_eq!(size(80 << 30), Some(1 << 30));
        assert_eq!(size((2 << 30) + 5), Some(512 << 20));
        assert_eq!(size(1 << 30), Some(256 << 20));
        assert_eq!(size((1 << 30) - 1), None);
    }
}
