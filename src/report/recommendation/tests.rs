use super::*;
use crate::analysis::agreement::specimen::*;
use crate::plan::{Extent, Selection, Verification};
use crate::record::specimen::{BEACON, InventedEngine, ORIGINAL, REED, add_unavailable, failure};
use crate::report::tests::assert_fits;

/// A record of `ttft` and `decode` with these engines, all with the verifier's output. The first engine is the verifier.
fn record(engines: &[InventedEngine]) -> RunRecord {
    record_of_blocks(engines, 5)
}

fn record_of_blocks(engines: &[InventedEngine], blocks: u32) -> RunRecord {
    let names: Vec<&str> = engines.iter().map(|engine| engine.name).collect();
    let selection = crate::record::specimen::selection(&names);
    let mut selection = Selection {
        verifier: Some(selection.candidates[0].clone()),
        verification: Verification::Usual,
        scenarios: ["ttft", "decode"]
            .iter()
            .flat_map(|name| crate::plan::scenario::named_with_few_cases(name).unwrap())
            .collect(),
        extent: Extent { blocks: Some(blocks), ..Extent::default() },
        ..selection
    };
    selection.models[0].dtype = Some("f32".into());
    let mut record = crate::record::specimen::measured(&selection, engines);
    for launch in &mut record.launches {
        let capabilities = &mut launch.hello.get_or_insert_default().capabilities;
        (capabilities.prompt_ids, capabilities.score) = (true, true);
        capabilities.ignore_eos = protocol::IgnoreEos::Exact;
    }
    let blocks: std::collections::BTreeMap<u32, u32> =
        record.launches.iter().map(|launch| (launch.launch, launch.block)).collect();
    let cases = record.header.plan.cases.clone();
    for sample in &mut record.samples {
        let (workload, block) = (&cases[sample.case].workload.label, blocks[&sample.launch]);
        sample.prompt_hash = format!("{workload} {:?} {block} {}", sample.kind, sample.index);
        for sequence in &mut sample.iteration.sequences {
            sequence.output_ids = sequence.output_ids.take().map(|ids| vec![VERIFIER_ID; ids.len()]);
        }
    }
    add_held_out(&mut record);
    for configuration in 0..engines.len() {
        set_output(&mut record, configuration, 0.0);
    }
    record
}

/// Gives an engine log-probabilities with this difference in nats.
fn set_output(record: &mut RunRecord, configuration: usize, nats: f64) {
    set_scores(record, configuration, |_| Some(nats));
    set_continued(record, configuration, vec![VERIFIER_ID; 32]);
}

fn set_unverified(record: &mut RunRecord, configuration: usize) {
    samples(record, configuration).for_each(|it| it.prompt_hash.clear());
    record.scored.retain(|it| it.configuration != configuration);
    record.continued.retain(|it| it.configuration != configuration);
}

fn recommended(record: &RunRecord) -> Recommendation {
    let recommendation = Recommendation::of(record, Vec::new());
    assert!((3..=12).contains(&recommendation.sentences.len()), "{:#?}", recommendation.sentences);
    assert_fits(&crate::report::shown(&recommendation, "table", Some(100)), 100);
    recommendation
}

fn best(record: &RunRecord) -> Option<String> {
    recommended(record).models[0].best.as_ref().map(|it| it.engine.clone())
}

fn text(record: &RunRecord) -> String {
    recommended(record).sentences.join("\n")
}

#[test]
fn the_verified_engine_with_the_lowest_latency_is_recommended_with_its_evidence() {
    let mut record = record(&[ORIGINAL, BEACON, REED]);
    set_output(&mut record, 2, 0.0011);
    let recommendation = recommended(&record);
    let best = recommendation.models[0].best.as_ref().unwrap();
    // Beacon prefills faster and reed decodes faster: the whole answer counts.
    assert_eq!(best.engine, "beacon");
    let against = best.against.as_ref().unwrap();
    let expected = ("reed", Some(stats::Verdict::Faster), 5);
    assert_eq!((against.engine.as_str(), against.verdict, against.blocks), expected);
}

#[test]
fn the_fastest_engine_is_not_recommended_if_its_output_is_wrong() {
    let mut record = record(&[ORIGINAL, BEACON, REED]);
    let fastest = best(&record).unwrap();
    let index = record.header.plan.configurations.iter().position(|it| it.label == fastest).unwrap();
    set_output(&mut record, index, 9.0);
    let text = text(&record);
    assert_ne!(best(&record).as_deref(), Some(fastest.as_str()));
    assert!(text.contains(&format!("not recommended: `{fastest}`: its output is wrong: ")), "{text}");
}

