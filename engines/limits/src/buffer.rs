//! A buffer larger than the caches, in huge pages if the kernel has them, freed on drop.
#![expect(unsafe_code, reason = "what is touched first by those who read it is not initialised before")]

use std::mem::MaybeUninit;

/// Aligned, so that no vector load crosses cache lines.
#[repr(align(4096))]
pub struct Page(#[expect(dead_code, reason = "it is read as bytes")] [u8; 4096]);

pub struct Buffer(Vec<Page>);

impl Buffer {
    /// An untouched buffer. `None` if there is not enough memory.
    pub fn new(bytes: u64) -> Option<Self> {
        let pages = usize::try_from(bytes / size_of::<Page>() as u64).ok().filter(|&pages| pages > 0)?;
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(pages).ok()?;
        system::wish_for_huge_pages(buffer.spare_capacity_mut());
        Some(Self(buffer))
    }

    /// Equal parts, one for each thread.
    pub fn parts(&mut self, threads: usize) -> impl Iterator<Item = &mut [MaybeUninit<Page>]> {
        let pages = self.0.spare_capacity_mut();
        let each = pages.len() / threads.max(1);
        pages.chunks_exact_mut(each.max(1)).take(threads)
    }
}

/// Writes a part on the calling thread: the kernel places a page near the thread that touches it first.
pub fn touch(part: &mut [MaybeUninit<Page>]) -> &[u8] {
    for page in &mut *part {
        page.write(Page([1; 4096]));
    }
    // SAFETY: every page of the part was just written, and a page is bytes without padding.
    unsafe { std::slice::from_raw_parts(part.as_ptr().cast(), size_of_val(part)) }
}

#[cfg(target_os = "linux")]
mod system {
    use std::mem::MaybeUninit;

    use rustix::mm::{Advice, madvise};

    use super::Page;

    /// Requests huge pages, as engines do: with small pages, reads also wait for page tables. The kernel may ignore the advice.
    pub fn wish_for_huge_pages(pages: &mut [MaybeUninit<Page>]) {
        // SAFETY: the range is exactly this slice, in whole pages, and the advice does not change its contents.
        let _ = unsafe { madvise(pages.as_mut_ptr().cast(), size_of_val(pages), Advice::LinuxHugepage) };
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub fn wish_for_huge_pages(_pages: &mut [std::mem::MaybeUninit<super::Page>]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_a_part_and_all_of_it_is_written() {
        let mut buffer = Buffer::new(10 * 4096 + 1).unwrap();
        let parts: Vec<&[u8]> = buffer.parts(3).map(touch).collect();
        assert_eq!(parts.len(), 3);
        for part in parts {
            assert_eq!((part.len(), part.as_ptr() as usize % 4096), (3 * 4096, 0));
            assert!(part.iter().all(|&byte| byte == 1));
        }
    }

    #[test]
    fn a_buffer_too_small_for_a_page_or_too_large_for_any_machine_is_none() {
        assert!(Buffer::new(0).is_none() && Buffer::new(4095).is_none() && Buffer::new(u64::MAX).is_none());
        // Fewer pages than threads: each part has a page at least, and some threads have no part.
        assert_eq!(Buffer::new(2 * 4096).unwrap().parts(3).count(), 2);
    }
}
