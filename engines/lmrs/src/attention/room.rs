//! Buffers and partial sums of a stretch of positions, for the queries of a job.

use std::ops::Range;

use super::{Attention, Heads, Job};
use crate::cache::{STRIP, value_dims};
use crate::kernels::attention::{Left, Numbers, Product, Softmax, Sums, TILE, accumulate};

#[derive(Debug, Default)]
pub struct Room {
    queries: Vec<f32>,     // [rows, head_dim]
    scores: Vec<f32>,      // [rows, TILE]
    outputs: Vec<f32>,     // [rows, value_dims]
    softmax: Vec<Softmax>, // [rows]
}

impl Room {
    /// Resets the state: no position seen.
    pub fn clear(&mut self, rows: usize, head_dim: usize) {
        zero(&mut self.outputs, rows * value_dims(head_dim));
        self.softmax.clear();
        self.softmax.resize(rows, Softmax::BEGIN);
    }

    pub fn attend(&mut self, attention: &Attention, job: &Job, blocks: Range<usize>) {
        self.clear(job.rows(attention.heads), attention.heads.head_dim);
        self.scale_queries(attention, job);
        for block in blocks.clone() {
            let ahead = if block + 1 < blocks.end { job.part.cache.block_bytes() } else { 0 };
            self.score(attention, job, block, ahead);
            self.weigh(attention, job, block);
            self.add_values(attention, job, block, ahead);
        }
    }

    fn scale_queries(&mut self, attention: &Attention, job: &Job) {
        let Heads { head_dim, .. } = attention.heads;
        let width = attention.heads.group() * head_dim;
        let scale = 1.0 / (head_dim as f32).sqrt();
        self.queries.clear();
        for token in job.tokens.clone() {
            let row = attention.queries.row(job.part.rows.start + token);
            let of_head = &row[job.kv_head * width..][..width];
            self.queries.extend(of_head.iter().map(|number| number * scale));
        }
    }

    /// `scores[row][position] = queries[row] * keys[position]`
    fn score(&mut self, attention: &Attention, job: &Job, block: usize, ahead: usize) {
        let (head_dim, cache) = (attention.heads.head_dim, job.part.cache);
        let rows = job.rows(attention.heads);
        zero(&mut self.scores, rows * TILE);
        let left = Left { numbers: &self.queries, stride: head_dim, rows };
        let bytes = cache.tile(attention.layer, job.kv_head, block).keys;
        let right = Numbers { bytes, stored: cache.stored(), width: TILE, ahead };
        let sums = Sums { numbers: &mut self.scores, stride: TILE };
        accumulate(attention.ops.level, Product { left, right, depth: head_dim, sums });
    }

    /// Turns scores into weights, and rescales the outputs if a larger score was found.
    fn weigh(&mut self, attention: &Attention, job: &Job, block: usize) {
        let base = block * TILE;
        let scores = self.scores.as_chunks_mut::<TILE>().0.iter_mut();
        let outputs = self.outputs.chunks_exact_mut(value_dims(attention.heads.head_dim));
        for (row, ((scores, softmax), output)) in scores.zip(&mut self.softmax).zip(outputs).enumerate() {
            let position = job.part.start + job.tokens.start + row / attention.heads.group();
            let seen =
                attention.first_seen(position).saturating_sub(base)..(position + 1).saturating_sub(base);
            let correction = softmax.step(attention.ops.level, scores, seen);
            if correction != 1.0 {
                output.iter_mut().for_each(|sum| *sum *= correction);
            }
        }
    }

    /// `outputs[row] += weights[row][position] * values[position]`
    fn add_values(&mut self, attention: &Attention, job: &Job, block: usize, ahead: usize) {
        let (dims, cache) = (value_dims(attention.heads.head_dim), job.part.cache);
        let left = Left { numbers: &self.scores, stride: TILE, rows: job.rows(attention.heads) };
        let count = TILE.min(job.part.start + job.tokens.end - block * TILE);
        let mut strips = cache.tile(attention.layer, job.kv_head, block).values;
        for dim in (0..dims).step_by(STRIP) {
            let width = STRIP.min(dims - dim);
            let (bytes, rest) = strips.split_at(TILE * width * cache.stored().bytes());
            let right = Numbers { bytes, stored: cache.stored(), width, ahead };
            let sums = Sums { numbers: &mut self.outputs[dim..], stride: dims };
            accumulate(attention.ops.level, Product { left, right, depth: count, sums });
            strips = rest;
        }
    }

    /// Adds the result of the next stretch for the same rows.
    pub fn join(&mut self, next: &Self) {
        let dims = self.outputs.len() / self.softmax.len();
        let rows = self.outputs.chunks_exact_mut(dims).zip(next.outputs.chunks_exact(dims));
        let states = self.softmax.iter_mut().zip(&next.softmax);
        for ((own, others), (state, other)) in rows.zip(states) {
            let (own_scale, other_scale) = state.join(*other);
            for (own, other) in own.iter_mut().zip(others) {
                *own = *own * own_scale + other * other_scale;
            }
        }
    }

    /// Divides by the sums of the weights, and writes the outputs to their destination.
    pub fn finish(&self, tokens: Vec<&mut [f32]>, head_dim: usize) {
        let heads = tokens.into_iter().flat_map(|token| token.chunks_exact_mut(head_dim));
        let rows = self.outputs.chunks_exact(value_dims(head_dim)).zip(&self.softmax);
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