#[test]
fn the_fastest_engine_is_not_recommended_if_its_output_is_unverified() {
    let mut record = record(&[ORIGINAL, BEACON, REED]);
    let fastest = best(&record).unwrap();
    let index = record.header.plan.configurations.iter().position(|it| it.label == fastest).unwrap();
    set_unverified(&mut record, index);
    let text = text(&record);
    assert_ne!(best(&record).as_deref(), Some(fastest.as_str()));
    assert!(text.contains(&format!("not recommended: `{fastest}`: its output is unverified: ")), "{text}");
}

#[test]
fn a_tie_is_called_a_tie_and_status_then_precision_then_memory_decide() {
    let alike = |name, dtype, memory_mb| InventedEngine { name, dtype, memory_mb, ..BEACON };
    // The status decides, although the other needs less memory.
    let mut by_status = record(&[ORIGINAL, alike("reed", "bf16/f32", 10), alike("beacon", "f32", 99)]);
    set_output(&mut by_status, 1, 0.0011);
    let text_by_status = text(&by_status);
    assert_eq!(best(&by_status).as_deref(), Some("beacon"));
    assert!(text_by_status.contains("how sure: it ties with `reed`"), "{text_by_status}");
    // The precision decides.
    let mut by_precision =
        record(&[ORIGINAL, alike("reed", "q8_0/f32", 10), alike("beacon", "bf16/f32", 99)]);
    for configuration in [1, 2] {
        set_output(&mut by_precision, configuration, 0.0011);
    }
    assert_eq!(best(&by_precision).as_deref(), Some("beacon"));
    // The memory decides.
    let by_memory = record(&[ORIGINAL, alike("reed", "f32", 99), alike("beacon", "f32", 10)]);
    assert_eq!(best(&by_memory).as_deref(), Some("beacon"));
}

#[test]
fn a_large_uncertain_difference_is_no_tie() {
    let noisy = InventedEngine { own_noise: 0.9, prompt_token_ms: 0.15, token_ms: 3.5, ..BEACON };
    let mut record = record(&[
        ORIGINAL,
        InventedEngine { name: "reed", dtype: "bf16/f32", own_noise: 0.9, ..BEACON },
        noisy,
    ]);
    set_output(&mut record, 1, 0.0011);
    let text = text(&record);
    assert!(text.contains("how sure: inconclusive, because of noise"), "{text}");
}

#[test]
fn without_verified_output_nothing_is_recommended_and_the_remedy_is_named() {
    let mut record = record(&[ORIGINAL, BEACON]);
    record.held_out.clear();
    record.scored.clear();
    record.continued.clear();
    let unverified = text(&record);
    assert_eq!(best(&record), None);
    assert!(
        unverified.contains("use: no engine can be recommended, because no output is verified; hint:"),
        "{unverified}"
    );
    record.header.plan.verification = Verification::Off;
    let unchecked = text(&record);
    assert_eq!(best(&record), None);
    assert!(
        unchecked.contains("because no output was checked; hint: leave out `--verifier none`"),
        "{unchecked}"
    );
    record.header.plan.verification = Verification::Usual;
    record.header.record_version = 2;
    let old = text(&record);
    assert!(old.contains("the record is older than output checks; hint: measure again"), "{old}");
    assert!(!old.contains("--verifier"), "{old}");
}

#[test]
fn one_engine_alone_is_recommended_without_a_comparison() {
    let record = record(&[ORIGINAL]);
    let text = text(&record);
    assert_eq!(best(&record).as_deref(), Some("patient-original"));
    assert!(text.contains("how sure: it is the only engine that can be recommended"), "{text}");
}

#[test]
fn few_blocks_give_a_recommendation_without_certainty() {
    let text = text(&record_of_blocks(&[ORIGINAL, BEACON], 2));
    assert!(text.contains("how sure: no verdict: 2 blocks, and a verdict needs 5."), "{text}");
    assert!(text.contains("hint: `--blocks 5`"), "{text}");
    let alike = |name| InventedEngine { name, ..BEACON };
    let tie = self::text(&record_of_blocks(&[ORIGINAL, alike("reed"), alike("beacon")], 2));
    let no_verdict = "the estimates differ by at most 10 %; no verdict: 2 blocks, and a verdict needs 5. ";
    assert!(tie.contains(no_verdict) && !tie.contains("inconclusive"), "{tie}");
}

