//! Attention of queries to the keys and values of their sequences, distributed over the threads.
//!
//! A job is one head of keys and values with all queries that share it, for a few tokens of one sequence: each key is read once
//! for all of them. A job sums over partitions of the positions, and joins their results from first to last. If there are fewer
//! than `JOBS_PER_THREAD` jobs for each thread, threads share partitions instead of whole jobs. The borders of partitions are
//! fixed, so a token's result depends only on its position, not on threads or other tokens.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cache::{Cache, STRIP_DIMS, value_dims};
use crate::kernels::attention::{BLOCK_POSITIONS, CacheRows, LeftRows, Product, Softmax, Sums, accumulate};
use crate::matrix::Rows;
use crate::ops::Ops;

/// Some tokens of one sequence, with keys and values already in its cache.
#[derive(Debug)]
pub struct Segment<'a> {
    pub cache: &'a Cache,
    /// The rows of these tokens in the pass.
    pub rows: Range<usize>,
    /// The position of the first token.
    pub start: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct Heads {
    /// Heads of queries.
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl Heads {
    /// Query heads that share one head of keys and values.
    fn group(self) -> usize {
        self.heads / self.kv_heads
    }
}

/// The buffers of each thread: the joined result of a job's partitions so far, and the result of the next partition.
#[derive(Debug, Default)]
pub struct Scratch(Vec<Mutex<[Partial; 2]>>);

/// The most rows of queries in a job of several tokens: more would not fit into the processor's cache together with a tile.
const MAX_JOB_ROWS: usize = 64;
/// With at least this number of jobs for each thread, jobs are not divided: the other threads take the whole jobs that a delayed
/// thread would otherwise take.
const JOBS_PER_THREAD: usize = 4;
/// Blocks of a partition: 512 positions.
const PARTITION_BLOCKS: usize = 8;

/// Attention in one layer: the common part of all jobs.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    pub ops: &'a Ops,
    pub heads: Heads,
    pub layer: usize,
    /// The number of tokens that each token attends to, itself included; `None` means all.
    pub window: Option<usize>,
    pub queries: &'a Rows, // [tokens, heads * head_dim]
}

impl Attention<'_> {
    /// The first position that the token at `position` attends to.
    fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// Computes `out[row] = softmax(queries[row] * keys / sqrt(head_dim)) * values`. Each token of `segments` sees itself and
/// earlier tokens, limited by the window. `out` is reshaped to `[tokens, heads * head_dim]`.
pub fn attend(attention: &Attention, scratch: &mut Scratch, segments: &[Segment], out: &mut Rows) {
    let Attention { ops, heads, queries, .. } = *attention;
    out.reshape(queries.tokens(), queries.width);
    scratch.0.resize_with(ops.pool.threads(), Mutex::default);
    let jobs = jobs(attention, segments, out);
    let has_whole_jobs = jobs.len() >= JOBS_PER_THREAD * ops.pool.threads()
        || jobs.iter().all(|job| job.partitions().len() == 1);
    if has_whole_jobs || ops.pool.threads() == 1 {
        return ops.pool.share_pieces(jobs.into_iter(), |thread, job| {
            let [total, partial] = &mut *lock(&scratch.0[thread]);
            total.clear(job.rows(heads), heads.head_dim);
            for blocks in job.partitions() {
                partial.attend(attention, &job, blocks);
                total.join(partial);
            }
            total.finish(job.outputs, heads.head_dim);
        });
    }
    let partitions = jobs.iter().flat_map(|job| job.partitions().map(move |blocks| (job, blocks)));
    let partials: Vec<_> = partitions.map(|partition| (partition, Mutex::new(Partial::default()))).collect();
    ops.pool.share_pieces(partials.iter(), |_, ((job, blocks), partial)| {
        lock(partial).attend(attention, job, blocks.clone());
    });
    let mut partials =
        partials.into_iter().map(|(_, partial)| into_inner(partial)).collect::<Vec<_>>().into_iter();
    for job in jobs {
        let mut total = Partial::default();
        total.clear(job.rows(heads), heads.head_dim);
        partials.by_ref().take(job.partitions().len()).for_each(|partial| total.join(&partial));
        total.finish(job.outputs, heads.head_dim);
    }
}

