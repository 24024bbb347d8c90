//! Synthetic records with output checks: a verifier in f32, and one engine that each test changes.

use protocol::IgnoreEos;

use crate::plan::{Extent, Selection, Verification};
use crate::record::specimen::{self, BEACON, InventedEngine, ORIGINAL};
use crate::record::{
    CheckedOutput, Continued, DifferingToken, DtypeCost, DtypeCosts, Entry, HeldOut, HeldOutScores, Launch,
    ReferenceAnswers, ReferenceToken, RequestKind, RunRecord, Sample,
};

/// The indices of the configurations in these records.
pub const VERIFIER: usize = 0;
pub const ENGINE: usize = 1;
/// The number of scored tokens of the held-out text.
pub const TOKENS: usize = 1151;

/// The verifier's log-probability of every id of the held-out text.
const LOGPROB: f64 = -2.0;
/// The id that the verifier generates at every position.
pub const VERIFIER_ID: u32 = 7;

/// A record without output checks.
pub fn not_checked() -> RunRecord {
    measured(&["patient-original", "beacon"], &[ORIGINAL, BEACON])
}

/// A record of `decode` by these engines; the first is the verifier.
pub fn measured(names: &[&str], engines: &[InventedEngine]) -> RunRecord {
    let selection = Selection {
        scenarios: crate::plan::scenario::named_with_few_cases("decode").unwrap(),
        extent: Extent { blocks: Some(5), ..Extent::default() },
        ..specimen::selection(names)
    };
    measured_selection(selection, engines)
}

/// A record in which each engine's log-probabilities differ by its deviation, in nats, from the log-probabilities of the first
/// engine, the verifier.
pub fn with_deviations(selection: Selection, engines: &[InventedEngine], deviations: &[f64]) -> RunRecord {
    let mut record = measured_selection(selection, engines);
    set_dtypes(&mut record, VERIFIER, "f32", "f32");
    add_held_out(&mut record);
    for (configuration, deviation) in deviations.iter().enumerate() {
        set_scores(&mut record, configuration, |_| Some(*deviation));
        set_continued(&mut record, configuration, vec![VERIFIER_ID; 32]);
    }
    record
}

fn measured_selection(selection: Selection, engines: &[InventedEngine]) -> RunRecord {
    let selection = Selection {
        verifier: Some(selection.candidates[0].clone()),
        verification: Verification::Usual,
        ..selection
    };
    let mut record = specimen::measured(&selection, engines);
    let blocks = super::tokens::blocks(&record);
    for launch in &mut record.launches {
        let capabilities = &mut launch.hello.get_or_insert_default().capabilities;
        (capabilities.prompt_ids, capabilities.score) = (true, true);
        capabilities.ignore_eos = IgnoreEos::Exact;
    }
    for sample in &mut record.samples {
        sample.prompt_hash = format!("{:?} {} {}", sample.kind, blocks[&sample.launch], sample.index);
        for sequence in &mut sample.iteration.sequences {
            sequence.output_ids = sequence.output_ids.take().map(|ids| vec![VERIFIER_ID; ids.len()]);
        }
    }
    record
}

/// A record in which every engine gave the verifier's answers.
pub fn checked() -> RunRecord {
    let mut record = not_checked();
    set_dtypes(&mut record, VERIFIER, "f32", "f32");
    add_held_out(&mut record);
    set_scores(&mut record, VERIFIER, |_| Some(0.0));
    set_continued(&mut record, VERIFIER, vec![VERIFIER_ID; 32]);
    set_scores(&mut record, ENGINE, |_| Some(0.0));
    set_continued(&mut record, ENGINE, vec![VERIFIER_ID; 32]);
    record
}

pub fn add_held_out(record: &mut RunRecord) {
    record.take(Entry::HeldOut(HeldOut {
        model: "/m".into(),
        sequences: vec![vec![1; TOKENS + 1]],
        prompt: vec![1; 16],
        max_new_tokens: 32,
        text_bytes: Vec::new(),
    }));
}

pub fn launches(record: &mut RunRecord, configuration: usize) -> impl Iterator<Item = &mut Launch> {
    record.launches.iter_mut().filter(move |it| it.configuration == configuration)
}

pub fn samples(record: &mut RunRecord, configuration: usize) -> impl Iterator<Item = &mut Sample> {
    let cases = record.header.plan.cases_of(configuration);
    record.samples.iter_mut().filter(move |it| cases.contains(&it.case))
}

/// Adds reference answers with this log-probability for every id.
pub fn add_reference_answers(record: &mut RunRecord, logprob: f64) {
    record.take(Entry::ReferenceAnswers(ReferenceAnswers {
        model: "/m".into(),
        by: "patient-original 0.1.0".into(),
        logprobs: vec![vec![Some(logprob); TOKENS]],
        continued: vec![VERIFIER_ID; 32],
    }));
}

