//! Products shared out over the threads, in small chunks: a thread that loses its core for a while leaves the rest of its
//! share to the others.
#![expect(unsafe_code, reason = "threads write disjoint columns of the same rows")]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::kernels::outputs::Split;
use crate::kernels::rows::{DECODE_TOKENS, Packed, TOKENS};
use crate::kernels::{Level, Outputs, panels, rows};
use crate::matrix::{Matrix, PANEL};
use crate::pool::Pool;
use crate::rows::Rows;
use crate::share::share_if;

/// Bytes of weights that a thread takes at a time when memory sets the pace: some microseconds' worth.
const CHUNK_BYTES: usize = 256 << 10;
/// And when many tokens read the same floats, group by group: half of a second cache.
const NEAR_BYTES: usize = 512 << 10;
/// Chunks for each thread at least, so that they end together.
const CHUNKS: usize = 4;
/// Panels that a thread takes at a time when many tokens use each weight.
const CHUNK_PANELS: usize = 16;
/// Outputs that a thread takes at a time when many tokens use each weight.
const CHUNK_OUTPUTS: usize = 96;
/// Below so many bytes of weights, times tokens, waking the others takes longer than what they save.
const WORTH_SHARING: usize = 64 << 10;

/// Activations in the forms that kernels want, and their memory.
#[derive(Debug, Default)]
pub struct Scratch {
    pairs: Packed,
    panels: panels::Input,
    token: Rows,
}

impl Scratch {
    pub fn multiply(&mut self, pool: &Pool, level: Level, x: &Rows, products: &mut [(&Matrix, &mut Rows)]) {
        let tokens = x.tokens();
        for (matrix, out) in &mut *products {
            assert_eq!(matrix.inputs, x.width, "activations and the inputs of a matrix");
            out.reshape(tokens, matrix.outputs);
        }
        if tokens == 0 {
            return;
        }
        let bytes: usize = products.iter().map(|(matrix, _)| matrix.bytes()).sum();
        let team = Team { pool, level, alone: bytes * tokens < WORTH_SHARING };
        let mut chunks = 0;
        let works = products.iter_mut().map(|(matrix, out)| {
            let first = chunks;
            let way = Way::of(level, matrix, tokens);
            let chunk = way.chunk(matrix, tokens, pool);
            let work = Work { matrix, way, first, chunk, out: Outputs::split(out) };
            chunks += way.places(matrix).div_ceil(work.chunk);
            work
        });
        let works: Vec<Work> = works.collect();
        self.prepare(&team, x, &works);
        team.share(chunks, &|chunk| {
            let product = works.partition_point(|work| work.first <= chunk) - 1;
            // SAFETY: each chunk is given to one thread, once.
            unsafe { self.work(level, x, &works[product], chunk - works[product].first) };
        });
    }

    pub fn largest(&mut self, pool: &Pool, level: Level, x: &[f32], matrix: &Matrix) -> Option<u32> {
        assert_eq!(matrix.inputs, x.len(), "activations and the inputs of a matrix");
        let way = Way::of(level, matrix, 1);
        if way == Way::Panels {
            self.token.reshape(1, x.len());
            self.token.row_mut(0).copy_from_slice(x);
            panels::prepare(level, &self.token, &mut self.panels);
        }
        let (all, chunk) = (way.places(matrix), way.chunk(matrix, 1, pool));
        let best = Mutex::new(Largest::default());
        let team = Team { pool, level, alone: matrix.bytes() < WORTH_SHARING };
        team.share(all.div_ceil(chunk), &|taken| {
            let places = taken * chunk..((taken + 1) * chunk).min(all);
            let mut found = Largest::default();
            match way {
                Way::Dots(stretches) => {
                    let mut numbers = vec![0.0; stretches * places.len()];
                    let ranges = (0..stretches).map(|at| stretch(matrix, stretches, at, &places));
                    let parts = numbers.chunks_mut(places.len()).zip(ranges.clone());
                    let mut outs: Vec<_> = parts
                        .map(|(numbers, range)| Outputs::of(&mut numbers[..range.len()], range))
                        .collect();
                    rows::dot(level, matrix, x, &mut outs);
                    for (numbers, range) in numbers.chunks(places.len()).zip(ranges) {
                        found.look(numbers, range);
                    }
                }
                Way::Panels | Way::Tiles => {
                    let outputs = panel_outputs(matrix, &places);
                    let mut numbers = vec![0.0; outputs.len()];
                    let mut out = Outputs::of(&mut numbers, outputs.clone());
                    panels::multiply(level, matrix, places, &self.panels, &mut out);
                    found.look(&numbers, outputs);
                }
            }
            best.lock().unwrap_or_else(PoisonError::into_inner).meet(found);
        });
        best.into_inner().unwrap_or_else(PoisonError::into_inner).among_numbers()
    }