struct Job<'a> {
    segment: &'a Segment<'a>,
    /// The tokens, as a range within the segment.
    tokens: Range<usize>,
    kv_head: usize,
    /// Blocks with all positions that any of the tokens attends to.
    blocks: Range<usize>,
    /// Outputs of each token, for all heads that share the keys.
    outputs: Vec<&'a mut [f32]>, // [tokens][group * head_dim]
}

impl Job<'_> {
    fn rows(&self, heads: Heads) -> usize {
        self.tokens.len() * heads.group()
    }

    /// The partitions of the job's blocks, in order, with the same borders as in every other job.
    fn partitions(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let Range { start, end } = self.blocks;
        let partition =
            move |at: usize| start.max(at * PARTITION_BLOCKS)..end.min((at + 1) * PARTITION_BLOCKS);
        (start / PARTITION_BLOCKS..end.div_ceil(PARTITION_BLOCKS)).map(partition)
    }
}

/// Divides the attention into jobs. The last tokens of a prompt see the most positions, so their jobs come first: otherwise one
/// thread would work on them alone at the end.
fn jobs<'a>(attention: &Attention, segments: &'a [Segment], out: &'a mut Rows) -> Vec<Job<'a>> {
    let Heads { kv_heads, head_dim, .. } = attention.heads;
    let job_tokens = (MAX_JOB_ROWS / attention.heads.group()).max(1);
    let outputs = out.all_mut().chunks_exact_mut(attention.heads.group() * head_dim);
    let mut outputs: Vec<Option<&mut [f32]>> = outputs.map(Some).collect(); // [tokens][kv_heads]
    let mut jobs = Vec::new();
    for segment in segments.iter().rev() {
        let count = segment.rows.len();
        for first in (0..count).step_by(job_tokens).rev() {
            let tokens = first..count.min(first + job_tokens);
            let blocks = attention.first_visible(segment.start + first) / BLOCK_POSITIONS
                ..(segment.start + tokens.end).div_ceil(BLOCK_POSITIONS);
            for kv_head in 0..kv_heads {
                let indices = tokens.clone().map(|token| (segment.rows.start + token) * kv_heads + kv_head);
                let outputs = indices.filter_map(|index| outputs[index].take()).collect();
                let (tokens, blocks) = (tokens.clone(), blocks.clone());
                jobs.push(Job { segment, tokens, kv_head, blocks, outputs });
            }
        }
    }
    jobs
}

/// Buffers and partial sums of a partition of positions, for the queries of a job.
#[derive(Debug, Default)]
struct Partial {
    queries: Vec<f32>,     // [rows, head_dim]
    scores: Vec<f32>,      // [rows, BLOCK_POSITIONS]
    outputs: Vec<f32>,     // [rows, value_dims]
    softmax: Vec<Softmax>, // [rows]
}

impl Partial {
    /// Resets the sums to the sums over no positions.
    fn clear(&mut self, rows: usize, head_dim: usize) {
        zero(&mut self.outputs, rows * value_dims(head_dim));
        self.softmax.clear();
        self.softmax.resize(rows, Softmax::EMPTY);
    }

    fn attend(&mut self, attention: &Attention, job: &Job, blocks: Range<usize>) {
        self.clear(job.rows(attention.heads), attention.heads.head_dim);
        self.scale_queries(attention, job);
        for block in blocks.clone() {
            // The distance in bytes to the same head's tile in the next block, which is prefetched; 0 for no prefetch.
            let ahead = if block + 1 < blocks.end { job.segment.cache.block_bytes() } else { 0 };
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
            let row = attention.queries.row(job.segment.rows.start + token);
            let queries = &row[job.kv_head * width..][..width];
            self.queries.extend(queries.iter().map(|number| number * scale));
        }
    }

