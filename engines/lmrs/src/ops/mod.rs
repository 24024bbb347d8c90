//! Products of activations with weights, distributed over the threads in small pieces: if a thread loses its core, the others
//! take the remaining pieces of its share. `plan` chooses the kernel of each product, and the pieces.
#![expect(unsafe_code, reason = "threads write disjoint columns of the same rows")]

mod largest;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::kernels::outputs::Split;
use crate::kernels::rows::{
    self, Activations, AlignedBf16, GROUP_TOKENS, MAX_DECODE_TOKENS, PaddedRows, TileInput,
};
use crate::kernels::{Level, Outputs, panels};
use crate::matrix::{Matrix, PANEL_OUTPUTS, Rows};
use crate::pool::Pool;
use largest::Largest;
pub use largest::largest;

/// Threads share the work if the bytes of weights, multiplied by the number of tokens, are at least this number. For less work,
/// waking the threads costs more than it saves.
const MIN_SHARED_BYTES: usize = 64 << 10;
/// The number of pieces for each thread when activations are quantized for panels.
const PIECES_PER_THREAD: usize = 4;

/// The number of tokens that a thread narrows to bf16 at a time.
const PIECE_TOKENS: usize = 8;

/// The threads, the level of their vector instructions, and buffers for activations in the formats of the kernels.
#[derive(Debug)]
pub struct Ops {
    pub pool: Pool,
    pub level: Level,
    scratch: Scratch,
}

#[derive(Debug, Default)]
struct Scratch {
    aligned: AlignedBf16, // [tokens][inputs], as bf16
    padded: PaddedRows,
    tiled: TileInput,
    panels: panels::Input,
    token: Rows, // [1][inputs], for `largest`
}

impl Ops {
    pub fn new(pool: Pool, level: Level) -> Self {
        Self { pool, level, scratch: Scratch::default() }
    }

    /// `out[token][output] = sum over inputs of matrix[output][input] * x[token][input]`, for several matrices with the same
    /// input, in one piece of work. Each `out` is reshaped to `[tokens, outputs]`.
    pub fn multiply(&mut self, x: &Rows, products: &mut [(&Matrix, &mut Rows)]) {
        let Self { ref pool, level, ref mut scratch } = *self;
        let tokens = x.tokens();
        for (matrix, out) in &mut *products {
            assert_eq!(matrix.inputs, x.width, "activations and the inputs of a matrix");
            out.reshape(tokens, matrix.outputs);
        }
        if tokens == 0 {
            return;
        }
        let bytes: usize = products.iter().map(|(matrix, _)| matrix.bytes()).sum();
        let workers = Workers { pool, level, is_serial: bytes * tokens < MIN_SHARED_BYTES };
        let tasks = plan(level, tokens, products);
        scratch.prepare(&workers, x, &tasks);
        let units = tasks.last().map_or(0, Task::end);
        let max_units = tasks.iter().map(|task| task.max_units).max().unwrap_or(1);
        workers.share(units, max_units, &|units| {
            for task in &tasks {
                for positions in task.positions(&units) {
                    // SAFETY: each unit is given to one thread, once.
                    unsafe { scratch.run(level, x, task, positions) };
                }
            }
        });
    }

