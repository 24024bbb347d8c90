//! The `Decoder` on a GPU: passes of a few rows as steps, longer ones as prefill.
#![expect(unsafe_code, reason = "kernels use memory of caches")]

use std::rc::Rc;

use protocol::{DeviceMemory, Failed, FailureKind};

use super::cache::CudaCache;
use super::driver::{Gpu, HostMemory};
use super::prefill::{self, Prefill, Row};
use super::step::{MAX_PENDING, Step, not_finite};
use super::weights::DeviceWeights;
use crate::kernels::lanes::all_finite;
use crate::matrix::Rows;
use crate::model::decoder::{Decoder, MAX_DECODE_ROWS, Predictions, Span, Wanted};
use crate::network::{Angles, MIN_CACHE_TOKENS};
use crate::pool::Pool;
use crate::shape::Shape;

/// The most rows of logits in host memory: 32 rows of a vocabulary of 128,256 take 16 MB.
const MAX_LOGIT_ROWS: usize = 32;
const _: () = assert!(MAX_LOGIT_ROWS <= MAX_PENDING, "each row of logits is a pending step");

pub struct CudaDecoder {
    pub gpu: Rc<Gpu>,
    pub shape: Shape,
    pub weights: DeviceWeights,
    pub step: Step,
    /// `None` only in experiments: then every row is a step.
    pub prefill: Option<Prefill>,
    /// The most tokens of a cache.
    pub context: usize,
    /// Threads for the caller of `forward_each`.
    pub pool: Pool,
    angles: Angles,
    /// Started steps whose results were not read yet.
    pending: Vec<Pending>,
    /// [MAX_LOGIT_ROWS, vocabulary], once a request wants logits.
    logits: Option<HostMemory>,
}

/// A started step.
struct Pending {
    step: u32,
    wants_logits: bool,
}

impl CudaDecoder {
    pub fn new(
        gpu: Rc<Gpu>,
        shape: Shape,
        weights: DeviceWeights,
        (step, prefill): (Step, Option<Prefill>),
        (context, pool): (usize, Pool),
    ) -> Self {
        let (angles, pending) = (Angles::default(), Vec::new());
        Self { gpu, shape, weights, step, prefill, context, pool, angles, pending, logits: None }
    }

    /// Refuses an id outside of the vocabulary, and more ids than a cache can hold, before any computation.
    fn check(&self, cache: &CudaCache, ids: &[u32]) -> Result<(), Failed> {
        let (cached, capacity, vocabulary) = (cache.tokens(), cache.capacity(), self.shape.vocabulary);
        let fail = |message| Err(Failed::new(FailureKind::Internal, message));
        if ids.len() > capacity - cached {
            return fail(format!("{} tokens after {cached} exceed the context of {capacity}", ids.len()));
        }
        match ids.iter().find(|id| **id as usize >= vocabulary) {
            Some(id) => fail(format!("id {id} is outside of the vocabulary of {vocabulary}")),
            None => Ok(()),
        }
    }

    /// Starts a step for each id of a span. Only the last row may want logits.
    fn start_steps(
        &mut self,
        cache: &mut CudaCache,
        ids: &[u32],
        wanted: Wanted,
        predictions: &mut Predictions,
    ) -> Result<(), Failed> {
        let first = cache.tokens();
        if let Some(rotation) = &self.shape.rotation {
            rotation.angles(first..first + ids.len(), &mut self.angles);
        }
        for (index, id) in ids.iter().enumerate() {
            let is_last = index + 1 == ids.len();
            let wants_output = match wanted {
                Wanted::Nothing => false,
                Wanted::Largest | Wanted::Logits => is_last,
                Wanted::EveryLargest => true,
            };
            let place = (*id, first + index);
            let step = self.step.start(cache, place, (&self.angles, index), wants_output)?;
            cache.grow(1);
            if !wants_output {
                continue;
            }
            let wants_logits = wanted == Wanted::Logits;
            if wants_logits {
                let row = self.pending.iter().filter(|pending| pending.wants_logits).count();
                let logits = host_logits(&mut self.logits, &self.gpu, &self.shape)?;
                self.step.start_logits(logits, row)?;
            }
            self.pending.push(Pending { step, wants_logits });
            if self.pending.len() == MAX_LOGIT_ROWS {
                self.collect(predictions)?;
            }
        }
        Ok(())
    }

    /// Waits for the results of all pending steps.
    fn collect(&mut self, predictions: &mut Predictions) -> Result<(), Failed> {
        let pending = std::mem::take(&mut self.pending);
        for Pending { step, wants_logits } in &pending {
            let id = self.step.wait(*step)?;
            if !wants_logits {
                predictions.ids.push(id);
            }
        }
        let rows = pending.iter().filter(|pending| pending.wants_logits).count();
        if rows > 0 {
            let count = rows * self.shape.vocabulary;
            let logits = host_logits(&mut self.logits, &self.gpu, &self.shape)?;
            predictions.logits.append(logits.finished_floats(count)?);
        }
        // Keeps the memory of the list.
        self.pending = pending;
        self.pending.clear();
        Ok(())
    }
}

