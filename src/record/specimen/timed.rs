//! Records with chosen times, so that tests know the true differences.

use protocol::{HelloFacts, Iteration, Stamp};

use super::{planned, sequence};
use crate::plan::{Extent, Prompt, Selection};
use crate::record::{End, Entry, Launch, RunRecord, Sample};
use stats::Random;

/// Nanoseconds in a millisecond.
pub const MS: f64 = 1e6;

/// A selection of engines and scenarios by name. The number of blocks is not set. The first engine is the reference.
pub fn selection(engines: &[&str], scenarios: &[&str]) -> Selection {
    Selection {
        scenarios: scenarios
            .iter()
            .flat_map(|name| crate::plan::scenario::named_with_few_cases(name).unwrap())
            .collect(),
        reference: engines[0].into(),
        extent: Extent::default(),
        ..super::selection(engines)
    }
}

/// The position of a request in its run.
#[derive(Debug, Clone, Copy)]
pub struct RequestPosition<'a> {
    pub configuration: usize,
    pub workload: &'a str,
    pub block: u32,
    pub round: u32,
}

/// A record with this many blocks of a plan. `token_ms` gives the time of each token of a request, or `None` for a request
/// without an answer.
pub fn measured(
    selection: &Selection,
    blocks: u32,
    mut token_ms: impl FnMut(RequestPosition) -> Option<f64>,
) -> RunRecord {
    let mut record = planned(selection);
    let plan = record.header.plan.clone();
    for block in 0..blocks {
        for (configuration, it) in plan.configurations.iter().enumerate() {
            let launch = launch(&mut record, configuration, block, &it.engine);
            for case in plan.cases_of(configuration) {
                let workload = &plan.cases[case].workload;
                for round in 0..workload.rounds {
                    let position = RequestPosition { configuration, workload: &workload.label, block, round };
                    if let Some(ms) = token_ms(position) {
                        answer(&mut record, launch, case, round, ms);
                    }
                }
            }
        }
    }
    record.take(Entry::End(End::Finished.into()));
    record
}

/// Adds a launch without requests and returns its number.
pub fn launch(record: &mut RunRecord, configuration: usize, block: u32, engine: &str) -> u32 {
    let launch = record.launches.len() as u32;
    let hello = HelloFacts {
        engine: engine.into(),
        version: "1.0".into(),
        stamp: Stamp::Token,
        ..HelloFacts::default()
    };
    let loaded_ns = Some(100_000_000);
    let launched =
        Launch { launch, configuration, block, hello: Some(hello), loaded_ns, ..Launch::default() };
    record.take(Entry::Launch(Box::new(launched)));
    launch
}

/// Adds a measured request in which each token, and the prompt as a whole, takes this long.
pub fn answer(record: &mut RunRecord, launch: u32, case: usize, round: u32, token_ms: f64) {
    let workload = record.header.plan.cases[case].workload.clone();
    let Prompt::Tokens(prompt_tokens) = workload.prompt else { panic!("a prompt of text") };
    let times: Vec<u64> =
        (1..=workload.max_new_tokens).map(|token| (f64::from(token) * token_ms * MS) as u64).collect();
    let end_ns = times.last().copied().unwrap_or(1);
    let block = record.launches[launch as usize].block;
    record.take(Entry::Sample(Box::new(Sample {
        launch,
        case,
        index: round,
        prompt_hash: format!("{} {block} {round}", workload.label),
        sent_ns: 200_000_000,
        answered_ns: 200_000_000 + end_ns,
        iteration: Iteration { start_ns: 0, end_ns, sequences: vec![sequence(prompt_tokens, times)] },
        peak_resident_bytes: Some(100_000_000),
        ..Sample::default()
    })));
}

/// Token times on a noisy machine; `token_ms` gives those of a configuration without noise. One factor from 1 to 1.5 slows all
/// requests of a block. Each request has its own random factor too, whose logarithm has the standard deviation `deviation`.
pub fn noisy(
    token_ms: impl Fn(usize) -> f64,
    deviation: f64,
    seed: u64,
) -> impl FnMut(RequestPosition) -> Option<f64> {
    let mut random = Random::seeded(seed);
    move |position| {
        let shared = 1.0 + Random::seeded(u64::from(position.block)).unit() / 2.0;
        Some(token_ms(position.configuration) * shared * (deviation * random.normal()).exp())
    }
}