    /// The output with the largest product (among equals, the lowest output), without storing the products. `x` is one token.
    /// `None` if a product is NaN, or if the largest is infinite.
    pub fn largest(&mut self, x: &[f32], matrix: &Matrix) -> Option<u32> {
        let Self { ref pool, level, ref mut scratch } = *self;
        assert_eq!(matrix.inputs, x.len(), "activations and the inputs of a matrix");
        let kernel = Kernel::of(level, matrix, 1);
        if kernel == Kernel::Panels {
            scratch.token.reshape(1, x.len());
            scratch.token.row_mut(0).copy_from_slice(x);
            panels::prepare(level, &scratch.token, &mut scratch.panels);
        }
        if rows::uses_bf16(level, matrix.format) {
            rows::narrow(level, x, &mut scratch.aligned);
        }
        let (unit_positions, taken_positions) = kernel.units(matrix, 1);
        let all = kernel.positions(matrix);
        let best = Mutex::new(Largest::default());
        let workers = Workers { pool, level, is_serial: matrix.bytes() < MIN_SHARED_BYTES };
        workers.share(all.div_ceil(unit_positions), taken_positions.div_ceil(unit_positions), &|units| {
            let positions = units.start * unit_positions..(units.end * unit_positions).min(all);
            let mut largest = Largest::default();
            match kernel {
                Kernel::Dots(streams) => {
                    let mut numbers = vec![0.0; streams * positions.len()];
                    let ranges =
                        (0..streams).map(|stream| stream_outputs(matrix, streams, stream, &positions));
                    let parts = numbers.chunks_mut(positions.len()).zip(ranges.clone());
                    let mut outs: Vec<_> = parts
                        .map(|(numbers, range)| Outputs::of(&mut numbers[..range.len()], range))
                        .collect();
                    rows::dot(level, matrix, scratch.activations(level, x, matrix), &mut outs);
                    for (numbers, range) in numbers.chunks(positions.len()).zip(ranges) {
                        largest.scan(&numbers[..range.len()], range);
                    }
                }
                Kernel::Blocked | Kernel::Tiles => unreachable!("kernels of several tokens"),
                Kernel::Panels => {
                    let outputs = panel_outputs(matrix, &positions);
                    let mut numbers = vec![0.0; outputs.len()];
                    let mut out = Outputs::of(&mut numbers, outputs.clone());
                    panels::multiply(level, matrix, positions, &scratch.panels, &mut out);
                    largest.scan(&numbers, outputs);
                }
            }
            best.lock().unwrap_or_else(PoisonError::into_inner).merge(largest);
        });
        best.into_inner().unwrap_or_else(PoisonError::into_inner).output()
    }
}

impl Scratch {
    /// Converts the activations to each format that one of these products needs.
    fn prepare(&mut self, workers: &Workers, x: &Rows, tasks: &[Task]) {
        if tasks.iter().any(|task| task.kernel == Kernel::Panels) {
            self.panels.reshape(x.tokens(), x.width);
            let parts = self.panels.parts(PIECES_PER_THREAD * workers.pool.threads());
            workers.pool.share_if(!workers.is_serial && x.tokens() > 1, parts, |_, part| {
                panels::prepare_part(workers.level, x, part);
            });
        }
        let needs_bf16 = |task: &Task| {
            matches!(task.kernel, Kernel::Dots(_)) && rows::uses_bf16(workers.level, task.matrix.format)
        };
        if tasks.iter().any(needs_bf16) {
            rows::narrow(workers.level, x.all(), &mut self.aligned);
        }
        if tasks.iter().any(|task| task.kernel == Kernel::Blocked) {
            self.padded.reshape(x.tokens(), x.width);
            let tokens = self.padded.tokens_mut();
            workers.share(tokens.len(), PIECE_TOKENS, &|range| {
                for token in range {
                    let mut lines = tokens[token].lock().unwrap_or_else(PoisonError::into_inner);
                    rows::narrow_lines(workers.level, x.row(token), &mut lines);
                }
            });
        }
        if tasks.iter().any(|task| task.kernel == Kernel::Tiles) {
            self.tiled.reshape(x.tokens(), x.width);
            let groups = self.tiled.groups_mut();
            workers.share(groups.len(), 1, &|range| {
                for group in range {
                    let mut lines = groups[group].lock().unwrap_or_else(PoisonError::into_inner);
                    rows::pack(workers.level, x, group * GROUP_TOKENS, &mut lines);
                }
            });
        }
    }

