//! Records built in code, so that a report can be seen without an engine.

use protocol::{Facts, HelloFacts, Iteration, Loaded, Sequence};
use serde_json::Map;

use crate::machine::{Cpu, Machine};
use crate::plan::{Asked, Candidate, Mode, Model, Plan, Prompt, Unavailable};
use crate::record::{End, Entry, Failure, Header, Launch, RECORD_VERSION, RunRecord, Sample};

/// How an invented engine behaves.
#[derive(Clone)]
pub struct Invented {
    pub name: &'static str,
    pub version: &'static str,
    pub dtype: &'static str,
    pub load_ms: f64,
    pub prompt_token_ms: f64,
    pub token_ms: f64,
    pub memory_mb: u64,
}

pub const BASELINE: Invented = Invented {
    name: "patient-original",
    version: "0.1.0",
    dtype: "f32",
    load_ms: 2310.0,
    prompt_token_ms: 0.41,
    token_ms: 21.7,
    memory_mb: 412,
};

pub const BEACON: Invented = Invented {
    name: "beacon",
    version: "0.9.1",
    dtype: "f32",
    load_ms: 31.2,
    prompt_token_ms: 0.083,
    token_ms: 1.93,
    memory_mb: 61,
};

pub const REED: Invented = Invented {
    name: "reed",
    version: "0.3.2",
    dtype: "q8_0/f32",
    load_ms: 12.9,
    prompt_token_ms: 0.31,
    token_ms: 1.14,
    memory_mb: 33,
};

pub fn asked(names: &[&str]) -> Asked {
    let candidate = |name: &&str| Candidate {
        engine: name.to_string(),
        command: vec![name.to_string()],
        ..Candidate::default()
    };
    Asked {
        candidates: names.iter().map(candidate).collect(),
        models: vec![Model { name: "embedded".into(), path: "/m".into(), ..Model::default() }],
        scenarios: crate::scenario::named("default").unwrap(),
        devices: vec!["cpu".into()],
        dtypes: vec![None],
        threads: vec![2],
        options: Map::new(),
        reference: "patient-original".into(),
        mode: Mode::Warm,
        launches: 3,
        seed: 0,
        prompt: None,
        max_new_tokens: None,
        samples: None,
        warmup: None,
        temperature: None,
    }
}

/// A record of a plan of which nothing was done yet.
pub fn planned(asked: &Asked) -> RunRecord {
    let machine = Machine {
        cpu: Cpu { model: Some("AMD EPYC".into()), allowed_cores: Some(2), ..Cpu::default() },
        ..Machine::default()
    };
    let header = Header {
        record_version: RECORD_VERSION,
        id: "2026-01-02T03-04-05Z-123".into(),
        started: "2026-01-02T03:04:05Z".into(),
        orchestrate_version: "0.1.0".into(),
        command: vec!["orchestrate".into(), "--all".into()],
        machine,
        plan: Plan::new(asked),
        ..Header::default()
    };
    RunRecord { header, ..RunRecord::default() }
}

/// Every round of the plan, as the engines would have answered it.
pub fn measured(asked: &Asked, engines: &[Invented]) -> RunRecord {
    let mut record = planned(asked);
    for round in 0..asked.launches {
        for configuration in 0..record.header.plan.configurations.len() {
            let name = record.header.plan.configurations[configuration].engine.clone();
            if let Some(engine) = engines.iter().find(|engine| engine.name == name) {
                launch(&mut record, round, configuration, engine);
            }
        }
    }
    record.take(Entry::End(End::Finished));
    record
}

fn launch(record: &mut RunRecord, round: u32, configuration: usize, engine: &Invented) {
    let launch = record.launches.len() as u32;
    let facts = Facts {
        device: Some("cpu".into()),
        weights_dtype: engine.dtype.split('/').next().map(String::from),
        compute_dtype: engine.dtype.split('/').next_back().map(String::from),
        threads: Some(2),
        ..Facts::default()
    };
    // A noise that is the same in every run of a test.
    let noise = |at: u32| 1.0 + f64::from((at * 37 + round * 11) % 13) / 260.0;
    let loaded_ns = (engine.load_ms * noise(0) * 1e6) as u64;
    record.take(Entry::Launch(Box::new(Launch {
        launch,
        configuration,
        round,
        hello: Some(HelloFacts {
            engine: engine.name.into(),
            version: engine.version.into(),
            ..HelloFacts::default()
        }),
        loaded: Some(Loaded { facts, ..Loaded::default() }),
        loaded_ns: Some(loaded_ns),
        ..Launch::default()
    })));
    let plan = record.header.plan.clone();
    for case in plan.cases_of(configuration) {
        let workload = &plan.cases[case].workload;
        let Prompt::Tokens(prompt_tokens) = workload.prompt else { panic!("a prompt of text") };
        for index in 0..workload.samples {
            let ns = |ms: f64, at: u32| (ms * noise(index + at) * 1e6) as u64;
            let start_ns = 20_000;
            let mut times =
                vec![start_ns + ns(engine.prompt_token_ms * f64::from(prompt_tokens) + engine.token_ms, 1)];
            for token in 1..workload.max_new_tokens {
                let gap = ns(engine.token_ms, token + 2) + if token == 40 { 3_000_000 } else { 0 };
                times.push(times[token as usize - 1] + gap);
            }
            let end_ns = times[times.len() - 1] + 5_000;
            let sequence = Sequence {
                prompt_tokens,
                output_ids: Some(vec![1; times.len()]),
                token_ns: Some(times),
                ..Sequence::default()
            };
            record.take(Entry::Sample(Box::new(Sample {
                launch,
                case,
                index,
                sent_ns: loaded_ns + 1000,
                answered_ns: loaded_ns + 1000 + end_ns,
                iteration: Iteration { start_ns, end_ns, sequences: vec![sequence] },
                peak_resident_bytes: Some((engine.memory_mb + u64::from(prompt_tokens / 64)) * 1_000_000),
                ..Sample::default()
            })));
        }
    }
}

pub fn failure(configuration: usize, case: Option<usize>, kind: &str, when: &str, message: &str) -> Failure {
    Failure {
        configuration,
        case,
        kind: kind.into(),
        when: when.into(),
        message: message.into(),
        ..Failure::default()
    }
}

/// An engine that cannot be started here, with a hint.
pub fn unavailable(record: &mut RunRecord, configuration: usize, reason: &str, hint: &str) {
    let unavailable = Unavailable { reason: reason.into(), hint: Some(hint.into()) };
    record.header.plan.configurations[configuration].unavailable = Some(unavailable);
    let failure = failure(configuration, None, "unavailable", "start", reason);
    record.take(Entry::Failure(Failure { hint: Some(hint.into()), ..failure }));
}
