//! The share of the machine's limits that a request used: the memory bandwidth for a decode, the rate of the compute units for
//! a prefill. Both shares count the work that is needed, not the work that is done: an engine that reads weights twice has a
//! smaller share. A share above one means: the machine was slower during the probes, the engine used more threads than requested,
//! or a fact is wrong.

use machine_limits::{Copies, GpuLimits, Limits, Operations, Reads, names};
use protocol::{Facts, Sequence};
use serde::Serialize;

use super::limits::{Key, Work};
use super::observation::{Observation, Timed, positive_span};
use crate::machine::cpu::{last_level_cache_bytes, min_uncached_bytes, min_uncached_bytes_for_cache};
use crate::machine::gpu::DataSheet;
use crate::machine::{Cpu, Device};
use crate::plan::dtype::{Float, bits};
use crate::plan::{Configuration, Sizes};

/// The share of the memory bandwidth, from the first token to the last.
pub fn bandwidth(observed: &Observation) -> Vec<f64> {
    bandwidth_of(observed).filter(|share| share.is_finite()).into_iter().collect()
}

/// The share of the compute units' rate, from the start of a request to its first token.
pub fn compute(observed: &Observation) -> Vec<f64> {
    compute_of(observed).filter(|share| share.is_finite()).into_iter().collect()
}

/// The share of the memory bandwidth that the GPU's data sheet states, from the first token to the last.
pub fn bandwidth_of_data_sheet(observed: &Observation) -> Option<f64> {
    Some(bytes_per_second(observed)? / stated_bandwidth(observed)?.per_second)
}

/// The share of the compute units' rate that the GPU's data sheet states, from the start of a request to its first token.
pub fn compute_of_data_sheet(observed: &Observation) -> Option<f64> {
    Some(operations_per_second(observed)? / stated_operations(observed)?.per_second)
}

/// The operations of a decode as a share of the compute units' rate, from the first token to the last. Memory usually limits a
/// decode, so the share is small. Unlike the bandwidth share, it is known for weights in a cache too.
pub fn compute_of_decode(observed: &Observation) -> Option<f64> {
    // Tokens of one step come at almost the same time.
    let inputs = Inputs::of(observed).filter(|_| observed.kind.is_warm() && !observed.may_draft)?;
    let of_sequence = |timed: Timed| {
        let weights = timed.after_first as f64 * inputs.sizes.read_per_token as f64;
        let attended = positions_read(timed.positions, timed.after_first);
        2.0 * (weights + attended * inputs.sizes.attended_per_position as f64)
    };
    let operations: f64 = observed.timed_sequences().map(of_sequence).sum();
    let (first_ns, last_ns) = observed.first_and_last_ns()?;
    let seconds = positive_span(last_ns, first_ns)? / 1e9;
    let share = operations / seconds / inputs.processor.unit(inputs.facts)?.per_second()?;
    Some(share).filter(|share| share.is_finite())
}

/// How near a share is to the machine's limit. JSON has these names: add, never rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Class {
    #[serde(rename = "below_50")]
    Below50,
    #[serde(rename = "50_to_80")]
    From50,
    #[serde(rename = "80_to_90")]
    From80,
    #[serde(rename = "90_or_more")]
    From90,
}

impl Class {
    /// The class of a share in whole percents, as tables show it. `None` above the limit, where a probe or a fact is wrong.
    pub fn of(share: f64) -> Option<Self> {
        match (100.0 * share).round() {
            101.0.. => None,
            90.0.. => Some(Self::From90),
            80.0.. => Some(Self::From80),
            50.0.. => Some(Self::From50),
            0.0.. => Some(Self::Below50),
            _ => None,
        }
    }

    /// The range of the shares of this class.
    pub fn range(self) -> &'static str {
        match self {
            Self::Below50 => "below 50 %",
            Self::From50 => "50 to 80 %",
            Self::From80 => "80 to 90 %",
            Self::From90 => "90 % or more",
        }
    }

    /// The words after the share: `91 %, at the limit`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Below50 => "less than half of the limit",
            Self::From50 => "more than half of the limit",
            Self::From80 => "near the limit",
            Self::From90 => "at the limit",
        }
    }
}

/// A reason why a request has no bandwidth share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// The weights are so few that caches may hold them. `cache_bytes` is the size of these caches, if it is known.
    InCaches { cache_bytes: Option<u64> },
}

