//! Attention of queries to the keys and values of their sequences, shared out over the threads.
//!
//! A job is one head of keys and values, with all the queries that share it, of a few tokens of one sequence: each key is read
//! once for all of them. Where there are fewer such jobs than threads want, each is cut into stretches of positions, whose
//! outcomes are put together afterwards.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::cache::{Cache, STRIP};
use crate::kernels::attention::{Left, Numbers, Softmax, TILE, accumulate};
use crate::ops::Ops;
use crate::rows::Rows;
use crate::share::share;

/// Some tokens of one sequence, whose keys and values its cache has already.
#[derive(Debug)]
pub struct Part<'a> {
    pub cache: &'a Cache,
    /// Where they stand among the rows that are computed together.
    pub rows: Range<usize>,
    /// The position of the first.
    pub start: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct Heads {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

/// What each thread computes in.
#[derive(Debug, Default)]
pub struct Space(Vec<Mutex<Room>>);

#[derive(Debug, Default)]
struct Room {
    queries: Vec<f32>,     // [rows, head_dim]
    scores: Vec<f32>,      // [rows, TILE]
    outputs: Vec<f32>,     // [rows, value_dims]
    softmax: Vec<Softmax>, // [rows]
}

struct Job<'a> {
    place: Place<'a>,
    target: Target<'a>,
}

struct Place<'a> {
    part: &'a Part<'a>,
    /// Within the part.
    tokens: Range<usize>,
    kv_head: usize,
    blocks: Range<usize>,
}