    /// In each form that one of these products wants.
    fn prepare(&mut self, team: &Team, x: &Rows, works: &[Work]) {
        if works.iter().any(|work| work.way == Way::Panels) {
            self.panels.reshape(x.tokens(), x.width);
            let parts = self.panels.parts(CHUNKS * team.pool.threads());
            share_if(!team.alone && x.tokens() > 1, team.pool, parts, |_, part| {
                panels::prepare_part(team.level, x, part);
            });
        }
        if works.iter().any(|work| work.way == Way::Tiles) {
            self.pairs.reshape(x.tokens(), x.width);
            let groups = self.pairs.groups_mut();
            team.share(groups.len(), &|group| {
                let mut lines = groups[group].lock().unwrap_or_else(PoisonError::into_inner);
                rows::pack(team.level, x, group * TOKENS, &mut lines);
            });
        }
    }

    /// # Safety
    ///
    /// Nobody else works at this chunk.
    unsafe fn work(&self, level: Level, x: &Rows, work: &Work, chunk: usize) {
        let matrix = work.matrix;
        let places = chunk * work.chunk..((chunk + 1) * work.chunk).min(work.way.places(matrix));
        match work.way {
            Way::Panels => {
                // SAFETY: chunks have no place in common, and places no output. So below.
                let mut out = unsafe { work.out.take(panel_outputs(matrix, &places)) };
                panels::multiply(level, matrix, places, &self.panels, &mut out);
            }
            Way::Dots(stretches) => {
                let ranges = (0..stretches).map(|at| stretch(matrix, stretches, at, &places));
                // SAFETY: as above.
                let mut outs: Vec<_> = ranges.map(|range| unsafe { work.out.take(range) }).collect();
                rows::dot(level, matrix, x.all(), &mut outs);
            }
            Way::Tiles => {
                // SAFETY: as above.
                let mut out = unsafe { work.out.take(places) };
                rows::tile(level, matrix, &self.pairs, &mut out);
            }
        }
    }
}

/// One product: how it is computed, and in which chunks.
struct Work<'a> {
    matrix: &'a Matrix,
    way: Way,
    /// Where its chunks begin among those of all products.
    first: usize,
    /// Places that a thread takes at a time.
    chunk: usize,
    out: Split<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A place is a panel.
    Panels,
    /// The outputs are cut into so many stretches that are read side by side; a place is one output of each.
    Dots(usize),
    /// A place is an output; of panels, too, where they are widened.
    Tiles,
}

impl Way {
    fn of(level: Level, matrix: &Matrix, tokens: usize) -> Self {
        match matrix.format {
            format if rows::takes_tiles(level, format, tokens) => Self::Tiles,
            format if format.is_panels() => Self::Panels,
            _ => Self::Dots(rows::stretches(level, matrix, tokens)),
        }
    }

    fn places(self, matrix: &Matrix) -> usize {
        match self {
            Self::Panels => matrix.outputs.div_ceil(PANEL),
            Self::Dots(stretches) => matrix.outputs.div_ceil(stretches),
            Self::Tiles => matrix.outputs,
        }
    }

    fn chunk(self, matrix: &Matrix, tokens: usize, pool: &Pool) -> usize {
        let places = self.places(matrix);
        let of_each = places / (CHUNKS * pool.threads());
        let [of_memory, near] = [CHUNK_BYTES, NEAR_BYTES].map(|bytes| bytes * places / matrix.bytes().max(1));
        match self {
            Self::Panels if tokens > DECODE_TOKENS => of_each.clamp(1, CHUNK_PANELS),
            Self::Panels => of_each.min(of_memory).max(1),
            Self::Dots(_) if tokens > DECODE_TOKENS => of_each.min(near).max(1),
            Self::Dots(_) => of_each.min(of_memory).max(1),
            // All threads have something to do, and whole tiles.
            Self::Tiles => {
                (matrix.outputs / (2 * pool.threads())).next_multiple_of(32).clamp(32, CHUNK_OUTPUTS)
            }
        }
    }
}

/// Of one stretch the outputs at these places.
fn stretch(matrix: &Matrix, stretches: usize, at: usize, places: &Range<usize>) -> Range<usize> {
    let first = at * matrix.outputs.div_ceil(stretches);
    let last = ((at + 1) * matrix.outputs.div_ceil(stretches)).min(matrix.outputs);
    (first + places.start).min(last)..(first + places.end).min(last)
}

fn panel_outputs(matrix: &Matrix, panels: &Range<usize>) -> Range<usize> {
    panels.start * PANEL..(panels.end * PANEL).min(matrix.outputs)
}

/// Numbers that are compared side by side.
const LOOKED_AT: usize = 64;