/// Computes all rows of the spans in passes of many rows.
fn run_prefill(
    prefill: &mut Prefill,
    weights: &DeviceWeights,
    spans: &mut [Span<'_, CudaCache>],
    predictions: &mut Predictions,
) -> Result<(), Failed> {
    let mut rows = Vec::new();
    for span in &mut *spans {
        let wanted_rows = span.wanted_rows();
        let wanted = (0..span.ids.len()).map(|index| wanted_rows.contains(&index).then_some(span.wanted));
        rows.extend(rows_of(span.cache, span.ids).zip(wanted));
        span.cache.grow(span.ids.len());
    }
    for pass in rows.chunks(prefill::MAX_ROWS) {
        let rows: Vec<Row> = pass.iter().map(|(row, _)| *row).collect();
        // SAFETY: the spans borrow their caches until the results of all passes were read, or until the device has finished,
        // because freeing memory waits for it.
        unsafe { prefill.run(weights, &rows) }?;
        let rows_with = |is_logits: bool| {
            let is_wanted = move |wanted: &Wanted| (*wanted == Wanted::Logits) == is_logits;
            let rows = pass
                .iter()
                .enumerate()
                .filter(move |(_, (_, wanted))| wanted.as_ref().is_some_and(is_wanted));
            rows.map(|(index, _)| index).collect::<Vec<usize>>()
        };
        prefill.largest(weights, &rows_with(false), &mut predictions.ids)?;
        let (rows, before) = (rows_with(true), predictions.logits.all().len());
        prefill.logits(weights, &rows, &mut predictions.logits)?;
        if !all_finite(&predictions.logits.all()[before..]) {
            return Err(not_finite());
        }
    }
    Ok(())
}

/// The rows of these ids, which follow those in the cache.
fn rows_of(cache: &CudaCache, ids: &[u32]) -> impl Iterator<Item = Row> {
    let (address, capacity, first) = (cache.address(), cache.capacity() as u32, cache.tokens() as u32);
    let positions = ids.iter().zip(first..);
    positions.map(move |(id, position)| Row { cache: address, capacity, position, id: *id })
}

/// The host memory for rows of logits, which the first request for them allocates.
fn host_logits<'a>(
    logits: &'a mut Option<HostMemory>,
    gpu: &Rc<Gpu>,
    shape: &Shape,
) -> Result<&'a HostMemory, Failed> {
    let allocated = match logits.take() {
        Some(allocated) => allocated,
        None => gpu.allocate_host(MAX_LOGIT_ROWS * shape.vocabulary * size_of::<f32>())?,
    };
    Ok(logits.insert(allocated))
}

impl Decoder for CudaDecoder {
    type Cache = CudaCache;

    fn new_cache(&mut self, ids: usize) -> Result<CudaCache, Failed> {
        let capacity = ids.next_power_of_two().max(MIN_CACHE_TOKENS).min(self.context);
        CudaCache::new(&self.gpu, &self.shape, capacity)
    }

    fn capacity(&self, cache: &CudaCache) -> usize {
        cache.capacity()
    }

    fn forward(
        &mut self,
        spans: &mut [Span<'_, CudaCache>],
        predictions: &mut Predictions,
    ) -> Result<(), Failed> {
        spans.iter().try_for_each(|span| self.check(span.cache, span.ids))?;
        predictions.ids.clear();
        predictions.logits.reshape(0, self.shape.vocabulary);
        // A failed pass may have left some.
        self.pending.clear();
        let rows: usize = spans.iter().map(|span| span.ids.len()).sum();
        if let Some(prefill) = self.prefill.as_mut().filter(|_| rows > MAX_DECODE_ROWS) {
            return run_prefill(prefill, &self.weights, spans, predictions);
        }
        for Span { cache, ids, wanted } in spans {
            self.start_steps(cache, ids, *wanted, predictions)?;
        }
        self.collect(predictions)
    }

    fn forward_each(
        &mut self,
        cache: &mut CudaCache,
        ids: &[u32],
        on_logits: &mut dyn FnMut(&Pool, &Rows),
    ) -> Result<(), Failed> {
        self.check(cache, ids)?;
        self.pending.clear();
        let mut predictions = Predictions::default();
        if let Some(prefill) = self.prefill.as_mut().filter(|_| ids.len() > MAX_DECODE_ROWS) {
            for pass in ids.chunks(prefill::MAX_ROWS) {
                let rows: Vec<Row> = rows_of(cache, pass).collect();
                // SAFETY: the cache lives until the logits after its rows were read.
                unsafe { prefill.run(&self.weights, &rows) }?;
                cache.grow(pass.len());
                for first in (0..pass.len()).step_by(MAX_LOGIT_ROWS) {
                    predictions.logits.reshape(0, self.shape.vocabulary);
                    let rows: Vec<usize> = (first..pass.len().min(first + MAX_LOGIT_ROWS)).collect();
                    prefill.logits(&self.weights, &rows, &mut predictions.logits)?;
                    if !all_finite(predictions.logits.all()) {
                        return Err(not_finite());
                    }
                    on_logits(&self.pool, &predictions.logits);
                }
            }
            return Ok(());
        }
        for chunk in ids.chunks(MAX_LOGIT_ROWS) {
            predictions.logits.reshape(0, self.shape.vocabulary);
            for id in chunk {
                self.start_steps(cache, &[*id], Wanted::Logits, &mut predictions)?;
            }
            self.collect(&mut predictions)?;
            if !all_finite(predictions.logits.all()) {
                return Err(not_finite());
            }
            on_logits(&self.pool, &predictions.logits);
        }
        Ok(())
    }

    fn truncate(&mut self, cache: &mut CudaCache, ids: usize) {
        cache.truncate(ids);
    }

    /// Longer passes use more of the GPU, and still take a few milliseconds.
    fn max_pass_rows(&self) -> usize {
        prefill::MAX_ROWS
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        Some(self.gpu.device_memory())
    }
}