enum Target<'a> {
    /// The outputs of each token, for all heads that share the keys.
    Rows(Vec<&'a mut [f32]>), // [tokens][group * head_dim]
    /// One of several stretches.
    Stretch(&'a Mutex<Room>),
}

/// Rows of queries that are computed together: more would not fit beside a tile.
const ROWS: usize = 64;
/// Jobs for each thread, so that one that is held up leaves work for the others.
const JOBS: usize = 4;
/// Blocks that a stretch has at least.
const STRETCH: usize = 4;

/// `out[row] = softmax(queries[row] * keys / sqrt(head_dim)) * values`, each token seeing itself and those before it, and of
/// these no more than `window`.
pub fn attend(
    ops: &Ops,
    space: &mut Space,
    heads: Heads,
    (layer, window): (usize, Option<usize>),
    parts: &[Part],
    queries: &Rows, // [tokens, heads * head_dim]
    out: &mut Rows, // [tokens, heads * head_dim]
) {
    out.reshape(queries.tokens(), queries.width);
    space.0.resize_with(ops.pool.threads(), Mutex::default);
    let rooms = &space.0;
    let group = heads.heads / heads.kv_heads;
    let tokens = (ROWS / group).max(1);
    let mut pieces = Vec::new();
    for part in parts {
        let count = part.rows.len();
        for first in (0..count).step_by(tokens) {
            let tokens = first..count.min(first + tokens);
            let earliest = window.map_or(0, |window| (part.start + first + 1).saturating_sub(window));
            let blocks = earliest / TILE..(part.start + tokens.end).div_ceil(TILE);
            pieces.push((part, tokens, blocks));
        }
    }
    let wanted = JOBS * ops.pool.threads();
    let jobs = pieces.len() * heads.kv_heads;
    let cuts = if ops.pool.threads() == 1 { 1 } else { wanted.div_ceil(jobs.max(1)) };
    let cuts_of = |blocks: &Range<usize>| cuts.min(blocks.len() / STRETCH).max(1);
    let stretches: usize = pieces.iter().map(|(_, _, blocks)| cuts_of(blocks)).filter(|cuts| *cuts > 1).sum();
    let partial: Vec<Mutex<Room>> = (0..stretches * heads.kv_heads).map(|_| Mutex::default()).collect();

    let places = out.all_mut().chunks_exact_mut(group * heads.head_dim);
    let mut places: Vec<Option<&mut [f32]>> = places.map(Some).collect(); // [tokens][kv_heads]
    let (mut work, mut joins, mut used) = (Vec::new(), Vec::new(), 0);
    // The last tokens of a prompt have most to look back at: they go first, so that no thread is left alone with them.
    for (part, tokens, blocks) in pieces.into_iter().rev() {
        for kv_head in 0..heads.kv_heads {
            let rows = tokens.clone().map(|token| (part.rows.start + token) * heads.kv_heads + kv_head);
            let rows: Vec<&mut [f32]> = rows.filter_map(|place| places[place].take()).collect();
            let job = |blocks, target| Job {
                place: Place { part, tokens: tokens.clone(), kv_head, blocks },
                target,
            };
            match cuts_of(&blocks) {
                1 => work.push(job(blocks.clone(), Target::Rows(rows))),
                cuts => {
                    let stretches = &partial[used..used + cuts];
                    used += cuts;
                    for (cut, stretch) in stretches.iter().enumerate() {
                        let at = |cut: usize| blocks.start + blocks.len() * cut / cuts;
                        work.push(job(at(cut)..at(cut + 1), Target::Stretch(stretch)));
                    }
                    joins.push((stretches, rows));
                }
            }
        }
    }
    share(&ops.pool, work.into_iter(), |thread, job| {
        let Job { place, target } = job;
        match target {
            Target::Stretch(stretch) => {
                compute(ops, &mut lock(stretch), heads, (layer, window), &place, queries)
            }
            Target::Rows(rows) => {
                let mut room = lock(&rooms[thread]);
                compute(ops, &mut room, heads, (layer, window), &place, queries);
                room.finish(rows, heads.head_dim);
            }
        }
    });
    for (stretches, rows) in joins {
        let mut whole = lock(&stretches[0]);
        stretches[1..].iter().for_each(|other| whole.join(&lock(other)));
        whole.finish(rows, heads.head_dim);
    }
}

fn compute(
    ops: &Ops,
    room: &mut Room,
    heads: Heads,
    (layer, window): (usize, Option<usize>),
    job: &Place,
    queries: &Rows,
) {
    let Heads { head_dim, .. } = heads;
    let group = heads.heads / heads.kv_heads;
    let rows = job.tokens.len() * group;
    let (stored, value_dims) = (job.part.cache.stored(), head_dim.next_multiple_of(16));
    let scale = 1.0 / (head_dim as f32).sqrt();
    let Room { queries: scaled, scores, outputs, softmax } = room;
    scaled.clear();
    for token in job.tokens.clone() {
        let row = queries.row(job.part.rows.start + token);
        let of_head = &row[job.kv_head * group * head_dim..][..group * head_dim];
        scaled.extend(of_head.iter().map(|number| number * scale));
    }
    zero(outputs, rows * value_dims);
    softmax.clear();
    softmax.resize(rows, Softmax::BEGIN);
    let end = job.part.start + job.tokens.end;
    for block in job.blocks.clone() {
        let tile = job.part.cache.tile(layer, job.kv_head, block);
        let base = block * TILE;
        let count = TILE.min(end - base);

        zero(scores, rows * TILE);
        let left = Left { numbers: scaled, stride: head_dim, rows };
        let ahead = if block + 1 < job.blocks.end { job.part.cache.block_bytes() } else { 0 };
        let keys = Numbers { bytes: tile.keys, stored, width: TILE, ahead };
        accumulate(ops.level, left, keys, head_dim, scores, TILE); // [rows, TILE]

        let of_rows = scores.as_chunks_mut::<TILE>().0.iter_mut().zip(&mut *softmax);
        for (row, ((scores, softmax), output)) in
            of_rows.zip(outputs.chunks_exact_mut(value_dims)).enumerate()
        {
            let position = job.part.start + job.tokens.start + row / group;
            let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
            let seen = first.saturating_sub(base)..(position + 1).saturating_sub(base);
            let correction = softmax.step(ops.level, scores, seen);
            if correction != 1.0 {
                output.iter_mut().for_each(|sum| *sum *= correction);
            }
        }

        let left = Left { numbers: scores, stride: TILE, rows };
        let mut strips = tile.values;
        for dim in (0..value_dims).step_by(STRIP) {
            let width = STRIP.min(value_dims - dim);
            let (strip, rest) = strips.split_at(TILE * width * stored.bytes());
            let values = Numbers { bytes: strip, stored, width, ahead };
            accumulate(ops.level, left, values, count, &mut outputs[dim..], value_dims); // [rows, value_dims]
            strips = rest;
        }
    }
}

impl Room {
    /// Adds what another stretch of the same rows has come to.
    fn join(&mut self, other: &Self) {
        let value_dims = self.outputs.len() / self.softmax.len();
        let rows = self.outputs.chunks_exact_mut(value_dims).zip(other.outputs.chunks_exact(value_dims));
        let states = self.softmax.iter_mut().zip(&other.softmax);
        for ((own, others), (state, other)) in rows.zip(states) {
            let (own_scale, other_scale) = state.join(*other);
            for (own, other) in own.iter_mut().zip(others) {
                *own = *own * own_scale + other * other_scale;
            }
        }
    }

    /// Divides by the sums of the weights, and writes the outputs where they belong.
    fn finish(&self, tokens: Vec<&mut [f32]>, head_dim: usize) {
        let value_dims = self.outputs.len() / self.softmax.len();
        let heads = tokens.into_iter().flat_map(|token| token.chunks_exact_mut(head_dim));
        let rows = self.outputs.chunks_exact(value_dims).zip(&self.softmax);
        for (head, (output, softmax)) in heads.zip(rows) {
            let scale = 1.0 / softmax.sum;
            head.iter_mut().zip(output).for_each(|(number, sum)| *number = sum * scale);
        }
    }
}

fn zero(numbers: &mut Vec<f32>, count: usize) {
    numbers.clear();
    numbers.resize(count, 0.0);
}

fn lock<T>(room: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    room.lock().unwrap_or_else(PoisonError::into_inner)
}
