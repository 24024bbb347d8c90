//! The kernel `decode_step`: one token of one sequence. Its arguments, its buffers, and the wait for its result.
#![expect(unsafe_code, reason = "launches a kernel, and reads memory that the device writes")]

use std::ffi::c_void;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use protocol::{Failed, FailureKind};

use super::cache::CudaCache;
use super::driver::{Address, Gpu, HostMemory, Kernel, KernelAttribute, Memory};
use super::kernels::{self, Image, Ring};
use super::weights::DeviceWeights;
use crate::network::{Angles, NotFinite};
use crate::shape::Shape;

/// The most steps whose results may be pending. Each has its own place in host memory.
pub const MAX_PENDING: usize = 64;
/// The id in the result if a logit is NaN or infinite.
const NOT_FINITE: u32 = u32::MAX;
/// The time between two checks whether a kernel stopped with an error.
const CHECK_INTERVAL: Duration = Duration::from_micros(500);
/// Polls of a result between two reads of the clock.
const POLLS_PER_CLOCK_READ: u32 = 256;

/// The arguments of a step, in the order of `StepArguments` in `decode.cu`.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepArguments {
    pub layers: Address,
    pub embedding: Address,
    pub output: Address,
    pub norm: Address,
    pub cache: Address,
    pub hidden: Address,
    pub qkv: Address,
    pub partials: Address,
    pub inner: Address,
    pub logits: Address,
    pub best: Address,
    pub arrived: Address,
    pub result: Address,
    pub id: u32,
    pub position: u32,
    pub capacity: u32,
    pub first_arrival: u32,
    pub step: u32,
    pub wants_output: u32,
}

impl StepArguments {
    /// Writes the arguments as the kernel reads them, with the cosines and the sines of the position at the end. Words of 8
    /// bytes have the alignment of the kernel's struct.
    fn write(&self, cosines: &[f32], sines: &[f32], words: &mut Vec<u64>) {
        let Self { layers, embedding, output, norm, cache, hidden, qkv, partials, .. } = *self;
        let Self { inner, logits, best, arrived, result, .. } = *self;
        let Self { id, position, capacity, first_arrival, step, wants_output, .. } = *self;
        words.clear();
        words.extend([layers, embedding, output, norm, cache, hidden, qkv, partials]);
        words.extend([inner, logits, best, arrived, result]);
        // The first number of a pair is in the lower address.
        let pair = |first: u32, second: u32| u64::from(first) | u64::from(second) << 32;
        words.extend([pair(id, position), pair(capacity, first_arrival), pair(step, wants_output)]);
        let angles = [cosines, sines].into_iter().flat_map(|angles| angles.as_chunks::<2>().0);
        words.extend(angles.map(|[first, second]| pair(first.to_bits(), second.to_bits())));
    }
}

/// The kernel with its buffers. Steps run in the order of their launches.
pub struct Step {
    gpu: Rc<Gpu>,
    kernel: Kernel,
    pub ring: Ring,
    /// The version of the compiler.
    pub nvrtc_version: String,
    blocks: u32,
    arrivals_per_step: u32,
    /// The arguments that stay the same.
    fixed: StepArguments,
    /// The numbers of the last started step, and of the arrivals before the next one.
    step: u32,
    arrivals: u32,
    /// [MAX_PENDING] results of an id and the number of its step.
    results: HostMemory,
    logits: Memory,
    /// The other buffers, which only the kernel uses.
    _buffers: Vec<Memory>,
    words: Vec<u64>,
}

impl Step {
    pub fn new(gpu: &Rc<Gpu>, shape: &Shape, weights: &DeviceWeights, ring: Ring) -> Result<Self, Failed> {
        let blocks = gpu.multiprocessors;
        let macros: Vec<String> =
            kernels::size_macros(shape).into_iter().chain(ring.macros(blocks)).collect();
        let architecture = kernels::architecture(gpu.capability);
        let Image { bytes, nvrtc_version } = kernels::image(kernels::DECODE, &architecture, &macros)?;
        let threads = ring.threads();
        let module = gpu.load_module(&bytes)?;
        let kernel = module.kernel("decode_step", threads as u32, ring.shared_bytes as u32)?;
        if kernel.blocks_at_once()? == 0 {
            let (registers, bytes) = (kernel.attribute(KernelAttribute::Registers)?, ring.shared_bytes);
            let message = format!(
                "`{}` cannot hold a block of `decode_step`: {threads} threads, {registers} registers, {bytes} bytes",
                gpu.name
            );
            return Err(Failed::new(FailureKind::Internal, message));
        }
        let Shape { vocabulary, hidden, inner, layers, heads, kv_heads, head_dim, .. } = *shape;
        let results = gpu.allocate_host(MAX_PENDING * RESULT_BYTES)?;
        let mut buffers = Vec::new();
        let mut buffer = |bytes: usize| {
            let memory = gpu.allocate_zeros(bytes)?;
            let address = memory.address();
            buffers.push(memory);
            Ok::<_, Failed>(address)
        };
        let logits = gpu.allocate_zeros(4 * vocabulary)?;
        let fixed = StepArguments {
            layers: weights.layer_table(),
            embedding: weights.embedding,
            output: weights.output,
            norm: weights.norm,
            hidden: buffer(4 * hidden)?,
            qkv: buffer(4 * (heads + 2 * kv_heads) * head_dim)?,
            partials: buffer(4 * kernels::partials(shape, blocks))?,
            inner: buffer(4 * inner)?,
            logits: logits.address(),
            best: buffer(8 * blocks as usize)?,
            arrived: buffer(4)?,
            ..StepArguments::default()
        };
        gpu.synchronize()?;
        Ok(Self {
            gpu: Rc::clone(gpu),
            kernel,
            ring,
            nvrtc_version,
            blocks,
            arrivals_per_step: arrivals_per_step(layers),
            fixed,
            step: 0,
            arrivals: 0,
            results,
            logits,
            _buffers: buffers,
            words: Vec::new(),
        })
    }

    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Starts a step that appends an id at `position`, whose angles are those of `token`. Returns the number of the step.
    /// Without `wants_output`, no result is published.
    pub fn start(
        &mut self,
        cache: &CudaCache,
        (id, position): (u32, usize),
        (angles, token): (&Angles, usize),
        wants_output: bool,
    ) -> Result<u32, Failed> {
        assert!(position < cache.capacity(), "a step beyond the end of the cache");
        let step = self.step.wrapping_add(1);
        let arguments = StepArguments {
            cache: cache.address(),
            result: self.results.address() + result_offset(step) as u64,
            id,
            position: position as u32,
            capacity: cache.capacity() as u32,
            first_arrival: self.arrivals,
            step,
            wants_output: wants_output.into(),
            ..self.fixed
        };
        let (cosines, sines) = angles.of(token);
        arguments.write(cosines, sines, &mut self.words);
        let parameter: *const c_void = self.words.as_ptr().cast();
        // SAFETY: the parameter has the layout of the kernel's struct. The weights and the buffers live as long as `self` and
        // its decoder, the cache has room for the position, and freeing memory waits for the kernel.
        unsafe { self.kernel.launch_cooperative(self.blocks, &[parameter]) }?;
        self.step = step;
        self.arrivals = self.arrivals.wrapping_add(self.arrivals_per_step.wrapping_mul(self.blocks));
        Ok(step)
    }

