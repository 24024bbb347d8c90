//! An observation is one request with the data of its record that a metric may use.

use std::collections::HashMap;

use machine_limits::Limits;
use protocol::{Sequence, Stamp};

use super::growth::{self, GrowthInUse};
use crate::machine::{Device, Machine};
use crate::plan::axes::Shape;
use crate::plan::latency_limits::LatencyLimits;
use crate::plan::scenario::Kind;
use crate::plan::{Configuration, Mode, Plan, VERIFIER_DTYPE};
use crate::record::{Idle, Launch, Pass, RunRecord, Sample, TextScores, output_tokens};
use stats::median;

#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    pub sample: &'a Sample,
    /// The first request of the case in this launch, of any kind, if it is known.
    pub first: Option<&'a Sample>,
    /// The first request of the launch, in a case that compares it with warm requests of the same kind (`cold-start`).
    pub cold: Option<&'a Sample>,
    pub launch: &'a Launch,
    pub kind: Kind,
    pub shape: Shape,
    /// The limits for latency that the run states.
    pub latency_limits: LatencyLimits,
    /// Whether the request asks for drafts, so that one step may give several tokens.
    pub may_draft: bool,
    pub mode: Mode,
    /// Absent in an observation that is made without a record.
    pub configuration: Option<&'a Configuration>,
    pub machine: Option<&'a Machine>,
    /// The best limits over all probes of the run.
    pub limits: Option<&'a Limits>,
    /// The sampled pass of the case in this launch.
    pub pass: Option<&'a Pass>,
    /// The sampled pass of the case, if only another launch has one. Values that only samplers see then belong to that
    /// launch.
    pub pass_elsewhere: Option<&'a Pass>,
    /// The values of the machine's energy counters when nothing runs.
    pub idle: &'a [Idle],
    /// Bytes of shared pages that a sum over the launch's processes counts twice: the largest value of the launch's samples.
    pub counted_twice_bytes: u64,
    /// The time of a query to the null engine in the same block, if the run measured it.
    pub null_query_ns: Option<f64>,
    /// The growth in this launch, in a case that is in use for a set time.
    pub growth: Option<GrowthInUse>,
    /// The scores that the model's verifier gave in f32 to the text of the case.
    pub reference_scores: Option<&'a TextScores>,
}

/// The data of a record that all its observations share, indexed once.
#[derive(Debug)]
pub struct RecordContext<'a> {
    plan: &'a Plan,
    machine: &'a Machine,
    /// The best limits over all probes: a probe is short, and other work can only make a probe slower.
    limits: Option<Limits>,
    /// The sampled passes by case.
    passes: HashMap<usize, Vec<&'a Pass>>,
    idle: &'a [Idle],
    /// The largest value of each launch, because not every sample has a value.
    counted_twice_bytes: HashMap<u32, u64>,
    null_query_ns: HashMap<u32, f64>,
    growth: HashMap<u32, GrowthInUse>,
    /// The scores of each model's verifier in f32, by the path of the model and the label of the workload.
    reference_scores: HashMap<(&'a str, &'a str), &'a TextScores>,
}

impl<'a> RecordContext<'a> {
    pub fn of(record: &'a RunRecord) -> Self {
        Self {
            plan: &record.header.plan,
            machine: &record.header.machine,
            limits: Limits::best(record.limits.iter().map(|limits| &limits.probed)),
            passes: passes_by_case(&record.passes),
            idle: &record.idle,
            counted_twice_bytes: counted_twice_bytes(&record.samples),
            null_query_ns: null_query_ns(record),
            growth: growth::by_launch(&record.header.plan, &record.samples),
            reference_scores: reference_scores(record),
        }
    }
}

