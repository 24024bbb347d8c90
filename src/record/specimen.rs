//! Records of invented engines for tests, built without a real engine. Here each engine has one speed for all its requests.
//! In `timed`, each request has its own chosen time.

pub mod timed;

use protocol::{Facts, HelloFacts, Iteration, Loaded, Phase, Sequence};

use super::{
    Closed, End, Entry, Failure, FailureKind, Header, Launch, RECORD_VERSION, RequestKind, RunRecord, Sample,
    WarmUp, WarmUpEnd,
};
use crate::engines::{Candidate, Start};
use crate::machine::{Cpu, Machine};
use crate::plan::scenario::Kind;
use crate::plan::scenario::named_with_few_cases as named_scenario;
use crate::plan::{Configuration, Extent, Mode, Model, Plan, Prompt, Selection, Verification};
use crate::shell::Unavailable;
use stats::{Random, StoppedBy};

/// The times and the memory of an invented engine.
#[derive(Clone)]
pub struct InventedEngine {
    pub name: &'static str,
    pub version: &'static str,
    /// The dtype of the weights and, after a slash, the dtype of the computation if it is another.
    pub dtype: &'static str,
    pub load_ms: f64,
    pub prompt_token_ms: f64,
    pub token_ms: f64,
    pub memory_mb: u64,
    /// The relative standard deviation of the noise that affects only this engine.
    pub own_noise: f64,
}

pub const ORIGINAL: InventedEngine = InventedEngine {
    name: "patient-original",
    version: "0.1.0",
    dtype: "f32",
    load_ms: 2310.0,
    prompt_token_ms: 0.41,
    token_ms: 21.7,
    memory_mb: 412,
    own_noise: 0.002,
};

pub const BEACON: InventedEngine = InventedEngine {
    name: "beacon",
    version: "0.9.1",
    dtype: "f32",
    load_ms: 31.2,
    prompt_token_ms: 0.083,
    token_ms: 1.93,
    memory_mb: 61,
    own_noise: 0.002,
};

pub const REED: InventedEngine = InventedEngine {
    name: "reed",
    version: "0.3.2",
    dtype: "q8_0/f32",
    load_ms: 12.9,
    prompt_token_ms: 0.31,
    token_ms: 1.14,
    memory_mb: 33,
    own_noise: 0.002,
};

pub fn selection(names: &[&str]) -> Selection {
    let candidate = |name: &&str| Candidate {
        engine: name.to_string(),
        default_start: Start::program(name),
        ..Candidate::default()
    };
    let (name, path, identity) = ("embedded".into(), "/m".into(), Some("abc".into()));
    let model = Model { name, path, identity, ..Model::default() };
    Selection {
        verification: Verification::Off,
        candidates: names.iter().map(candidate).collect(),
        models: vec![model],
        scenarios: ["load", "ttft", "prefill", "decode"]
            .iter()
            .flat_map(|it| named_scenario(it).unwrap())
            .collect(),
        devices: vec!["cpu".into()],
        dtypes: vec![None],
        threads: vec![2],
        reference: "patient-original".into(),
        extent: Extent { blocks: Some(5), ..Extent::default() },
        ..Selection::default()
    }
}

/// A record of a plan with no measurements yet.
pub fn planned(selection: &Selection) -> RunRecord {
    let machine = Machine {
        cpu: Cpu { model: Some("AMD EPYC".into()), allowed_cores: Some(2), ..Cpu::default() },
        memory_bytes: Some(64 << 30),
        architecture: "x86_64".into(),
        ..Machine::default()
    };
    let header = Header {
        record_version: RECORD_VERSION,
        id: "2026-01-02T03-04-05Z-123".into(),
        started: "2026-01-02T03:04:05Z".into(),
        orchestrate_version: "0.1.0".into(),
        command: vec!["orchestrate".into(), "--all".into()],
        machine,
        plan: Plan::new(selection),
        ..Header::default()
    };
    RunRecord { header, ..RunRecord::default() }
}

/// A record of every block of the plan, with the times of these engines.
pub fn measured(selection: &Selection, engines: &[InventedEngine]) -> RunRecord {
    let mut record = planned(selection);
    let blocks = selection.extent.blocks.unwrap_or(5);
    for block in 0..blocks {
        for configuration in 0..record.header.plan.configurations.len() {
            let Configuration { label, engine, .. } = &record.header.plan.configurations[configuration];
            let named = |name: &String| engines.iter().find(|engine| engine.name == name);
            // A preset may have its own times.
            if let Some(engine) = named(label).or_else(|| named(engine)) {
                launch(&mut record, block, configuration, engine);
            }
        }
    }
    let by = if selection.extent.blocks.is_some() { StoppedBy::Fixed } else { StoppedBy::Width };
    // Each configuration has a case in every workload.
    for workload in record.header.plan.workloads_of(0) {
        record.take(Entry::Closed(Closed { workload: workload.label, blocks, by, needs_budget: None }));
    }
    record.take(Entry::End(End::Finished.into()));
    record
}

/// The noise of the machine, which affects every engine, and the noise of one engine. The noise depends on the plan's seed and
/// is the same in every run of a test.
struct Noise {
    seed: u64,
    block: u32,
    configuration: usize,
    own_noise: f64,
}

impl Noise {
    /// The factor by which noise changes the time of a request.
    fn factor(&self, case: usize, index: u32) -> f64 {
        let normal = |parts: &[u64]| {
            let seed =
                parts.iter().fold(self.seed, |seed, part| seed.wrapping_mul(1_000_003).wrapping_add(*part));
            Random::seeded(seed).normal()
        };
        let (block, index) = (u64::from(self.block), u64::from(index));
        // The noises of the block, of the round and of the engine: the first number of each seed keeps them independent.
        let own = [1, block, case as u64, index, self.configuration as u64];
        (0.02 * normal(&[2, block]) + 0.01 * normal(&[3, block, index]) + self.own_noise * normal(&own)).exp()
    }
}