/// The reason why a request has no bandwidth share, if it is known. The run may have left out the probes for the same reason.
pub fn why_absent(observed: &Observation) -> Option<Absent> {
    let configuration = observed.configuration?;
    let facts = &observed.launch.loaded.as_ref()?.facts;
    let weights = configuration.model.sizes.as_ref()?.weight_bytes(facts.weights_dtype.as_deref()?)?;
    let device = Device::in_effect(facts.device.as_deref(), &configuration.device);
    let cache_bytes = if device.is_cpu() {
        last_level_cache_bytes(&observed.machine?.cpu, configuration.threads)
    } else {
        match Processor::of(facts, configuration, observed.limits?)? {
            Processor::Gpu(gpu) => gpu.l2_bytes,
            Processor::Cpu { .. } => None,
        }
    };
    (weights < min_uncached_bytes_for_cache(cache_bytes)).then_some(Absent::InCaches { cache_bytes })
}

/// The limit that the bandwidth share refers to, if there is a share.
pub fn bandwidth_limit(observed: &Observation) -> Option<Key> {
    bandwidth_of(observed)?;
    let (device, threads) = match Inputs::of(observed)?.processor {
        Processor::Cpu { limits, threads } => {
            (Device::cpu(), Some(probed_threads(&limits.reads, |it| it.threads, threads)?))
        }
        Processor::Gpu(gpu) => (Device::cuda(gpu.index), None),
    };
    Some(Key { device, threads, work: Work::Memory })
}

/// The limit that the compute share refers to, if there is a share.
pub fn compute_limit(observed: &Observation) -> Option<Key> {
    compute_of(observed)?;
    let inputs = Inputs::of(observed)?;
    let unit = inputs.processor.unit(inputs.facts)?;
    let (device, threads) = match inputs.processor {
        Processor::Cpu { .. } => (Device::cpu(), Some(unit.threads)),
        Processor::Gpu(gpu) => (Device::cuda(gpu.index), None),
    };
    Some(Key { device, threads, work: Work::unit(unit) })
}

/// The bytes that the steps of a decode must read, from which the bandwidth share is computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeBytes {
    /// The number of steps after the first token. The sequences of a batch share the reads of the weights in each step.
    pub steps: f64,
    pub weights_per_step: f64,
    /// The keys and values that all steps read together.
    pub cached: f64,
}

impl DecodeBytes {
    pub fn per_step(&self) -> f64 {
        self.weights_per_step + self.cached_per_step()
    }

    pub fn cached_per_step(&self) -> f64 {
        self.cached / self.steps
    }
}

/// The bytes of a request, if it has a bandwidth share.
pub fn decode_bytes(observed: &Observation) -> Option<DecodeBytes> {
    bandwidth_of(observed)?;
    bytes_of(&Inputs::of(observed)?, observed)
}

/// The operations of the prefill of a request, if it has a compute share.
pub fn operations(observed: &Observation) -> Option<f64> {
    compute_of(observed)?;
    Some(operations_of(&Inputs::of(observed)?, observed))
}

/// A peak rate of a GPU in its data sheet, in bytes or operations per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StatedPeak {
    pub gpu: &'static str,
    /// The dtype of the operations; `None` for bytes of memory.
    pub dtype: Option<&'static str>,
    pub per_second: f64,
}

/// The stated bandwidth of the GPU that computed a request.
pub fn stated_bandwidth(observed: &Observation) -> Option<StatedPeak> {
    let sheet = data_sheet(&Inputs::of(observed)?)?;
    Some(StatedPeak { gpu: sheet.name, dtype: None, per_second: sheet.bytes })
}

/// The stated rate of the GPU that computed a request, in the compute dtype that the engine reports.
pub fn stated_operations(observed: &Observation) -> Option<StatedPeak> {
    let inputs = Inputs::of(observed)?;
    let (sheet, reported) = (data_sheet(&inputs)?, inputs.facts.compute_dtype.as_deref()?);
    let (dtype, per_second) = match Float::named(reported) {
        Some(Float::Bf16) => ("bf16", sheet.bf16?),
        Some(Float::F16) => ("f16", sheet.f16),
        Some(Float::Tf32) => ("tf32", sheet.tf32?),
        Some(Float::F32) => ("f32", sheet.f32),
        None if reported.eq_ignore_ascii_case("int8") => ("int8", sheet.int8),
        Some(Float::F64) | None => return None,
    };
    Some(StatedPeak { gpu: sheet.name, dtype: Some(dtype), per_second })
}

/// No data sheet of a CPU states these peaks: its clock depends on the instructions, and its memory on the machine.
fn data_sheet(inputs: &Inputs) -> Option<&'static DataSheet> {
    match &inputs.processor {
        Processor::Cpu { .. } => None,
        Processor::Gpu(gpu) => DataSheet::of(&gpu.name),
    }
}

fn bandwidth_of(observed: &Observation) -> Option<f64> {
    Some(bytes_per_second(observed)? / Inputs::of(observed)?.processor.read_rate()?)
}

