//! Records with output checks made by hand: a verifier in f32, and one engine that each test changes.

use crate::plan::{Extent, Selection, Verification};
use crate::record::specimen::{self, BASELINE, BEACON, Invented};
use crate::record::{Continued, Entry, HeldOut, ReferenceToken, RequestKind, RunRecord, Sample, Scored};

/// The configurations of these records.
pub const VERIFIER: usize = 0;
pub const ENGINE: usize = 1;
pub const TOKENS: usize = 1151;

/// The verifier's log-probability of every id, and the id that it generates.
const LOGPROB: f64 = -2.0;
pub const OWN: u32 = 7;

/// A record of `decode` without output checks, by two engines; the first is the verifier.
pub fn not_checked() -> RunRecord {
    measured(&["patient-original", "beacon"], &[BASELINE, BEACON])
}

pub fn measured(names: &[&str], engines: &[Invented]) -> RunRecord {
    let selection = specimen::selection(names);
    let selection = Selection {
        verifier: Some(selection.candidates[0].clone()),
        verification: Verification::Usual,
        scenarios: crate::plan::scenario::named("decode").unwrap(),
        extent: Extent { blocks: Some(5), ..Extent::default() },
        ..selection
    };
    let mut record = specimen::measured(&selection, engines);
    let blocks = super::positions::blocks(&record);
    for launch in &mut record.launches {
        let mut hello = launch.hello.take().unwrap_or_default();
        hello.capabilities.prompt_ids = true;
        hello.capabilities.score = true;
        hello.capabilities.ignore_eos = protocol::IgnoreEos::Exact;
        launch.hello = Some(hello);
    }
    for sample in record.samples.iter_mut() {
        let configuration = record.header.plan.cases[sample.case].configuration;
        let names = &record.header.plan.configurations[configuration];
        assert!(!names.label.is_empty());
        sample.prompt_hash = format!("{:?} {} {}", sample.kind, blocks[&sample.launch], sample.index);
        for sequence in &mut sample.iteration.sequences {
            sequence.output_ids = sequence.output_ids.take().map(|ids| vec![OWN; ids.len()]);
        }
    }
    record
}

/// A record in which every engine gave the verifier's answers.
pub fn checked() -> RunRecord {
    let mut record = not_checked();
    state(&mut record, VERIFIER, "f32", "f32");
    ask(&mut record);
    score(&mut record, VERIFIER, |_| Some(0.0));
    go_on(&mut record, VERIFIER, vec![OWN; 32]);
    score(&mut record, ENGINE, |_| Some(0.0));
    go_on(&mut record, ENGINE, vec![OWN; 32]);
    record
}

pub fn ask(record: &mut RunRecord) {
    record.take(Entry::HeldOut(HeldOut {
        model: "/m".into(),
        sequences: vec![vec![1; TOKENS + 1]],
        prompt: vec![1; 16],
        max_new_tokens: 32,
    }));
}

/// Sets the dtypes that the engine states, in every launch.
pub fn state(record: &mut RunRecord, configuration: usize, weights: &str, compute: &str) {
    for launch in record.launches.iter_mut().filter(|launch| launch.configuration == configuration) {
        let loaded = launch.loaded.get_or_insert_default();
        loaded.facts.weights_dtype = Some(weights.into());
        loaded.facts.compute_dtype = Some(compute.into());
    }
}

/// Sets the difference from the verifier's log-probabilities, by position; `None` is minus infinity.
pub fn score(record: &mut RunRecord, configuration: usize, off: impl Fn(usize) -> Option<f64>) {
    record.scored.retain(|it| it.configuration != configuration);
    let logprobs = (0..TOKENS).map(|place| Some(LOGPROB + off(place)?)).collect();
    record.take(Entry::Scored(Scored { configuration, logprobs, ..Scored::default() }));
}

pub fn go_on(record: &mut RunRecord, configuration: usize, ids: Vec<u32>) {
    record.continued.retain(|it| it.configuration != configuration);
    record.take(Entry::Continued(Continued { configuration, launch: 0, ids }));
}

/// Sets another id at these positions of every measured request.
pub fn generate(record: &mut RunRecord, configuration: usize, other: impl Fn(usize) -> Option<u32>) {
    let cases = record.header.plan.cases.clone();
    let own = |sample: &&mut Sample| {
        sample.kind == RequestKind::Measured && cases[sample.case].configuration == configuration
    };
    for sample in record.samples.iter_mut().filter(own) {
        for ids in sample.iteration.sequences.iter_mut().filter_map(|it| it.output_ids.as_mut()) {
            for (place, id) in ids.iter_mut().enumerate() {
                *id = other(place).unwrap_or(*id);
            }
        }
    }
}

/// Adds the verifier's answer on every token of every measured request, with this gap at each position.
pub fn opine(record: &mut RunRecord, configuration: usize, gap: impl Fn(usize) -> f64) {
    let plan = &record.header.plan;
    let own = |sample: &&Sample| {
        sample.kind == RequestKind::Measured && plan.cases[sample.case].configuration == configuration
    };
    let mut gaps = Vec::new();
    for sample in record.samples.iter().filter(own) {
        let ids = sample.iteration.sequences[0].output_ids.clone().unwrap_or_default();
        for (place, engine_token) in ids.into_iter().enumerate() {
            let gap = gap(place);
            gaps.push(ReferenceToken {
                verifier: VERIFIER,
                launch: sample.launch,
                case: sample.case,
                index: sample.index,
                position: place as u32,
                engine_token,
                verifier_token: if gap == 0.0 { engine_token } else { OWN },
                engine_logprob: Some(-0.5 - gap),
                verifier_logprob: Some(-0.5),
            });
        }
    }
    gaps.into_iter().for_each(|reference| record.take(Entry::ReferenceToken(reference)));
}
