//! Large pages, if the system offers them. Without them memory is slower, with the same results.

use memmap2::MmapMut;

/// The size and the alignment of a large page.
pub const LARGE_PAGE: usize = 2 << 20;

#[cfg(target_os = "linux")]
pub fn ask(pages: &MmapMut) {
    let _ = pages.advise(memmap2::Advice::HugePage);
}

#[cfg(not(target_os = "linux"))]
pub fn ask(_: &MmapMut) {}