/// Sets the dtypes that the engine reports, in every launch.
pub fn set_dtypes(record: &mut RunRecord, configuration: usize, weights: &str, compute: &str) {
    for launch in launches(record, configuration) {
        let facts = &mut launch.loaded.get_or_insert_default().facts;
        (facts.weights_dtype, facts.compute_dtype) = (Some(weights.into()), Some(compute.into()));
    }
}

/// Sets log-probabilities by their difference from the verifier's at each position; `None` is minus infinity.
pub fn set_scores(record: &mut RunRecord, configuration: usize, difference: impl Fn(usize) -> Option<f64>) {
    record.scored.retain(|it| it.configuration != configuration);
    let logprobs = (0..TOKENS).map(|position| Some(LOGPROB + difference(position)?)).collect();
    record.take(Entry::Scored(HeldOutScores { configuration, logprobs, ..HeldOutScores::default() }));
}

pub fn set_continued(record: &mut RunRecord, configuration: usize, ids: Vec<u32>) {
    record.continued.retain(|it| it.configuration != configuration);
    record.take(Entry::Continued(Continued { configuration, ids, ..Continued::default() }));
}

/// Replaces the ids of every measured request at the positions for which `id_at` has an id.
pub fn replace_ids(record: &mut RunRecord, configuration: usize, id_at: impl Fn(usize) -> Option<u32>) {
    for sample in samples(record, configuration).filter(|it| it.kind == RequestKind::Measured) {
        for ids in sample.iteration.sequences.iter_mut().filter_map(|it| it.output_ids.as_mut()) {
            for (position, id) in ids.iter_mut().enumerate() {
                *id = id_at(position).unwrap_or(*id);
            }
        }
    }
}

/// Adds costs of bf16, f16, q8_0 and q4_0 that are similar to those of the embedded model.
pub fn add_dtype_costs(record: &mut RunRecord) {
    let cost = |dtype: &str, rms: f64, changed: usize| DtypeCost {
        dtype: dtype.into(),
        tokens: 1659,
        rms,
        stretch_rms: 1.4 * rms,
        positions: 1659,
        changed,
        gaps: vec![rms; changed.min(16)],
    };
    let costs = vec![
        cost("bf16", 0.0074, 26),
        cost("f16", 0.001, 3),
        cost("q8_0", 0.0046, 17),
        cost("q4_0", 0.074, 195),
    ];
    let costs = DtypeCosts { model: "/m".into(), by: "reference 1".into(), costs, unmeasured: Vec::new() };
    record.take(Entry::DtypeCosts(costs));
}

/// Adds the verifier's comparison of every measured output. At each of these positions, the engine's token is less likely by
/// `gap` nats. Each position of an output has another pair of tokens.
pub fn add_checked_outputs(record: &mut RunRecord, configuration: usize, positions: &[u32], gap: f64) {
    let samples: Vec<Sample> = samples(record, configuration).map(|it| it.clone()).collect();
    for sample in samples.into_iter().filter(|it| it.kind == RequestKind::Measured) {
        let ids = sample.iteration.sequences[0].output_ids.clone().unwrap_or_default();
        let token = |&position: &u32| DifferingToken {
            position,
            engine_token: 100 + position,
            verifier_token: VERIFIER_ID,
            engine_logprob: Some(-0.5 - gap),
            verifier_logprob: -0.5,
        };
        record.take(Entry::CheckedOutput(CheckedOutput {
            verifier: VERIFIER,
            launch: sample.launch,
            case: sample.case,
            index: sample.index,
            positions: ids.len() as u32,
            differing: positions.iter().map(token).collect(),
            read: None,
        }));
    }
}

/// Adds the verifier's answer on every token of every measured request. `gap` is the number of nats by which the engine's token
/// at a position is less likely than the verifier's.
pub fn add_reference_tokens(record: &mut RunRecord, configuration: usize, gap: impl Fn(usize) -> f64) {
    let mut tokens = Vec::new();
    for sample in samples(record, configuration).filter(|it| it.kind == RequestKind::Measured) {
        let ids = sample.iteration.sequences[0].output_ids.clone().unwrap_or_default();
        for (position, engine_token) in ids.into_iter().enumerate() {
            let gap = gap(position);
            tokens.push(ReferenceToken {
                verifier: VERIFIER,
                launch: sample.launch,
                case: sample.case,
                index: sample.index,
                position: position as u32,
                engine_token,
                verifier_token: if gap == 0.0 { engine_token } else { VERIFIER_ID },
                engine_logprob: Some(-0.5 - gap),
                verifier_logprob: Some(-0.5),
            });
        }
    }
    tokens.into_iter().for_each(|token| record.take(Entry::ReferenceToken(token)));
}
