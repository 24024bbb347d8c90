//! Products distributed over the threads in small pieces: if a thread loses its core, the others take the rest of its share.
#![expect(unsafe_code, reason = "threads write disjoint columns of the same rows")]

mod largest;
mod work;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::kernels::rows::{Activations, Aligned, Apart, Packed, TOKENS};
use crate::kernels::{Level, Outputs, panels, rows};
use crate::matrix::Matrix;
use crate::pool::Pool;
use crate::rows::Rows;
use crate::share::share_if;
use largest::Largest;
pub use largest::largest;
use work::{Way, Work, panel_outputs, plan, stretch};

/// The minimum of weight bytes times tokens: below it, waking the threads costs more than it saves.
const WORTH_SHARING: usize = 64 << 10;
/// Pieces for each thread when tokens are quantised.
const PIECES: usize = 4;

/// Tokens that a thread takes at a time when they are narrowed to bf16.
const PIECE_TOKENS: usize = 8;

/// Activations in the formats of the kernels, with reused memory.
#[derive(Debug, Default)]
pub struct Scratch {
    narrowed: Aligned, // [tokens][inputs], as bf16
    apart: Apart,
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
        let works = plan(level, tokens, products);
        self.prepare(&team, x, &works);
        let units = works.last().map_or(0, Work::end);
        let most = works.iter().map(Work::most).max().unwrap_or(1);
        team.share(units, most, &|units| {
            for work in &works {
                for places in work.places(&units) {
                    // SAFETY: each unit is given to one thread, once.
                    unsafe { self.work(level, x, work, places) };
                }
            }
        });
    }

    /// The output with the largest product. `None` if a product is NaN, or if the largest is infinite.
    pub fn largest(&mut self, pool: &Pool, level: Level, x: &[f32], matrix: &Matrix) -> Option<u32> {
        assert_eq!(matrix.inputs, x.len(), "activations and the inputs of a matrix");
        let way = Way::of(level, matrix, 1);
        if way == Way::Panels {
            self.token.reshape(1, x.len());
            self.token.row_mut(0).copy_from_slice(x);
            panels::prepare(level, &self.token, &mut self.panels);
        }
        if rows::takes_bf16(level, matrix.format) {
            rows::narrow(level, x, &mut self.narrowed);
        }
        let ((unit, taken), all) = (way.units(matrix, 1), way.places(matrix));
        let best = Mutex::new(Largest::default());
        let team = Team { pool, level, alone: matrix.bytes() < WORTH_SHARING };
        team.share(all.div_ceil(unit), taken.div_ceil(unit), &|units| {
            let places = units.start * unit..(units.end * unit).min(all);
            let mut found = Largest::default();
            match way {
                Way::Dots(stretches) => {
                    let mut numbers = vec![0.0; stretches * places.len()];
                    let ranges = (0..stretches).map(|at| stretch(matrix, stretches, at, &places));
                    let parts = numbers.chunks_mut(places.len()).zip(ranges.clone());
                    let mut outs: Vec<_> = parts
                        .map(|(numbers, range)| Outputs::of(&mut numbers[..range.len()], range))
                        .collect();
                    rows::dot(level, matrix, self.activations(level, x, matrix), &mut outs);
                    for (numbers, range) in numbers.chunks(places.len()).zip(ranges) {
                        found.look(&numbers[..range.len()], range);
                    }
                }
                Way::Near | Way::Tiles => unreachable!("one token fills no tile"),
                Way::Panels => {
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

    /// Converts the activations to each format that one of these products needs.
    fn prepare(&mut self, team: &Team, x: &Rows, works: &[Work]) {
        if works.iter().any(|work| work.way == Way::Panels) {
            self.panels.reshape(x.tokens(), x.width);
            let parts = self.panels.parts(PIECES * team.pool.threads());
            share_if(!team.alone && x.tokens() > 1, team.pool, parts, |_, part| {
                panels::prepare_part(team.level, x, part);
            });
        }
        let narrow = |work: &Work| {
            matches!(work.way, Way::Dots(_)) && rows::takes_bf16(team.level, work.matrix.format)
        };
        if works.iter().any(narrow) {
            rows::narrow(team.level, x.all(), &mut self.narrowed);
        }
        if works.iter().any(|work| work.way == Way::Near) {
            self.apart.reshape(x.tokens(), x.width);
            let tokens = self.apart.tokens_mut();
            team.share(tokens.len(), PIECE_TOKENS, &|range| {
                for token in range {
                    let mut lines = tokens[token].lock().unwrap_or_else(PoisonError::into_inner);
                    rows::narrow_lines(team.level, x.row(token), &mut lines);
                }
            });
        }
        if works.iter().any(|work| work.way == Way::Tiles) {
            self.pairs.reshape(x.tokens(), x.width);
            let groups = self.pairs.groups_mut();
            team.share(groups.len(), 1, &|range| {
                for group in range {
                    let mut lines = groups[group].lock().unwrap_or_else(PoisonError::into_inner);
                    rows::pack(team.level, x, group * TOKENS, &mut lines);
                }
            });
        }
    }

    /// The activations in the format of `rows::dot` for this matrix.
    fn activations<'a>(&'a self, level: Level, x: &'a [f32], matrix: &Matrix) -> Activations<'a> {
        match rows::takes_bf16(level, matrix.format) {
            true => Activations::Bf16(self.narrowed.all()),
            false => Activations::F32(x),
        }
    }

    /// # Safety
    ///
    /// No other thread works on these positions.
    unsafe fn work(&self, level: Level, x: &Rows, work: &Work, places: Range<usize>) {
        let matrix = work.matrix;
        match work.way {
            Way::Panels => {
                // SAFETY: pieces share no positions, and positions share no outputs. The same below.
                let mut out = unsafe { work.out.take(panel_outputs(matrix, &places)) };
                panels::multiply(level, matrix, places, &self.panels, &mut out);
            }
            Way::Dots(stretches) => {
                let ranges = (0..stretches).map(|at| stretch(matrix, stretches, at, &places));
                // SAFETY: as above.
                let mut outs: Vec<_> = ranges.map(|range| unsafe { work.out.take(range) }).collect();
                rows::dot(level, matrix, self.activations(level, x.all(), matrix), &mut outs);
            }
            Way::Near => {
                // SAFETY: as above.
                let mut out = unsafe { work.out.take(places) };
                rows::pass(level, matrix, &self.apart, &mut out);
            }
            Way::Tiles => {
                // SAFETY: as above.
                let mut out = unsafe { work.out.take(places) };
                rows::tile(level, matrix, &self.pairs, &mut out);
            }
        }
    }
}

/// The workers of a product.
struct Team<'a> {
    pool: &'a Pool,
    level: Level,
    /// Whether the caller works alone.
    alone: bool,
}

impl Team<'_> {
    /// Runs the work for each number below `count` once, on any thread, at most `most` at a time.
    fn share(&self, count: usize, most: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
        if self.alone {
            work(0..count);
        } else {
            self.pool.share_ranges(count, most, &|range, _| work(range));
        }
    }
}