    /// `scores[row][position] = queries[row] * keys[position]`
    fn score(&mut self, attention: &Attention, job: &Job, block: usize, ahead: usize) {
        let (head_dim, cache) = (attention.heads.head_dim, job.segment.cache);
        let rows = job.rows(attention.heads);
        zero(&mut self.scores, rows * BLOCK_POSITIONS);
        let left = LeftRows { numbers: &self.queries, stride: head_dim, rows };
        let bytes = cache.tile(attention.layer, job.kv_head, block).keys;
        let right = CacheRows { bytes, kv_dtype: cache.kv_dtype(), width: BLOCK_POSITIONS, ahead };
        let sums = Sums { numbers: &mut self.scores, stride: BLOCK_POSITIONS };
        accumulate(attention.ops.level, Product { left, right, depth: head_dim, sums });
    }

    /// Turns scores into the weights of values, and rescales the outputs if a larger score was found.
    fn weigh(&mut self, attention: &Attention, job: &Job, block: usize) {
        let block_start = block * BLOCK_POSITIONS;
        let scores = self.scores.as_chunks_mut::<BLOCK_POSITIONS>().0.iter_mut();
        let outputs = self.outputs.chunks_exact_mut(value_dims(attention.heads.head_dim));
        for (row, ((scores, softmax), output)) in scores.zip(&mut self.softmax).zip(outputs).enumerate() {
            let position = job.segment.start + job.tokens.start + row / attention.heads.group();
            let visible = attention.first_visible(position).saturating_sub(block_start)
                ..(position + 1).saturating_sub(block_start);
            let correction = softmax.step(attention.ops.level, scores, visible);
            if correction != 1.0 {
                output.iter_mut().for_each(|sum| *sum *= correction);
            }
        }
    }

    /// `outputs[row] += weights[row][position] * values[position]`
    fn add_values(&mut self, attention: &Attention, job: &Job, block: usize, ahead: usize) {
        let (dims, cache) = (value_dims(attention.heads.head_dim), job.segment.cache);
        let left =
            LeftRows { numbers: &self.scores, stride: BLOCK_POSITIONS, rows: job.rows(attention.heads) };
        let count = BLOCK_POSITIONS.min(job.segment.start + job.tokens.end - block * BLOCK_POSITIONS);
        let mut strips = cache.tile(attention.layer, job.kv_head, block).values;
        for dim in (0..dims).step_by(STRIP_DIMS) {
            let width = STRIP_DIMS.min(dims - dim);
            let (bytes, rest) = strips.split_at(BLOCK_POSITIONS * width * cache.kv_dtype().bytes());
            let right = CacheRows { bytes, kv_dtype: cache.kv_dtype(), width, ahead };
            let sums = Sums { numbers: &mut self.outputs[dim..], stride: dims };
            accumulate(attention.ops.level, Product { left, right, depth: count, sums });
            strips = rest;
        }
    }

    /// Adds the result of the next partition for the same rows.
    fn join(&mut self, next: &Self) {
        let dims = self.outputs.len() / self.softmax.len();
        let rows = self.outputs.chunks_exact_mut(dims).zip(next.outputs.chunks_exact(dims));
        let states = self.softmax.iter_mut().zip(&next.softmax);
        for ((sums, next), (state, next_state)) in rows.zip(states) {
            let (scale, next_scale) = state.join(*next_state);
            for (sum, next) in sums.iter_mut().zip(next) {
                *sum = *sum * scale + next * next_scale;
            }
        }
    }

    /// Divides the outputs by the sums of the weights, and writes them to their destination.
    fn finish(&self, destination: Vec<&mut [f32]>, head_dim: usize) {
        let heads = destination.into_iter().flat_map(|token| token.chunks_exact_mut(head_dim));
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}