/// The largest number seen, and the lowest output that has it.
#[derive(Debug, Clone, Copy)]
struct Largest {
    number: f32,
    output: u32,
    /// One that was seen is no number.
    none: bool,
}

impl Default for Largest {
    fn default() -> Self {
        Self { number: f32::NEG_INFINITY, output: 0, none: false }
    }
}

impl Largest {
    fn look(&mut self, numbers: &[f32], outputs: Range<usize>) {
        // Seldom is one of them larger, so that is found out first, many numbers at a time.
        let counts = |number: &f32| *number > self.number || number.is_nan();
        if !numbers
            .chunks(LOOKED_AT)
            .any(|numbers| numbers.iter().fold(false, |any, number| any | counts(number)))
        {
            return;
        }
        for (number, output) in numbers.iter().zip(outputs) {
            self.none |= number.is_nan();
            if *number > self.number {
                (self.number, self.output) = (*number, output as u32);
            }
        }
    }

    fn meet(&mut self, other: Self) {
        let none = self.none | other.none;
        let equal = other.number == self.number && other.output < self.output;
        if other.number > self.number || equal && other.number > f32::NEG_INFINITY {
            *self = other;
        }
        self.none = none;
    }

    fn among_numbers(self) -> Option<u32> {
        (!self.none && self.number.is_finite()).then_some(self.output)
    }
}

/// The output whose number is the largest, the lowest of equals; `None` where one is no number, or the largest is infinite.
pub fn largest(numbers: &[f32]) -> Option<u32> {
    let mut largest = Largest::default();
    largest.look(numbers, 0..numbers.len());
    largest.among_numbers()
}

/// Who works.
struct Team<'a> {
    pool: &'a Pool,
    level: Level,
    /// The caller does all of it.
    alone: bool,
}

impl Team<'_> {
    /// Each number below `chunks` once, on whichever thread.
    fn share(&self, chunks: usize, work: &(dyn Fn(usize) + Sync)) {
        if self.alone || chunks < 2 || self.pool.threads() == 1 {
            return (0..chunks).for_each(work);
        }
        let shares = Shares::new(chunks, self.pool.threads());
        self.pool.run(&|thread| {
            while let Some(chunk) = shares.take(thread) {
                work(chunk);
            }
        });
    }
}

/// Numbers below a limit, each given out once. Every thread has a share of neighbours, so that it walks through memory as long
/// as it can, and then takes what others have left.
struct Shares(Vec<Share>);

/// A cache line of its own, so that threads meet on one only when one helps another.
#[repr(align(128))]
struct Share {
    next: AtomicUsize,
    end: usize,
}

impl Shares {
    fn new(limit: usize, threads: usize) -> Self {
        let bound = |thread: usize| thread * limit / threads;
        let share = |thread| Share { next: bound(thread).into(), end: bound(thread + 1) };
        Self((0..threads).map(share).collect())
    }

    fn take(&self, thread: usize) -> Option<usize> {
        let shares = self.0[thread..].iter().chain(&self.0[..thread]);
        // What was written before is seen after the pool's own barrier; here only the number counts.
        let mut taken = shares.map(|share| {
            (share.next.load(Ordering::Relaxed) < share.end)
                .then(|| share.next.fetch_add(1, Ordering::Relaxed))
                .filter(|next| *next < share.end)
        });
        taken.find_map(|next| next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_given_out_once_whichever_threads_ask() {
        for (limit, threads) in [(0, 3), (1, 2), (7, 3), (100, 8), (5, 8)] {
            let shares = Shares::new(limit, threads);
            let mut seen: Vec<usize> = (0..).map_while(|ask| shares.take(ask * 5 % 3 % threads)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..limit).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_largest_is_the_lowest_of_equals() {
        let mut largest = Largest::default();
        largest.look(&[0.5, 1.0, 1.0], 10..13);
        assert_eq!(largest.among_numbers(), Some(11));
        let lower = Largest { number: 1.0, output: 4, none: false };
        largest.meet(lower);
        largest.meet(Largest { number: 1.0, output: 5, none: false });
        largest.meet(Largest::default());
        assert_eq!(largest.among_numbers(), Some(4));
    }

    #[test]
    fn nothing_is_the_largest_where_one_is_no_number() {
        for numbers in
            [[f32::NAN; 3], [1.0, f32::NAN, 0.0], [f32::INFINITY, 1.0, 0.0], [f32::NEG_INFINITY; 3]]
        {
            assert_eq!(largest(&numbers), None, "{numbers:?}");
            let mut met = Largest::default();
            met.look(&numbers, 0..3);
            met.meet(Largest { number: 0.5, output: 7, none: false });
            assert!(met.among_numbers().is_none() || numbers == [f32::NEG_INFINITY; 3]);
        }
        assert_eq!(largest(&[f32::NEG_INFINITY, -1.0]), Some(1));
    }
}