    /// The activations in the format of `rows::dot` for this matrix.
    fn activations<'a>(&'a self, level: Level, x: &'a [f32], matrix: &Matrix) -> Activations<'a> {
        match rows::uses_bf16(level, matrix.format) {
            true => Activations::Bf16(self.aligned.all()),
            false => Activations::F32(x),
        }
    }

    /// # Safety
    ///
    /// No other thread works on these positions.
    unsafe fn run(&self, level: Level, x: &Rows, task: &Task, positions: Range<usize>) {
        let matrix = task.matrix;
        match task.kernel {
            Kernel::Panels => {
                // SAFETY: pieces share no positions, and positions share no outputs.
                let mut out = unsafe { task.out.take(panel_outputs(matrix, &positions)) };
                panels::multiply(level, matrix, positions, &self.panels, &mut out);
            }
            Kernel::Dots(streams) => {
                let ranges = (0..streams).map(|stream| stream_outputs(matrix, streams, stream, &positions));
                // SAFETY: as above.
                let mut outs: Vec<_> = ranges.map(|range| unsafe { task.out.take(range) }).collect();
                rows::dot(level, matrix, self.activations(level, x.all(), matrix), &mut outs);
            }
            Kernel::Blocked => {
                // SAFETY: as above.
                let mut out = unsafe { task.out.take(positions) };
                rows::multiply_blocked(level, matrix, &self.padded, &mut out);
            }
            Kernel::Tiles => {
                // SAFETY: as above.
                let mut out = unsafe { task.out.take(positions) };
                rows::tile(level, matrix, &self.tiled, &mut out);
            }
        }
    }
}

struct Workers<'a> {
    pool: &'a Pool,
    level: Level,
    /// Whether the caller does all the work.
    is_serial: bool,
}

impl Workers<'_> {
    /// Runs the work for each number below `count` once: on any thread and at most `max_len` at a time, or all at once on the
    /// caller's thread if `is_serial`.
    fn share(&self, count: usize, max_len: usize, work: &(dyn Fn(Range<usize>) + Sync)) {
        if self.is_serial {
            work(0..count);
        } else {
            self.pool.share_ranges(count, max_len, &|range, _| work(range));
        }
    }
}

/// Bytes of weights in a unit (the least that a thread takes) when memory limits the speed: a few microseconds of work. The
/// other threads wait at most this long for the last one.
const UNIT_BYTES: usize = 64 << 10;
/// Bytes of weights that a thread takes at a time while many are left.
const TAKEN_BYTES: usize = 512 << 10;
/// Bytes of weights that a thread takes at a time when many tokens are divided into groups, which each read the weights: half of
/// a second-level cache.
const GROUP_BYTES: usize = 512 << 10;
/// Panels that a thread takes at a time when many tokens use each weight.
const TAKEN_PANELS: usize = 16;
/// Outputs of a unit for tiles, and the most outputs of a unit for `Blocked`.
const TILE_OUTPUTS: usize = 32;
/// Outputs that a thread takes at a time for tiles.
const TAKEN_OUTPUTS: usize = 96;

/// One product of a call, with its kernel and its units: ranges of `unit_positions` positions (see `Kernel`).
struct Task<'a> {
    matrix: &'a Matrix,
    kernel: Kernel,
    /// The index of the task's first unit among the units of all products.
    first: usize,
    unit_positions: usize,
    /// The most units that a thread takes at a time.
    max_units: usize,
    out: Split<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kernel {
    /// Panel kernels; a position is a panel.
    Panels,
    /// Dot products of this number of streams (ranges of outputs), read side by side; a position is one output of each.
    Dots(usize),
    /// Several tokens use rows of weights that stay in the second-level cache; a position is an output.
    Blocked,
    /// Tiles; a position is an output, for widened panels too.
    Tiles,
}

impl Kernel {
    fn of(level: Level, matrix: &Matrix, tokens: usize) -> Self {
        match matrix.format {
            format if rows::uses_tiles(level, format, tokens) => Self::Tiles,
            format if rows::uses_blocked(level, format, tokens) => Self::Blocked,
            format if format.is_panels() => Self::Panels,
            _ => Self::Dots(rows::streams(level, matrix, tokens)),
        }
    }