/// The bytes that a decode must read, for each second between its first token and its last.
fn bytes_per_second(observed: &Observation) -> Option<f64> {
    // A step that checks drafts reads the weights once for several tokens.
    let inputs = Inputs::of(observed).filter(|_| !observed.may_draft)?;
    let bytes = bytes_of(&inputs, observed)?;
    if bytes.weights_per_step < inputs.processor.min_uncached_bytes(&observed.machine?.cpu) {
        return None;
    }
    let (first_ns, last_ns) = observed.first_and_last_ns()?;
    let seconds = positive_span(last_ns, first_ns)? / 1e9;
    let total = bytes.steps * bytes.weights_per_step + bytes.cached;
    (bytes.steps > 0.0).then_some(total / seconds)
}

fn bytes_of(inputs: &Inputs, observed: &Observation) -> Option<DecodeBytes> {
    let weights_per_step = inputs.sizes.weight_bytes(inputs.facts.weights_dtype.as_deref()?)?;
    // A cache without a reported dtype has the compute dtype.
    let kv_dtype = inputs.facts.kv_dtype.as_ref().or(inputs.facts.compute_dtype.as_ref());
    let kv_bits = kv_dtype.and_then(|dtype| bits(dtype)).unwrap_or(0.0);
    let bytes_per_position = inputs.sizes.kv_numbers_per_position as f64 * kv_bits / 8.0;
    let steps = observed.timed_sequences().map(|timed| timed.after_first).max()? as f64;
    let positions: f64 =
        observed.timed_sequences().map(|timed| positions_read(timed.positions, timed.after_first)).sum();
    Some(DecodeBytes { steps, weights_per_step, cached: positions * bytes_per_position })
}

fn compute_of(observed: &Observation) -> Option<f64> {
    let inputs = Inputs::of(observed)?;
    Some(operations_per_second(observed)? / inputs.processor.unit(inputs.facts)?.per_second()?)
}

/// The operations that a prefill must do, for each second until its first token.
fn operations_per_second(observed: &Observation) -> Option<f64> {
    let inputs = Inputs::of(observed).filter(|_| observed.kind.is_warm())?;
    let operations = operations_of(&inputs, observed);
    let first_ns = observed.timed_sequences().map(|timed| timed.first_ns).max()?;
    let seconds = positive_span(first_ns, observed.sample.iteration.start_ns)? / 1e9;
    (operations > 0.0).then_some(operations / seconds)
}

fn operations_of(inputs: &Inputs, observed: &Observation) -> f64 {
    let sequences = &observed.sample.iteration.sequences;
    sequences.iter().map(|sequence| prefill_operations(inputs.sizes, sequence)).sum()
}

/// The inputs of both shares: the model's sizes, the engine's facts and the probed limits.
struct Inputs<'a> {
    sizes: &'a Sizes,
    facts: &'a Facts,
    processor: Processor<'a>,
}

/// The processor that an engine reports, or else the requested processor.
enum Processor<'a> {
    /// The CPU with the requested number of threads, whatever the engine reports. An engine that uses more threads gets a
    /// larger share.
    Cpu {
        limits: &'a Limits,
        threads: u32,
    },
    Gpu(&'a GpuLimits),
}

impl<'a> Inputs<'a> {
    fn of(observed: &Observation<'a>) -> Option<Self> {
        let configuration = observed.configuration?;
        let facts = &observed.launch.loaded.as_ref()?.facts;
        let processor = Processor::of(facts, configuration, observed.limits?)?;
        Some(Self { sizes: configuration.model.sizes.as_ref()?, facts, processor })
    }
}

impl<'a> Processor<'a> {
    fn of(facts: &Facts, configuration: &Configuration, limits: &'a Limits) -> Option<Self> {
        let device = Device::in_effect(facts.device.as_deref(), &configuration.device);
        if device.is_cpu() {
            return Some(Self::Cpu { limits, threads: configuration.threads });
        }
        // Engines and probes number the GPUs as CUDA does, because this program starts both with the same settings.
        let index = device.cuda_index_reported(&configuration.device)?;
        limits.gpus.iter().find(|gpu| gpu.index == index).map(Self::Gpu)
    }

    fn min_uncached_bytes(&self, cpu: &Cpu) -> f64 {
        match self {
            Self::Cpu { threads, .. } => min_uncached_bytes(cpu, *threads),
            Self::Gpu(gpu) => min_uncached_bytes_for_cache(gpu.l2_bytes),
        }
    }

    fn read_rate(&self) -> Option<f64> {
        match self {
            Self::Cpu { limits, threads } => read_rate(limits, *threads),
            Self::Gpu(gpu) => gpu.copies.as_ref().and_then(Copies::bytes_per_second),
        }
    }

    fn unit(&self, facts: &Facts) -> Option<&'a Operations> {
        match self {
            Self::Cpu { limits, threads } => fastest_unit(limits, *threads, units_for(facts)?),
            Self::Gpu(gpu) => matrix_unit(gpu, facts.compute_dtype.as_deref()?),
        }
    }
}