/// The median time of the null engine's queries in each block.
fn null_query_ns(record: &RunRecord) -> HashMap<u32, f64> {
    let plan = &record.header.plan;
    // Most records have no such engine, so their samples are not read.
    let Some(null_engine) = (0..plan.configurations.len()).find(|&it| plan.is_null_engine(it)) else {
        return HashMap::new();
    };
    let blocks: HashMap<u32, u32> =
        record.launches_of(null_engine).map(|launch| (launch.launch, launch.block)).collect();
    let mut by_block: HashMap<u32, Vec<f64>> = HashMap::new();
    for sample in record.measured() {
        if let Some(&block) = blocks.get(&sample.launch) {
            by_block.entry(block).or_default().push(sample.elapsed_ns() as f64);
        }
    }
    by_block.into_iter().filter_map(|(block, times)| Some((block, median(&times)?))).collect()
}

fn reference_scores(record: &RunRecord) -> HashMap<(&str, &str), &TextScores> {
    let plan = &record.header.plan;
    let is_f32 = |sample: &Sample| {
        let launch = record.launches.iter().find(|it| it.launch == sample.launch);
        let facts = launch.and_then(|it| it.loaded.as_ref()).map(|it| &it.facts);
        let is_f32 = |dtype: &Option<String>| dtype.as_deref() == Some(VERIFIER_DTYPE);
        facts.is_some_and(|it| is_f32(&it.weights_dtype) && is_f32(&it.compute_dtype))
    };
    let scored = record.samples.iter().filter_map(|sample| {
        let (scores, case) = (sample.scores.as_ref()?, &plan.cases[sample.case]);
        let model = &plan.configurations[case.configuration].model;
        let is_reference = plan.verifier_of(model) == Some(case.configuration) && is_f32(sample);
        is_reference.then_some(((model.path.as_str(), case.workload.label.as_str()), scores))
    });
    scored.collect()
}

fn passes_by_case(passes: &[Pass]) -> HashMap<usize, Vec<&Pass>> {
    let mut by_case: HashMap<usize, Vec<&Pass>> = HashMap::new();
    for pass in passes {
        by_case.entry(pass.case).or_default().push(pass);
    }
    by_case
}

fn counted_twice_bytes(samples: &[Sample]) -> HashMap<u32, u64> {
    let mut by_launch = HashMap::new();
    for (sample, held) in samples.iter().filter_map(|sample| Some((sample, sample.held?))) {
        let counted_once = held.anonymous_bytes.saturating_add(held.file_bytes);
        let twice = held.resident_bytes.saturating_sub(counted_once);
        let of_launch = by_launch.entry(sample.launch).or_insert(0);
        *of_launch = twice.max(*of_launch);
    }
    by_launch
}

impl<'a> Observation<'a> {
    /// Whether the engine is known to compute on a device other than the CPU.
    pub fn on_device(&self) -> bool {
        self.device().is_some_and(|device| !device.is_cpu())
    }

    /// The device that the engine reports, else the requested device.
    pub fn device(&self) -> Option<Device> {
        let reported = self.launch.loaded.as_ref().and_then(|loaded| loaded.facts.device.as_deref());
        reported.map(Device::from).or_else(|| Some(self.configuration?.device.clone()))
    }

    pub fn of(context: &'a RecordContext<'a>, launch: &'a Launch, sample: &'a Sample) -> Self {
        let case = &context.plan.cases[sample.case];
        let passes = context.passes.get(&sample.case).into_iter().flatten().copied();
        let (of_launch, of_others): (Vec<_>, Vec<_>) = passes.partition(|pass| pass.launch == launch.launch);
        let pass = of_launch.last().copied();
        Self {
            configuration: Some(&context.plan.configurations[case.configuration]),
            machine: Some(context.machine),
            limits: context.limits.as_ref(),
            pass,
            pass_elsewhere: of_others.last().copied().filter(|_| pass.is_none()),
            idle: context.idle,
            counted_twice_bytes: context.counted_twice_bytes.get(&launch.launch).copied().unwrap_or(0),
            null_query_ns: context.null_query_ns.get(&launch.block).copied(),
            growth: context.growth.get(&launch.launch).copied(),
            reference_scores: {
                let model = &context.plan.configurations[case.configuration].model.path;
                context.reference_scores.get(&(model.as_str(), case.workload.label.as_str())).copied()
            },
            may_draft: !case.workload.shape.speculation.is_off(),
            shape: case.workload.shape,
            latency_limits: context.plan.latency_limits,
            ..Self::without_record(sample, launch, case.workload.kind, context.plan.mode)
        }
    }

