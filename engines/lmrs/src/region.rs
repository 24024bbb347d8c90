//! Memory of weights: anonymous pages, or a mapped file.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use memmap2::{Mmap, MmapMut, MmapOptions};

/// Read-only memory at a fixed address. Clones share it.
#[derive(Debug, Clone)]
pub struct Region {
    pages: Arc<Pages>,
    range: Range<usize>,
}

#[derive(Debug)]
enum Pages {
    File(Mmap),
    Anonymous(MmapMut),
}

/// Anonymous memory during initialization. It starts as zeros.
#[derive(Debug)]
pub struct NewRegion(MmapMut);

impl NewRegion {
    /// Allocates memory, on large pages if possible. No page is touched, so each page is placed near the thread that fills it.
    pub fn new(bytes: usize) -> Result<Self> {
        let pages = MmapOptions::new().len(bytes.max(1)).map_anon();
        let pages = pages.with_context(|| format!("cannot allocate {bytes} bytes"))?;
        if bytes >= LARGE_PAGE_BYTES {
            request_large_pages(&pages);
        }
        Ok(Self(pages))
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    pub fn finish(self) -> Region {
        let range = 0..self.0.len();
        Region { pages: Arc::new(Pages::Anonymous(self.0)), range }
    }
}

impl Region {
    pub fn from_file(file: Mmap) -> Self {
        let range = 0..file.len();
        Self { pages: Arc::new(Pages::File(file)), range }
    }

    pub fn part(&self, range: Range<usize>) -> Self {
        let inner = self.range.start + range.start..self.range.start + range.end;
        assert!(inner.start <= inner.end && inner.end <= self.range.end, "a part is in its region");
        Self { pages: Arc::clone(&self.pages), range: inner }
    }

    pub fn bytes(&self) -> &[u8] {
        let all: &[u8] = match &*self.pages {
            Pages::File(pages) => pages,
            Pages::Anonymous(pages) => pages,
        };
        &all[self.range.clone()]
    }
}

/// The size and the alignment of a large page.
pub const LARGE_PAGE_BYTES: usize = 2 << 20;

#[cfg(target_os = "linux")]
pub fn request_large_pages(pages: &MmapMut) {
    let _ = pages.advise(memmap2::Advice::HugePage);
}

#[cfg(not(target_os = "linux"))]
pub fn request_large_pages(_: &MmapMut) {}
