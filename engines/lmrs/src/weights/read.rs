//! Reading of weights that are not used in place: a few rows at a time, on all threads, with the formats' own rounding.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use model_files::{Format, Weights as _};
use protocol::{Failed, FailureKind};

use super::Plan;
use super::files::{model, own_layout};
use super::plan::{Own, is_turned};
use crate::formats::Storage;
use crate::matrix::PANEL;
use crate::pool::Pool;
use crate::region::{NewRegion, Region};
use crate::share::share;

/// Numbers that are read at a time. Enough for long reads, but few enough to stay in a core's cache during packing and to
/// spread the last matrix over the threads.
const STEP: usize = 1 << 16;

struct Piece<'a> {
    own: &'a Own,
    first: u64,
    rows: usize,
    bytes: &'a mut [u8],
}

impl Plan {
    /// Fills owned memory. `watch` receives the number of finished bytes, from any thread.
    pub fn read(&self, pool: &Pool, watch: &(dyn Fn(u64) + Sync)) -> Result<Region, Failed> {
        let no_memory = |error: anyhow::Error| Failed::new(FailureKind::OutOfMemory, format!("{error:#}"));
        let mut region = NewRegion::new(self.own_bytes()).map_err(no_memory)?;
        let pieces = self.pieces(region.bytes_mut());
        let (failed, done) = (Mutex::new(None), AtomicU64::new(0));
        let failed_lock = || failed.lock().unwrap_or_else(PoisonError::into_inner);
        share(pool, pieces.into_iter(), |_, piece: Piece| {
            let bytes = piece.bytes.len() as u64;
            if failed_lock().is_some() {
                return;
            }
            match self.fill(piece) {
                Ok(()) => watch(done.fetch_add(bytes, Ordering::Relaxed) + bytes),
                Err(error) => *failed_lock() = Some(error),
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(region.finish()),
        }
    }

    fn pieces<'a>(&'a self, bytes: &'a mut [u8]) -> Vec<Piece<'a>> {
        let (mut pieces, mut rest, mut passed) = (Vec::new(), bytes, 0);
        for own in &self.own {
            let (_, at) = rest.split_at_mut(own.at - passed);
            let (matrix, after) = at.split_at_mut(own.bytes);
            (rest, passed) = (after, own.at + own.bytes);
            let rows = (own.rows.end - own.rows.start) as usize;
            let step = match is_turned(&self.parts[own.part]) {
                true => rows.next_multiple_of(PANEL),
                false => (STEP / own.inputs.max(1)).next_multiple_of(PANEL).max(PANEL),
            };
            let step_bytes = own.format.bytes(step, own.inputs);
            for (number, bytes) in matrix.chunks_mut(step_bytes).enumerate() {
                let first = number * step;
                pieces.push(Piece { own, first: first as u64, rows: step.min(rows - first), bytes });
            }
        }
        pieces
    }

    fn fill(&self, Piece { own, first, rows, bytes }: Piece) -> Result<(), Failed> {
        if let Storage::Rows(_) = own.format.storage {
            return self.encode(own, first, rows, bytes);
        }
        let mut encoded = vec![0; own.dtype.bytes(own.inputs as u64) as usize * rows];
        self.encode(own, first, rows, &mut encoded)?;
        if own.format.pack(own.inputs, &encoded, bytes).is_err() {
            self.is_unfit(own);
        }
        Ok(())
    }

    /// Encodes rows of a matrix, in the file layout of its dtype.
    fn encode(&self, own: &Own, first: u64, rows: usize, bytes: &mut [u8]) -> Result<(), Failed> {
        let part = &self.parts[own.part];
        let fault = |error: anyhow::Error| model(format!("{error:#}"));
        let source = &self.files.source;
        if !is_turned(part) {
            let from = own.rows.start + first;
            let rows = from..from + rows as u64;
            return source.encode(part, own_layout(part), rows, own.dtype, bytes).map_err(fault);
        }
        let all = part.rows_in(Format::Gguf).0;
        let mut whole = vec![0; own.dtype.bytes(part.elements()) as usize];
        source.encode(part, Format::Gguf, 0..all, own.dtype, &mut whole).map_err(fault)?;
        let row = whole.len() / all as usize;
        bytes.copy_from_slice(&whole[own.rows.start as usize * row..][..bytes.len()]);
        Ok(())
    }
}