#[test]
fn the_best_of_each_precision_has_its_cost_in_nats() {
    let mut record =
        record(&[ORIGINAL, BEACON, InventedEngine { token_ms: 0.5, prompt_token_ms: 0.05, ..REED }]);
    set_output(&mut record, 2, 0.0077);
    let text = text(&record);
    assert_eq!(best(&record).as_deref(), Some("reed"));
    assert!(
        text.contains("how sure: there is a verdict: the 95 % interval excludes an equal speed. It is "),
        "{text}"
    );
    assert!(text.contains("best without quantization: `beacon` (f32), "), "{text}");
    assert!(
        text.contains(
            "best at a lower precision: the same, `reed` (q8_0/f32); it drifts by 0.0077 nats, and its output agrees"
        ),
        "{text}"
    );
}

#[test]
fn failed_engines_and_engines_that_are_not_set_up_are_listed_with_their_hints() {
    let mut record = record(&[ORIGINAL, BEACON, REED]);
    record.failures.push(failure(1, None, "exited", "sample 3", "killed by signal 9"));
    let names = ["patient-original", "beacon", "reed", "coal"];
    record.header.plan.configurations.push(record.header.plan.configurations[2].clone());
    record.header.plan.configurations.last_mut().unwrap().label = names[3].into();
    let last = record.header.plan.configurations.len() - 1;
    record.header.plan.configurations[last].role = None;
    add_unavailable(&mut record, last, "not set up", "orchestrate setup coal");
    let text = text(&record);
    assert!(
        text.contains("not recommended: `beacon`: it failed: exited at sample 3: killed by signal 9"),
        "{text}"
    );
    assert!(text.contains("not tried: `coal` is not set up; hint: `orchestrate setup coal`"), "{text}");
    assert!(text.contains("not tried: a GPU, because this machine has none."), "{text}");
    assert!(text.contains("not tried: throughput, because it needs batches"), "{text}");
}

#[test]
fn one_command_sets_up_all_engines_that_were_not_tried_and_a_precision_that_is_too_large_has_its_reason() {
    let mut record = record(&[ORIGINAL, BEACON]);
    for (name, reason, hint) in [
        ("slate", "its environment is not set up (3.0 GB to download)", "orchestrate setup slate"),
        ("coal", "not built", "orchestrate setup coal"),
        ("beacon:large", "it needs about 8.0 GB in f32, and 90 % of the 4.0 GB of memory may be used", ""),
    ] {
        let mut other = record.header.plan.configurations[1].clone();
        (other.label, other.role) = (name.into(), None);
        record.header.plan.configurations.push(other);
        let last = record.header.plan.configurations.len() - 1;
        add_unavailable(&mut record, last, reason, hint);
    }
    let text = text(&record);
    let set_up = "not tried: `coal`, `slate` are not set up; hint: `orchestrate setup coal slate`";
    assert!(text.contains(set_up), "{text}");
    assert!(text.contains("not tried: `beacon:large`: it needs about 8.0 GB in f32, and 90 % of "), "{text}");
}

#[test]
fn a_record_without_latency_says_which_scenarios_to_measure() {
    let load = crate::plan::scenario::named("load").unwrap();
    let names = ["patient-original", "beacon"];
    let selection = Selection { scenarios: load, ..crate::record::specimen::selection(&names) };
    let record = crate::record::specimen::measured(&selection, &[ORIGINAL, BEACON]);
    let text = Recommendation::of(&record, Vec::new()).sentences.join("\n");
    assert!(
        text.contains("measures neither the time to first token nor the decode rate; hint: `-s ttft,decode`"),
        "{text}"
    );
}

#[test]
fn recommendations_from_the_records_of_the_tests_name_only_verified_engines() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["default-suite", "failed-engine", "llama-3.2-1b"] {
        let record = crate::record::read(&root.join(format!("tests/records/{name}.jsonl"))).unwrap();
        let recommendation = Recommendation::of(&record, Vec::new());
        let report = Report::of(&record);
        for best in recommendation.models.iter().filter_map(|it| it.best.as_ref()) {
            let output = report.outputs.iter().find(|it| it.engine == best.engine).unwrap();
            assert!(!output.is_unverified() && !output.agreement.is_wrong(), "{name}");
        }
        println!("{name}\n{}", crate::report::shown(&recommendation, "table", Some(100)));
        let json = crate::report::shown(&recommendation, "json", None);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["record"], record.header.id);
    }
}