/// Adds a launch with all its requests. In one-shot mode, each request has its own launch.
fn launch(record: &mut RunRecord, block: u32, configuration: usize, engine: &InventedEngine) {
    let launch = record.launches.len() as u32;
    let facts = Facts {
        device: Some("cpu".into()),
        weights_dtype: engine.dtype.split('/').next().map(String::from),
        compute_dtype: engine.dtype.split('/').next_back().map(String::from),
        threads: Some(2),
        ..Facts::default()
    };
    let plan = record.header.plan.clone();
    let noise = Noise { seed: plan.seed, block, configuration, own_noise: engine.own_noise };
    let loaded_ns = (engine.load_ms * noise.factor(0, 0) * 1e6) as u64;
    let phase = |name: &str, percent: u64| Phase { name: name.into(), ns: loaded_ns * percent / 100 };
    let phases = vec![phase("import", 60), phase("tokenizer", 5), phase("weights", 20)];
    let loaded = Loaded { load_ns: loaded_ns * 9 / 10, phases, facts, ..Loaded::default() };
    let hello =
        HelloFacts { engine: engine.name.into(), version: engine.version.into(), ..HelloFacts::default() };
    // In one-shot mode, each process gets one request and no `hello`.
    let one_shot = plan.mode == Mode::OneShot;
    let launched = Launch {
        configuration,
        block,
        hello: Some(hello).filter(|_| !one_shot),
        hello_ns: Some(loaded_ns / 10).filter(|_| !one_shot),
        loaded: Some(loaded),
        loaded_ns: Some(loaded_ns).filter(|_| !one_shot),
        ..Launch::default()
    };
    if !one_shot {
        record.take(Entry::Launch(Box::new(Launch { launch, ..launched.clone() })));
    }
    let mut now_ns = loaded_ns;
    for case in plan.cases_of(configuration) {
        let workload = &plan.cases[case].workload;
        let Prompt::Tokens(prompt_tokens) = workload.prompt else { panic!("a prompt of text") };
        // Every second block has more warm-up requests.
        let warm = workload.kind != Kind::Launch && !one_shot;
        let warm_ups = if warm { workload.warmup.unwrap_or(3 + 3 * (block % 2)) } else { 0 };
        let requests = (0..warm_ups).map(|index| (RequestKind::Warmup, index));
        for (kind, index) in requests.chain((0..workload.rounds).map(|index| (RequestKind::Measured, index)))
        {
            let first_request_factor = if kind == RequestKind::Warmup && index == 0 { 1.5 } else { 1.0 };
            let ns = |ms: f64, token: u32| {
                // The tokens of a request differ by up to 0.5 %.
                let token_factor = 1.0 + f64::from(token * 37 % 13) / 2600.0;
                (ms * first_request_factor * token_factor * noise.factor(case, index) * 1e6) as u64
            };
            let start_ns = 20_000;
            let mut times =
                vec![start_ns + ns(engine.prompt_token_ms * f64::from(prompt_tokens) + engine.token_ms, 0)];
            for token in 1..workload.max_new_tokens {
                // One token is 3 ms late: an outlier among the inter-token latencies.
                let gap = ns(engine.token_ms, token) + if token == 40 { 3_000_000 } else { 0 };
                times.push(times[token as usize - 1] + gap);
            }
            let end_ns = times[times.len() - 1] + 5_000;
            let (mut launch, mut sent_ns) = (launch, now_ns + 1000);
            now_ns = sent_ns + end_ns + 50_000;
            if one_shot {
                (launch, sent_ns, now_ns) = (record.launches.len() as u32, 1000, loaded_ns + end_ns + 50_000);
                record.take(Entry::Launch(Box::new(Launch { launch, ..launched.clone() })));
            }
            record.take(Entry::Sample(Box::new(Sample {
                launch,
                case,
                index,
                kind,
                sent_ns,
                answered_ns: now_ns,
                iteration: Iteration { start_ns, end_ns, sequences: vec![sequence(prompt_tokens, times)] },
                peak_resident_bytes: Some((engine.memory_mb + u64::from(prompt_tokens / 64)) * 1_000_000),
                ..Sample::default()
            })));
        }
        if warm_ups > 0 {
            let ended_by = if workload.warmup.is_some() { WarmUpEnd::SetByUser } else { WarmUpEnd::Steady };
            record.take(Entry::WarmUp(WarmUp { launch, case, requests: warm_ups, ended_by }));
        }
    }
}

/// A sequence with a token at each of these times.
fn sequence(prompt_tokens: u32, token_ns: Vec<u64>) -> Sequence {
    Sequence {
        prompt_tokens,
        output_ids: Some(vec![1; token_ns.len()]),
        token_ns: Some(token_ns),
        ..Sequence::default()
    }
}

pub fn failure(configuration: usize, case: Option<usize>, kind: &str, when: &str, message: &str) -> Failure {
    Failure {
        configuration,
        case,
        kind: FailureKind::parse(kind),
        when: when.into(),
        message: message.into(),
        ..Failure::default()
    }
}

/// Records that an engine cannot be started here, with a hint.
pub fn add_unavailable(record: &mut RunRecord, configuration: usize, reason: &str, hint: &str) {
    let unavailable = Unavailable { reason: reason.into(), hint: Some(hint.into()) };
    record.header.plan.configurations[configuration].unavailable = Some(unavailable);
    let failure = failure(configuration, None, "unavailable", "start", reason);
    record.take(Entry::Failure(Failure { hint: Some(hint.into()), ..failure }));
}