/// The number of positions of the KV cache that `tokens` tokens read together. The first token reads `first`
/// positions, and each later token reads one more.
fn positions_read(first: u64, tokens: u64) -> f64 {
    let (first, tokens) = (first as f64, tokens as f64);
    tokens * first + tokens * (tokens - 1.0) / 2.0
}

/// The operations of a prefill: a multiplication and an addition for each weight and computed token. Weights of the output
/// count for the last token alone. Each key and value that a token attends to, including its own, counts in the same way.
fn prefill_operations(sizes: &Sizes, sequence: &Sequence) -> f64 {
    let prompt = u64::from(sequence.prompt_tokens);
    let cached = u64::from(sequence.cached_prompt_tokens.unwrap_or(0)).min(prompt);
    let computed = prompt - cached;
    if computed == 0 {
        return 0.0;
    }
    let for_every_token = sizes.read_per_token.saturating_sub(sizes.output) as f64;
    let weights = for_every_token * computed as f64 + sizes.output as f64;
    let attended = positions_read(cached + 1, computed) * sizes.attended_per_position as f64;
    2.0 * (weights + attended)
}

/// Compute units, each with the source of its operands as in `Work::Unit`. For tiles only operands from the cache count.
type Units = &'static [(&'static str, bool)];

const FROM_REGISTERS: bool = false;
const FROM_CACHE: bool = true;

const FOR_F32: Units = &[(names::F32_FMA, FROM_REGISTERS)];
const FOR_BF16: Units =
    &[(names::F32_FMA, FROM_REGISTERS), (names::AVX512_BF16, FROM_REGISTERS), (names::AMX_BF16, FROM_CACHE)];
const FOR_INT8: Units = &[
    (names::F32_FMA, FROM_REGISTERS),
    (names::AVX512_BF16, FROM_REGISTERS),
    (names::AMX_BF16, FROM_CACHE),
    (names::AVX_VNNI, FROM_REGISTERS),
    (names::AVX512_VNNI, FROM_REGISTERS),
    (names::AMX_INT8, FROM_CACHE),
];

/// The units that an engine with these dtypes can use. Some engines multiply weights of eight bits or fewer directly, others
/// widen the weights first. The limit is that of the faster method.
fn units_for(facts: &Facts) -> Option<Units> {
    let bits_of = |dtype: &Option<String>| bits(dtype.as_ref()?);
    let (weights, compute) = (bits_of(&facts.weights_dtype), bits_of(&facts.compute_dtype)?);
    match weights.map_or(compute, |weights| weights.min(compute)) {
        narrow if narrow < 16.0 => Some(FOR_INT8),
        _ if compute <= 16.0 => Some(FOR_BF16),
        _ => Some(FOR_F32),
    }
}

/// The largest probed number of threads that is at most `threads`.
fn probed_threads<T>(probed: &[T], threads_of: fn(&T) -> u32, threads: u32) -> Option<u32> {
    probed.iter().map(threads_of).filter(|&it| it <= threads).max()
}

/// The best read rate over all numbers of streams, in bytes per second.
fn read_rate(limits: &Limits, threads: u32) -> Option<f64> {
    let probed = probed_threads(&limits.reads, |it| it.threads, threads)?;
    let rates = limits.reads.iter().filter(|it| it.threads == probed).filter_map(Reads::bytes_per_second);
    rates.reduce(f64::max)
}

/// The fastest of these units, with the probed number of threads.
fn fastest_unit(limits: &Limits, threads: u32, units: Units) -> Option<&Operations> {
    let probed = probed_threads(&limits.units, |it| it.threads, threads)?;
    let usable = limits.units.iter().filter(|it| it.threads == probed && it.per_second().is_some());
    let usable = usable.filter(|it| units.contains(&(it.unit.as_str(), it.loads)));
    usable.max_by(|a, b| a.per_second().unwrap_or(0.0).total_cmp(&b.per_second().unwrap_or(0.0)))
}

/// The matrix unit for the compute dtype that an engine reports. The dtype of the weights does not matter, because narrower
/// weights are widened first. An engine that computes in fewer bits than it reports may exceed the limit.
fn matrix_unit<'a>(gpu: &'a GpuLimits, dtype: &str) -> Option<&'a Operations> {
    let unit = match Float::named(dtype)? {
        Float::Bf16 => names::CUBLAS_BF16,
        Float::F16 => names::CUBLAS_F16,
        Float::Tf32 => names::CUBLAS_TF32,
        Float::F32 => names::CUBLAS_F32,
        Float::F64 => return None,
    };
    gpu.matrix.iter().find(|it| it.unit == unit)
}

#[cfg(test)]
mod tests;
