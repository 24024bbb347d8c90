//! Observations: requests, with the data around them in a record.

use std::collections::HashMap;

use machine_limits::Limits;
use protocol::{Sequence, Stamp};

use crate::machine::Device;
use crate::machine::Machine;
use crate::plan::scenario::Kind;
use crate::plan::{Configuration, Mode, Plan};
use crate::record::{Idle, Launch, Pass, RunRecord, Sample, output_tokens};

/// One request with everything that a metric may use.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    pub sample: &'a Sample,
    /// The first request of the case in this launch, of any kind, where it is known.
    pub first: Option<&'a Sample>,
    pub launch: &'a Launch,
    pub kind: Kind,
    pub mode: Mode,
    /// Absent in an observation that is made by hand.
    pub configuration: Option<&'a Configuration>,
    pub machine: Option<&'a Machine>,
    /// The best limits over all probes of the run.
    pub limits: Option<&'a Limits>,
    /// The sampled pass of its case in its launch.
    pub pass: Option<&'a Pass>,
    /// The sampled pass of its case in another launch, where there is one: values that only samplers see then belong to that
    /// launch.
    pub pass_elsewhere: Option<&'a Pass>,
    /// The values of the machine's energy counters when nothing runs.
    pub idle: &'a [Idle],
    /// Bytes of shared pages that a sum over the launch's processes counts twice: the largest of its samples.
    pub counted_twice_bytes: u64,
}

/// The data of a record around its samples, sorted once.
#[derive(Debug)]
pub struct Surroundings<'a> {
    plan: &'a Plan,
    machine: &'a Machine,
    /// The best over all probes: a probe is short, and other work can only make it slower.
    limits: Option<Limits>,
    /// By case.
    passes: HashMap<usize, Vec<&'a Pass>>,
    idle: &'a [Idle],
    /// By launch, because not every sample has a value of its own.
    counted_twice_bytes: HashMap<u32, u64>,
}

impl<'a> Surroundings<'a> {
    pub fn of(record: &'a RunRecord) -> Self {
        Self {
            plan: &record.header.plan,
            machine: &record.header.machine,
            limits: Limits::best(record.limits.iter().map(|limits| &limits.probed)),
            passes: by_case(&record.passes),
            idle: &record.idle,
            counted_twice_bytes: counted_twice(&record.samples),
        }
    }
}

fn by_case(passes: &[Pass]) -> HashMap<usize, Vec<&Pass>> {
    let mut all: HashMap<usize, Vec<&Pass>> = HashMap::new();
    for pass in passes {
        all.entry(pass.case).or_default().push(pass);
    }
    all
}

fn counted_twice(samples: &[Sample]) -> HashMap<u32, u64> {
    let mut most = HashMap::new();
    for (sample, held) in samples.iter().filter_map(|sample| Some((sample, sample.held?))) {
        let counted_once = held.anonymous_bytes.saturating_add(held.file_bytes);
        let twice = held.resident_bytes.saturating_sub(counted_once);
        let of_launch = most.entry(sample.launch).or_insert(0);
        *of_launch = twice.max(*of_launch);
    }
    most
}

impl<'a> Observation<'a> {
    /// Whether it is known to compute on another device than the CPU.
    pub fn on_device(&self) -> bool {
        self.device().is_some_and(|device| !device.is_cpu())
    }

    /// The device in effect; where the engine does not report it, the requested one.
    pub fn device(&self) -> Option<Device> {
        let stated = self.launch.loaded.as_ref().and_then(|loaded| loaded.facts.device.as_deref());
        stated.map(Device::from).or_else(|| Some(self.configuration?.device.clone()))
    }

    pub fn of(around: &'a Surroundings<'a>, launch: &'a Launch, sample: &'a Sample) -> Self {
        let case = &around.plan.cases[sample.case];
        let passes = around.passes.get(&sample.case).into_iter().flatten().copied();
        let (here, elsewhere): (Vec<_>, Vec<_>) = passes.partition(|pass| pass.launch == launch.launch);
        let pass = here.last().copied();
        Self {
            configuration: Some(&around.plan.configurations[case.configuration]),
            machine: Some(around.machine),
            limits: around.limits.as_ref(),
            pass,
            pass_elsewhere: elsewhere.last().copied().filter(|_| pass.is_none()),
            idle: around.idle,
            counted_twice_bytes: around.counted_twice_bytes.get(&launch.launch).copied().unwrap_or(0),
            ..Self::alone(sample, launch, case.workload.kind, around.plan.mode)
        }
    }

    /// A request without its surroundings.
    pub fn alone(sample: &'a Sample, launch: &'a Launch, kind: Kind, mode: Mode) -> Self {
        Self {
            sample,
            first: None,
            launch,
            kind,
            mode,
            configuration: None,
            machine: None,
            limits: None,
            pass: None,
            pass_elsewhere: None,
            idle: &[],
            counted_twice_bytes: 0,
        }
    }

    pub fn with_first(self, first: Option<&'a Sample>) -> Self {
        Self { first, ..self }
    }

    /// The times of the earliest first token and the latest last token of all sequences, on the engine's clock.
    pub fn first_and_last_ns(&self) -> Option<(u64, u64)> {
        let ends = self.timed_sequences().map(|timed| (timed.first_ns, timed.last_ns));
        ends.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))
    }

    /// The engine's kind of time stamps. Without `hello` it is the protocol's default, as for an engine that omits the field.
    pub fn stamp(&self) -> Stamp {
        self.launch.hello.as_ref().map_or(Stamp::default(), |hello| hello.stamp)
    }

    /// The sequences whose tokens have times: none where times are only true at the end.
    pub(super) fn timed_sequences(&self) -> impl Iterator<Item = Timed> {
        let timed = self.stamp() != Stamp::End;
        let sequences = self.sample.iteration.sequences.iter();
        sequences.filter(move |_| timed).filter_map(Timed::of)
    }
}

/// The numbers of a sequence that rates need, whether it came as ids or as chunks of text.
pub(super) struct Timed {
    pub first_ns: u64,
    pub last_ns: u64,
    /// Tokens after the first stamp. Several tokens may share a stamp: a chunk is not a token.
    pub after_first: u64,
    /// Positions that the first of these attends to.
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

/// A span of time; absent where it is empty or negative.
pub(super) fn positive(end_ns: u64, start_ns: u64) -> Option<f64> {
    end_ns.checked_sub(start_ns).filter(|&ns| ns > 0).map(|ns| ns as f64)
}

/// A rate; absent where there are no tokens or no time.
pub(super) fn per_second(tokens: u64, end_ns: u64, start_ns: u64) -> Option<f64> {
    let ns = positive(end_ns, start_ns)?;
    (tokens > 0).then(|| tokens as f64 * 1e9 / ns)
}
