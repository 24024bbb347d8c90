//! Large pages, where a system has them for the asking. Without them memory is slower and no less right.

use memmap2::MmapMut;

/// Where one may begin.
pub const LARGE_PAGE: usize = 2 << 20;

#[cfg(target_os = "linux")]
pub fn ask(pages: &MmapMut) {
    let _ = pages.advise(memmap2::Advice::HugePage);
}

#[cfg(not(target_os = "linux"))]
pub fn ask(_: &MmapMut) {}