    fn positions(self, matrix: &Matrix) -> usize {
        match self {
            Self::Panels => matrix.outputs.div_ceil(PANEL_OUTPUTS),
            Self::Dots(streams) => matrix.outputs.div_ceil(streams),
            Self::Blocked | Self::Tiles => matrix.outputs,
        }
    }

    /// Positions of a unit, and positions that a thread takes at a time.
    fn units(self, matrix: &Matrix, tokens: usize) -> (usize, usize) {
        let positions_in = |bytes: usize| (bytes * self.positions(matrix) / matrix.bytes().max(1)).max(1);
        // Packed rows are taken in whole blocks.
        let block_rows = |default| matrix.format.packed_rows().map_or(default, |packed| packed.block_rows);
        match self {
            Self::Tiles => (TILE_OUTPUTS, TAKEN_OUTPUTS),
            Self::Blocked => {
                let unit = positions_in(UNIT_BYTES).min(TILE_OUTPUTS);
                let unit = unit.next_multiple_of(block_rows(rows::BLOCKED_ROWS));
                (unit, positions_in(TAKEN_BYTES).max(unit))
            }
            Self::Panels if tokens > MAX_DECODE_TOKENS => (1, TAKEN_PANELS),
            Self::Dots(_) if tokens > MAX_DECODE_TOKENS => {
                (positions_in(UNIT_BYTES).next_multiple_of(block_rows(1)), positions_in(GROUP_BYTES))
            }
            Self::Panels | Self::Dots(_) => {
                (positions_in(UNIT_BYTES).next_multiple_of(block_rows(1)), positions_in(TAKEN_BYTES))
            }
        }
    }
}

/// Plans the products of one call. Their units are numbered one after the other.
fn plan<'a>(level: Level, tokens: usize, products: &'a mut [(&Matrix, &mut Rows)]) -> Vec<Task<'a>> {
    let mut first = 0;
    let task = |(matrix, out): &'a mut (&Matrix, &mut Rows)| {
        let kernel = Kernel::of(level, matrix, tokens);
        let (unit_positions, taken_positions) = kernel.units(matrix, tokens);
        let max_units = taken_positions.div_ceil(unit_positions);
        let task = Task { matrix, kernel, first, unit_positions, max_units, out: Outputs::split(out) };
        first = task.end();
        task
    };
    products.iter_mut().map(task).collect()
}

impl Task<'_> {
    /// The end of the task's units among the units of all products.
    fn end(&self) -> usize {
        self.first + self.kernel.positions(self.matrix).div_ceil(self.unit_positions)
    }

    /// The positions of the task's units within `units`, in pieces of at most `max_units` units.
    fn positions(&self, units: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let task_units = units.start.clamp(self.first, self.end())..units.end.clamp(self.first, self.end());
        let (first, all) = (self.first, self.kernel.positions(self.matrix));
        let (end, unit_positions, max_units) = (task_units.end, self.unit_positions, self.max_units);
        task_units
            .step_by(max_units)
            .map(move |start| start - first..end.min(start + max_units) - first)
            .map(move |units| units.start * unit_positions..(units.end * unit_positions).min(all))
    }
}

/// The outputs of one stream at these positions.
fn stream_outputs(matrix: &Matrix, streams: usize, stream: usize, positions: &Range<usize>) -> Range<usize> {
    let first = stream * matrix.outputs.div_ceil(streams);
    let last = ((stream + 1) * matrix.outputs.div_ceil(streams)).min(matrix.outputs);
    (first + positions.start).min(last)..(first + positions.end).min(last)
}

fn panel_outputs(matrix: &Matrix, panels: &Range<usize>) -> Range<usize> {
    panels.start * PANEL_OUTPUTS..(panels.end * PANEL_OUTPUTS).min(matrix.outputs)
}