    /// Starts the copy of the last step's logits to the row `row` of host memory.
    pub fn start_logits(&self, to: &HostMemory, row: usize) -> Result<(), Failed> {
        let bytes = self.logits.bytes();
        self.logits.start_read(0, to, row * bytes, bytes)
    }

    /// Waits for the likeliest id of a step that has an output, one of the last `MAX_PENDING` steps.
    pub fn wait(&self, step: u32) -> Result<u32, Failed> {
        let mut next_check = Instant::now() + CHECK_INTERVAL;
        let mut polls = 0_u32;
        loop {
            if let Some(id) = self.result(step) {
                return if id == NOT_FINITE { Err(not_finite()) } else { Ok(id) };
            }
            std::hint::spin_loop();
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(POLLS_PER_CLOCK_READ) && Instant::now() >= next_check {
                // A kernel that stopped with an error publishes nothing.
                if self.gpu.is_idle()? && self.result(step).is_none() {
                    let message = format!("`{}`: the step {step} ended without a result", self.gpu.name);
                    return Err(Failed::new(FailureKind::Internal, message));
                }
                next_check = Instant::now() + CHECK_INTERVAL;
            }
        }
    }

    /// The id of a step, if the device has published it.
    fn result(&self, step: u32) -> Option<u32> {
        // SAFETY: the place is inside the allocation and aligned. Only the device writes there, with release order, and
        // atomics read it.
        let [id, published] = unsafe {
            let place = self.results.pointer().add(result_offset(step)).cast::<AtomicU32>();
            [&*place, &*place.add(1)]
        };
        (published.load(Ordering::Acquire) == step).then(|| id.load(Ordering::Relaxed))
    }
}

/// The bytes of a `StepResult`: an id and the number of its step.
const RESULT_BYTES: usize = 8;

fn result_offset(step: u32) -> usize {
    step as usize % MAX_PENDING * RESULT_BYTES
}

/// Arrivals of each block at the counter: one for each phase of a layer, and one at the end.
fn arrivals_per_step(layers: usize) -> u32 {
    5 * layers as u32 + 1
}

pub fn not_finite() -> Failed {
    Failed::new(FailureKind::Model, NotFinite.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offsets of `StepArguments` in `decode.cu`, as `offsetof` gives them for heads of 64 dimensions.
    #[test]
    fn the_arguments_have_the_layout_of_the_kernel() {
        let arguments = StepArguments {
            layers: 1,
            embedding: 2,
            output: 3,
            norm: 4,
            cache: 5,
            hidden: 6,
            qkv: 7,
            partials: 8,
            inner: 9,
            logits: 10,
            best: 11,
            arrived: 12,
            result: 13,
            id: 14,
            position: 15,
            capacity: 16,
            first_arrival: 17,
            step: 18,
            wants_output: 19,
        };
        let cosines: Vec<f32> = (0..32).map(|index| index as f32).collect();
        let sines: Vec<f32> = cosines.iter().map(|cosine| -cosine).collect();
        let mut words = vec![99];
        arguments.write(&cosines, &sines, &mut words);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bytes.len(), 384);
        let address = |offset: usize| u64::from_ne_bytes(bytes[offset..offset + 8].try_into().unwrap());
        let number = |offset: usize| u32::from_ne_bytes(bytes[offset..offset + 4].try_into().unwrap());
        let offsets = [0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96];
        assert_eq!(offsets.map(address), std::array::from_fn(|index| index as u64 + 1));
        assert_eq!([104, 108, 112, 116, 120, 124].map(number), [14, 15, 16, 17, 18, 19]);
        let floats =
            |offset: usize| (0..32).map(|index| f32::from_bits(number(offset + 4 * index))).collect();
        let (found_cosines, found_sines): (Vec<f32>, Vec<f32>) = (floats(128), floats(256));
        assert_eq!((found_cosines, found_sines), (cosines, sines));
    }

    #[test]
    fn a_step_has_five_arrivals_for_each_layer_and_one_for_the_output() {
        assert_eq!(arrivals_per_step(16), 81);
        assert_eq!((result_offset(0), result_offset(63), result_offset(64)), (0, 504, 0));
    }
}