    /// A request without the data of its record.
    pub fn without_record(sample: &'a Sample, launch: &'a Launch, kind: Kind, mode: Mode) -> Self {
        Self {
            sample,
            first: None,
            cold: None,
            launch,
            kind,
            shape: Shape::default(),
            latency_limits: LatencyLimits::default(),
            may_draft: kind == Kind::Speculative,
            mode,
            configuration: None,
            machine: None,
            limits: None,
            pass: None,
            pass_elsewhere: None,
            idle: &[],
            counted_twice_bytes: 0,
            null_query_ns: None,
            growth: None,
            reference_scores: None,
        }
    }

    pub fn with_first(self, first: Option<&'a Sample>) -> Self {
        Self { first, ..self }
    }

    /// The times of the earliest first token and the latest last token of all sequences, on the engine's clock.
    pub fn first_and_last_ns(&self) -> Option<(u64, u64)> {
        let ends = self.timed_sequences().map(|timed| (timed.first_ns, timed.last_ns));
        ends.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
    }

    /// The engine's kind of time stamps. Without `hello`, the kind is the protocol's default, as for an engine that omits the
    /// field.
    pub fn stamp(&self) -> Stamp {
        self.launch.hello.as_ref().map_or(Stamp::default(), |hello| hello.stamp)
    }

    /// The sequences whose tokens have times. There are none for an engine that stamps all tokens at the end.
    pub(super) fn timed_sequences(&self) -> impl Iterator<Item = Timed> {
        let timed = self.stamp() != Stamp::End;
        let sequences = self.sample.iteration.sequences.iter();
        sequences.filter(move |_| timed).filter_map(Timed::of)
    }
}

/// The times and counts of a sequence that rates need, from its token ids or its chunks of text.
pub(super) struct Timed {
    pub first_ns: u64,
    pub last_ns: u64,
    /// The number of tokens after the first stamp. Several tokens may share a stamp: a chunk is not a token.
    pub after_first: u64,
    /// The number of positions that the first token after the first stamp attends to.
    pub positions: u64,
}

impl Timed {
    fn of(sequence: &Sequence) -> Option<Self> {
        if let Some(times) = sequence.token_ns.as_deref().filter(|times| !times.is_empty()) {
            let (first_ns, last_ns) = (*times.first()?, *times.last()?);
            let after_first = times.iter().filter(|&&ns| ns > first_ns).count() as u64;
            let positions = positions(sequence, times.len() as u64, after_first);
            return Some(Self { first_ns, last_ns, after_first, positions });
        }
        let chunks = sequence.chunks.as_deref()?;
        let (first, last) = (chunks.first()?, chunks.last()?);
        // A first chunk without a number of tokens counts as one token.
        let in_first = u64::from(first.tokens.unwrap_or(1));
        let after_first = output_tokens(sequence).saturating_sub(in_first);
        let positions = positions(sequence, output_tokens(sequence), after_first);
        Some(Self { first_ns: first.ns, last_ns: last.ns, after_first, positions })
    }
}

/// The positions of the prompt, and one for each token with the first stamp.
fn positions(sequence: &Sequence, tokens: u64, after_first: u64) -> u64 {
    u64::from(sequence.prompt_tokens) + tokens.saturating_sub(after_first)
}

/// A span of time in nanoseconds; absent if it is empty or negative.
pub(super) fn positive_span(end_ns: u64, start_ns: u64) -> Option<f64> {
    end_ns.checked_sub(start_ns).filter(|&ns| ns > 0).map(|ns| ns as f64)
}

/// Tokens per second; absent without tokens or without time.
pub(super) fn per_second(tokens: u64, end_ns: u64, start_ns: u64) -> Option<f64> {
    let ns = positive_span(end_ns, start_ns)?;
    (tokens > 0).then(|| tokens as f64 * 1e9 / ns)
}
