use super::*;
use crate::analysis::agreement::specimen as checks;
use crate::analysis::claims::Contradiction;
use crate::record::specimen::{
    BEACON, InventedEngine, ORIGINAL, REED, add_unavailable, failure, measured, selection,
};
use crate::record::{End, Entry, FEWER_BLOCKS, Failure, FailureKind, RunEnd, Warning};
use crate::report::tests::{assert_fits, words};

/// The records in `tests/records`, and those directly in `results/`.
fn stored_records() -> Vec<(String, RunRecord)> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["tests/records", "results"].map(|folder| root.join(folder));
    let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let files =
        files.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|it| it == "jsonl"));
    let records: Vec<(String, RunRecord)> = files
        .filter_map(|path| Some((path.display().to_string(), crate::record::read(&path).ok()?)))
        .collect();
    assert!(records.len() >= 3, "the records of the tests are missing");
    records
}

fn explanation(record: &RunRecord, name: &str) -> Explanation {
    let words: Vec<String> = name.split(' ').filter(|it| !it.is_empty()).map(String::from).collect();
    explain(record, &words, Detail::Full).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The text for a terminal, with one space between words.
fn explained(record: &RunRecord, name: &str) -> String {
    words(&crate::report::shown(&explanation(record, name), "table", Some(100)))
}

fn error(record: &RunRecord, name: &str) -> String {
    explain(record, &[name.to_string()], Detail::Full).err().unwrap()
}

/// Every engine, every case, each pair of both, and the terms.
fn names(record: &RunRecord) -> Vec<String> {
    let data = RunData::of(record);
    let engines: Vec<String> = data.engines.iter().map(|engine| engine.label.clone()).collect();
    let cases: Vec<String> = data.workloads().into_iter().map(|it| it.workload).collect();
    let both = engines.iter().flat_map(|engine| cases.iter().map(move |case| format!("{engine} {case}")));
    both.chain(engines.clone()).chain(cases.clone()).chain([String::new()]).collect()
}

/// A record of `decode` in which every engine gives the answers of the first one, the verifier.
fn verified(engines: &[InventedEngine]) -> RunRecord {
    let names: Vec<&str> = engines.iter().map(|engine| engine.name).collect();
    let mut record = checks::measured(&names, engines);
    checks::set_dtypes(&mut record, checks::VERIFIER, "f32", "f32");
    checks::add_held_out(&mut record);
    for configuration in 0..engines.len() {
        checks::set_scores(&mut record, configuration, |_| Some(0.0));
        checks::set_continued(&mut record, configuration, vec![checks::VERIFIER_ID; 32]);
    }
    record
}

/// A record of `decode` without output checks.
fn decoding(engines: &[InventedEngine]) -> RunRecord {
    let names: Vec<&str> = engines.iter().map(|engine| engine.name).collect();
    let scenarios = crate::plan::scenario::named_with_few_cases("decode").unwrap();
    measured(&crate::plan::Selection { scenarios, ..selection(&names) }, engines)
}

#[test]
fn every_engine_and_case_of_every_stored_record_has_an_explanation_that_fits() {
    for (file, record) in stored_records() {
        for name in names(&record) {
            let explanation = explanation(&record, &name);
            assert!(!explanation.parts.is_empty(), "{file}: {name}");
            for part in &explanation.parts {
                assert!(!part.sentences.is_empty(), "{file}: {name}: {part:?}");
            }
            for format in ["table", "markdown"] {
                let text = crate::report::shown(&explanation, format, Some(100));
                if format == "table" {
                    assert_fits(&text, 100);
                }
                for mistake in ["NaN", "inf ", " -0", "..", "launchs", "``", " ,"] {
                    assert!(!text.contains(mistake), "{file}: {name}: `{mistake}` in\n{text}");
                }
            }
            let json = crate::report::shown(&explanation, "json", None);
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            assert_eq!(json["record"], record.header.id, "{name}");
        }
    }
}

/// The most words of a sentence that a user sees.
const MAX_WORDS: usize = 25;

#[test]
fn no_sentence_is_longer_than_a_reader_can_follow() {
    // These texts come from the record, from METRICS or from another module.
    let quoted = [
        "Reason: ",
        "Allowed difference: ",
        "Details: ",
        "Note: ",
        "stderr: ",
        "It failed: ",
        "It was not measured: ",
        "It reports these",
    ];
    for (_, record) in stored_records() {
        for name in names(&record).into_iter().filter(|name| !name.is_empty()) {
            let parts = explanation(&record, &name).parts.into_iter();
            let is_quoted = |part: &Part| part.title.starts_with("columns") || part.title == "warnings";
            for part in parts.filter(|part| !is_quoted(part)) {
                let own = part.sentences.iter().filter(|text| !quoted.iter().any(|it| text.starts_with(it)));
                for sentence in own.flat_map(|text| text.split(". ")) {
                    let count = sentence.split_whitespace().count();
                    assert!(count <= MAX_WORDS, "{count} words: {sentence}");
                }
            }
        }
    }
}

#[test]
fn a_name_of_a_column_and_of_a_case_has_first_the_meaning_of_the_column() {
    let explanation = explanation(&verified(&[ORIGINAL, BEACON]), "Decode");
    let titles: Vec<&str> = explanation.parts.iter().map(|part| part.title.as_str()).collect();
    assert_eq!(titles[..2], ["columns of metrics", "`decode`: how it was measured"]);
    assert!(explanation.parts[0].sentences[0].starts_with("decode: generated tokens per second"));
}

#[test]
fn an_engine_has_its_verdict_with_the_evidence() {
    let record = verified(&[ORIGINAL, BEACON, InventedEngine { dtype: "f32", ..REED }]);
    let text = explained(&record, "beacon decode");
    assert!(text.contains("Its rank is 2 of 3, by decode."), "{text}");
    assert!(text.contains("tok/s: `beacon` decodes 11."), "{text}");
    assert!(text.contains("x as fast as `patient-original` ["), "{text}");
    assert!(text.contains("with 95 % confidence, over 5 blocks with paired rounds."), "{text}");
    assert!(
        text.contains(
            "p < 0.0001 after the correction for 2 comparisons (Holm's method): noise alone would show"
        ),
        "{text}"
    );
    assert!(text.contains("Best, ") && text.contains("tok/s: `beacon` decodes 1.6"), "{text}");
    assert!(text.contains("It made 15 measured requests in 5 launches."), "{text}");
    let best = explained(&record, "reed");
    assert!(best.contains("Next best, ") && best.contains("tok/s: `reed` decodes 1.67"), "{best}");
    let reference = explained(&record, "patient-original");
    assert!(reference.contains("It is the reference"), "{reference}");
}

#[test]
fn without_output_checks_no_engine_has_a_rank() {
    let text = explained(&decoding(&[ORIGINAL, BEACON]), "beacon");
    assert!(text.contains("It has no rank: its output was not checked."), "{text}");
    assert!(!text.contains("x as fast"), "{text}");
}

#[test]
fn a_noise_floor_is_named_with_its_source() {
    let mut record = verified(&[ORIGINAL, BEACON]);
    let text = explained(&record, "beacon decode");
    assert!(text.contains("`patient-original` and its twin differed by up to that in 5 blocks"), "{text}");
    let calibrated = |configuration: usize, floor: f64, since: &str| crate::record::CalibratedFloor {
        configuration,
        workload: "decode".into(),
        metric: crate::analysis::metric::MetricId::DECODE_RATE,
        paired: stats::NoiseFloor::of(&[floor; 20]).unwrap(),
        between: None,
        since: since.into(),
    };
    // The date is that of the floor that counts, not the oldest one of the record.
    record.header.noise_floors =
        vec![calibrated(0, 0.001, "2025-01-01T00:00:00Z"), calibrated(1, 0.3, "2026-01-01T00:00:00Z")];
    let text = explained(&record, "beacon decode");
    let floor =
        "The noise floor is 35 %: the calibration of `beacon` found it in 20 blocks (2026-01-01T00:00:00Z).";
    assert!(text.contains(floor), "{text}");
}

#[test]
fn without_a_noise_floor_the_reason_is_given() {
    let record = verified(&[ORIGINAL, BEACON, InventedEngine { dtype: "f32", ..REED }]);
    let text = explained(&record, "beacon decode");
    let why = "The noise floor is unknown: neither engine has a twin or a calibration. A difference must exceed 2 %.";
    assert!(text.contains(why), "{text}");
    let case = explained(&record, "decode");
    assert!(case.contains("Only comparisons with `patient-original` use this noise floor."), "{case}");
    assert!(case.contains("noise floor unknown (neither engine has a twin or a calibration)"), "{case}");
    let mut few = verified(&[ORIGINAL, BEACON]);
    few.launches.retain(|launch| launch.block < 2);
    few.samples.retain(|sample| few.launches.iter().any(|it| it.launch == sample.launch));
    let text = explained(&few, "beacon decode");
    assert!(text.contains("unknown: the twin of `patient-original` has fewer than 5 blocks"), "{text}");
}

#[test]
fn a_ratio_that_is_no_quotient_of_the_two_values_has_a_mark_and_its_meaning_once() {
    let meaning = format!("`*`: {}.", Mark::NotAQuotient.about());
    let (mut marked, mut unmarked) = (0, 0);
    for (file, record) in stored_records() {
        let report = Report::of(&record);
        for ranking in rankings(&report) {
            let Some((best, next)) = ranking.best().zip(ranking.next_best()) else { continue };
            let compared = super::super::ranking::compared(&report, best, next).unwrap();
            let is_exact =
                compared.verdict() == Some(stats::Verdict::Same) || compared.is_quotient(best, next);
            let name = format!("{} {}", best.engine.label, ranking.case);
            let text = explained(&record, &name);
            let short = explain(&record, std::slice::from_ref(&best.engine.label), Detail::Brief).unwrap();
            let short = words(&crate::report::shown(&short, "table", Some(100)));
            assert!(is_exact || short.matches(&meaning).count() == 1, "{file}: {name}\n{short}");
            assert!(
                !short.contains("as fast than") && !short.contains("slower as"),
                "{file}: {name}\n{short}"
            );
            let is_with_reference = Some(&next.engine.label) == best.reference.as_ref();
            let is_marked = ["x* as fast", "x* slower", " %* "].iter().any(|it| text.contains(it));
            assert_eq!(text.matches(&meaning).count(), usize::from(is_marked), "{file}: {name}\n{text}");
            assert!(!text.contains("as fast than") && !text.contains("slower as"), "{file}: {name}\n{text}");
            if !is_exact {
                assert!(is_marked, "{file}: {name}\n{text}");
                marked += 1;
            } else if is_with_reference {
                assert!(!text.contains(&meaning), "{file}: {name}\n{text}");
                unmarked += 1;
            }
        }
    }
    assert!(marked > 0 && unmarked > 0, "{marked} marked, {unmarked} not");
}

#[test]
fn an_inconclusive_result_says_what_would_decide_it() {
    let twin = InventedEngine { name: "beacon", token_ms: 20.5, own_noise: 0.08, ..ORIGINAL };
    let wide = explained(&verified(&[ORIGINAL, twin.clone()]), "beacon decode");
    assert!(wide.contains("It is inconclusive: "), "{wide}");
    assert!(
        wide.contains("hint: measure again with `--blocks ") || wide.contains("quieter machine"),
        "{wide}"
    );
    let noisy = |own_noise| verified(&[ORIGINAL, InventedEngine { name: "beacon", own_noise, ..ORIGINAL }]);
    // A budget gives at most 20 blocks.
    let needs_blocks = |it: &RunRecord| {
        let text = explained(it, "beacon decode");
        (6..=20).any(|blocks| text.contains(&format!("again with `--blocks {blocks}`")))
    };
    let levels = [0.02, 0.025, 0.03, 0.035, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12];
    let mut in_time = levels.map(noisy).into_iter().find(needs_blocks).unwrap();
    in_time.header.plan.extent.budget_ns = Some(60_000_000_000);
    in_time.closed.iter_mut().for_each(|it| it.by = stats::StoppedBy::Time);
    let in_time = explained(&in_time, "beacon decode");
    assert!(in_time.contains("measure again with `--budget "), "a larger budget has more blocks: {in_time}");
    let mut record = verified(&[ORIGINAL, BEACON]);
    record.launches.retain(|launch| launch.block < 2);
    record.samples.retain(|sample| record.launches.iter().any(|it| it.launch == sample.launch));
    let few = explained(&record, "beacon decode");
    assert!(few.contains("There is no verdict: 2 blocks with both sides, and a verdict needs 5."), "{few}");
    assert!(few.contains("hint: measure again with `--blocks 5`"), "{few}");
}

#[test]
fn the_number_of_rounds_is_that_of_the_measured_requests() {
    let mut record = verified(&[ORIGINAL, BEACON]);
    let first: Vec<u32> = record.launches.iter().filter(|it| it.block == 0).map(|it| it.launch).collect();
    assert!(explained(&record, "decode").contains("It has 5 blocks of 3 rounds, because "));
    record.samples.retain(|it| !first.contains(&it.launch) || it.index == 0);
    record.closed.iter_mut().for_each(|it| it.by = stats::StoppedBy::Time);
    let fewer = explained(&record, "decode");
    let expected = "It ended after 5 blocks of 1 to 3 rounds, because the time budget was used up. It was too short for the planned \
                    3 rounds in every block.";
    assert!(fewer.contains(expected), "{fewer}");
    let full = crate::report::tests::rendered(&record, "table", 100);
    assert!(full.contains("rounds: 3, fewer because of the budget"), "{full}");
}

#[test]
fn a_fixed_number_of_blocks_has_the_setting_that_fixed_it() {
    let mut record = verified(&[ORIGINAL, BEACON]);
    record.closed.iter_mut().for_each(|it| it.by = stats::StoppedBy::Fixed);
    record.header.plan.extent.blocks = Some(5);
    for (option, expected) in [
        ("--blocks=5", "because `--blocks` set this number."),
        ("--quick", "because `--quick` set this number."),
        ("x.toml", "because the run file or the command set this number."),
    ] {
        record.header.command = ["orchestrate", option].map(String::from).to_vec();
        let text = explained(&record, "decode");
        assert!(text.contains(&format!("It has 5 blocks of 3 rounds, {expected}")), "{text}");
    }
    record.header.plan.extent.blocks = None;
    assert!(explained(&record, "decode").contains("with `--order sequential` this number is fixed."));
}

#[test]
fn an_explanation_has_one_remedy_of_more_blocks() {
    let mut record = verified(&[ORIGINAL, BEACON, InventedEngine { dtype: "f32", ..REED }]);
    record.launches.retain(|launch| launch.block < 2);
    record.samples.retain(|sample| record.launches.iter().any(|it| it.launch == sample.launch));
    let text = explained(&record, "decode");
    assert_eq!(text.matches("There is no verdict: 2 blocks").count(), 3, "{text}");
    assert_eq!(text.matches("hint: measure again with ").count(), 1, "{text}");
    assert!(text.contains("next step") && text.contains("hint: measure again with `--blocks 5`"), "{text}");
    let budget = |text: &str| More::Budget(text.into());
    let all = [More::Blocks(200), budget("5m"), budget("90s"), budget("7m"), More::Blocks(6)];
    assert_eq!(More::largest(all.into_iter()), Some(budget("7m")));
    assert_eq!(More::largest([More::Blocks(13), More::Blocks(6)].into_iter()), Some(More::Blocks(13)));
}

#[test]
fn an_output_with_exact_log_probabilities_and_other_tokens_says_why_it_only_agrees() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("results/curated/embedded.jsonl");
    let record = crate::record::read(&file).unwrap();
    let report = Report::of(&record);
    let mut reasons = Vec::new();
    for output in &report.outputs {
        let [brief, full] = [Detail::Brief, Detail::Full].map(|detail| {
            let explanation = explain(&record, std::slice::from_ref(&output.engine), detail).unwrap();
            let sentences = explanation.parts.into_iter().flat_map(|part| part.sentences);
            sentences.filter(|it| it.starts_with("It is not `exact`")).collect::<Vec<_>>()
        });
        assert_eq!(brief, full);
        assert_eq!(brief.len(), usize::from(output.agreement.cell() == "agrees"), "{}", output.engine);
        reasons.extend(brief);
    }
    reasons.sort();
    let expected = [
        "It is not `exact`, because 1 of 85 generated texts has other tokens.",
        "It is not `exact`, because 2 of 85 generated texts have other tokens.",
    ];
    assert_eq!(reasons, expected);
}

#[test]
fn the_status_of_an_output_has_its_deviation_its_bounds_and_the_next_step() {
    let mut record = checks::measured(&["patient-original", "beacon", "reed"], &[ORIGINAL, BEACON, REED]);
    checks::set_dtypes(&mut record, checks::VERIFIER, "f32", "f32");
    checks::add_held_out(&mut record);
    for (configuration, deviation) in [(checks::VERIFIER, 0.0), (checks::ENGINE, 2.3)] {
        checks::set_scores(&mut record, configuration, |_| Some(deviation));
        checks::set_continued(&mut record, configuration, vec![checks::VERIFIER_ID; 32]);
    }
    for launch in checks::launches(&mut record, 2) {
        launch.hello.as_mut().unwrap().capabilities.score = false;
    }
    for sample in checks::samples(&mut record, 2) {
        sample.iteration.sequences.iter_mut().for_each(|it| it.output_ids = None);
    }
    let wrong = explained(&record, "beacon");
    assert!(wrong.contains("Wrong: the output is not that of this model: it differs"), "{wrong}");
    assert!(wrong.contains("Over 1,151 held-out tokens, its log-probabilities differ from those of `patient-original` by 2.3 nats"), "{wrong}");
    assert!(wrong.contains("up to 0.020 `agrees`. A larger one is `wrong` for an engine in f32."), "{wrong}");
    assert!(wrong.contains("hint: `orchestrate check beacon`"), "{wrong}");
    assert!(!wrong.contains("Reference, "), "a wrong engine is not compared: {wrong}");
    let unverified = explained(&record, "reed");
    assert!(unverified.contains("Next step: the engine's author can implement `score`."), "{unverified}");
    assert!(unverified.contains("It has no rank: its output is unverified, so its speed"), "{unverified}");
    let verifier = explained(&record, "patient-original");
    assert!(verifier.contains("It is the verifier: it answers in f32"), "{verifier}");
}

#[test]
fn an_engine_without_rows_has_its_failure_and_its_hint() {
    let mut record = measured(&selection(&["patient-original", "beacon", "coal"]), &[ORIGINAL, BEACON]);
    add_unavailable(&mut record, 2, "not set up", "orchestrate setup coal");
    let text = explained(&record, "coal");
    assert!(text.contains("It was not measured: unavailable: not set up."), "{text}");
    assert!(text.contains("The engine cannot run on this machine as it is now."), "{text}");
    assert!(text.contains("hint: `orchestrate setup coal`"), "{text}");
    assert!(explained(&record, "decode coal").contains("hint: `orchestrate setup coal`"));
    let case = record.header.plan.cases_of(1)[0];
    record.failures.push(failure(1, Some(case), "exited", "sample 3", "killed by signal 9"));
    let text = explained(&record, "beacon load");
    assert!(text.contains("It failed: exited at sample 3: killed by signal 9."), "{text}");
}

/// A command or an option that a user can paste.
fn is_pasteable(hint: &str) -> bool {
    let option =
        hint.strip_prefix("measure again with `").and_then(|it| it.strip_suffix('`')).unwrap_or(hint);
    option.starts_with("--") || option.starts_with("orchestrate ")
}

#[test]
fn every_kind_of_failure_ends_with_a_step_that_can_be_pasted() {
    for kind in FailureKind::ALL.iter().filter(|it| **it != FailureKind::Refused) {
        for of_case in [true, false] {
            let mut record = verified(&[ORIGINAL, BEACON]);
            let case = record.header.plan.cases_of(1)[0];
            record.samples.retain(|sample| sample.case != case);
            let of_case = of_case.then_some(case);
            record.failures.push(failure(1, of_case, kind.as_str(), "load", "no reason at all"));
            for (words, detail) in
                [("beacon", Detail::Brief), ("beacon", Detail::Full), ("decode", Detail::Full)]
            {
                let explanation = explain(&record, &[words.into()], detail).unwrap();
                let hints: Vec<&String> = explanation.parts.iter().flat_map(|part| &part.hints).collect();
                assert!(hints.iter().any(|it| is_pasteable(it)), "{kind}, {words}: {explanation:?}");
            }
            let text = explained(&record, "beacon decode");
            assert!(text.contains(kind.about()), "{kind}: {text}");
        }
    }
}

#[test]
fn the_recorded_hint_of_a_failure_is_the_only_step() {
    let mut record = verified(&[ORIGINAL, BEACON]);
    let hint = Some("--max-request-time 300s".to_string());
    record.failures.push(Failure { hint, ..failure(1, None, "too_slow", "sample 1", "61 s") });
    for part in
        explanation(&record, "beacon").parts.iter().filter(|part| part.title.ends_with("not measured"))
    {
        assert_eq!(part.hints, ["--max-request-time 300s"]);
        assert!(!part.sentences.iter().any(|it| it.starts_with("This command")), "{part:?}");
    }
}

#[test]
fn an_engine_without_the_device_of_the_run_has_the_command_for_a_machine_with_its_device() {
    let mut record = measured(&selection(&["patient-original", "beacon", "coal"]), &[ORIGINAL, BEACON]);
    let unsupported = |message: &str| failure(2, None, "unsupported", "start", message);
    record.failures.push(unsupported("no device `cpu`; it has `cuda`, `metal`"));
    let text = explained(&record, "coal");
    assert!(text.contains("On a machine with `cuda`, this command measures it."), "{text}");
    assert!(text.contains("To leave it out here, name only the other engines with `-e`."), "{text}");
    assert!(text.contains("hint: `orchestrate -e coal --device cuda`"), "{text}");
    *record.failures.last_mut().unwrap() = unsupported("no dtype `f16`; it has `f32`");
    assert!(explained(&record, "coal").contains("hint: `orchestrate -e coal --dtype f32`"));
    *record.failures.last_mut().unwrap() = unsupported("no load option `a`; it has `b`");
    assert!(explained(&record, "coal").contains("hint: `orchestrate engines`"));
}

#[test]
fn a_contradicted_claim_has_both_values() {
    let record = verified(&[ORIGINAL, BEACON]);
    let mut report = Report::of(&record);
    report.rows[1].contradicted = true;
    report.contradictions = vec![Contradiction {
        configuration: 1,
        label: "beacon".into(),
        about: crate::analysis::claims::About::Threads,
        reported: "1 thread".into(),
        observed: "1.9 cores".into(),
        message: "beacon: reports 1 thread, but kept 1.9 cores busy".into(),
        excludes_from_ranking: true,
    }];
    let context =
        Context { record: &record, data: RunData::of(&record), rankings: rankings(&report), report: &report };
    let subject = subject::find(&context.data, "beacon").unwrap();
    let text = words(&crate::report::shown(&context.explanation(&subject, Detail::Full), "table", Some(100)));
    assert!(
        text.contains("Its claim about the threads is contradicted: reported 1 thread, observed 1.9 cores."),
        "{text}"
    );
    assert!(text.contains("It has no rank: its claim about the threads is contradicted (reported 1 thread, observed 1.9 cores)."), "{text}");
}

#[test]
fn names_are_found_as_tables_show_them() {
    let record = measured(&selection(&["patient-original", "beacon", "reed"]), &[ORIGINAL, BEACON, REED]);
    let about = |name: &str| explanation(&record, name).about;
    assert_eq!(about("beacon"), "`beacon`");
    assert_eq!(about("BEACON (f32)"), "`beacon`");
    assert_eq!(about("`reed (q8_0/f32)`"), "`reed`");
    assert_eq!(about("ttft 512"), "`ttft 512`");
    assert!(about("ttft").starts_with("`ttft "), "all cases of a scenario");
    assert_eq!(about("beacon decode"), "`beacon` in `decode`");
    assert_eq!(about("ttft 512 reed"), "`reed` in `ttft 512`");
}

#[test]
fn an_unknown_name_gives_the_names_of_the_record_and_the_nearest() {
    let record = measured(&selection(&["patient-original", "beacon"]), &[ORIGINAL, BEACON]);
    let message = error(&record, "becon");
    assert!(message.starts_with("no engine or case `becon` in the record 2026-01-02"), "{message}");
    assert!(message.contains("its engines: `patient-original`, `beacon`; its cases: `load`, "), "{message}");
    assert!(message.ends_with("\nhint: orchestrate explain beacon"), "{message}");
    assert!(error(&record, "decod").ends_with("hint: orchestrate explain decode"));
    for garbage in ["", " ", "`", "a b c d e f g h", "\u{1b}[31m\n", "模型", &"x".repeat(5000)] {
        assert!(error(&record, garbage).contains("no engine or case"), "{garbage:?}");
    }
}

#[test]
fn an_empty_or_interrupted_record_has_explanations() {
    let empty = crate::record::specimen::planned(&selection(&["patient-original", "beacon"]));
    for name in ["", "beacon", "decode", "beacon decode"] {
        assert!(!explanation(&empty, name).parts.is_empty(), "{name}");
    }
    let mut interrupted = decoding(&[ORIGINAL, BEACON]);
    interrupted.closed.clear();
    interrupted.end = Some(crate::record::End::Interrupted);
    let text = explained(&interrupted, "decode");
    assert!(text.contains("The run ended before this case was complete"), "{text}");
}

#[test]
fn only_terms_that_occur_in_the_record_are_explained() {
    let text = explained(&verified(&[ORIGINAL, BEACON]), "");
    assert!(text.contains("vs ref: the speed-up over the reference `patient-original`"), "{text}");
    assert!(!text.contains("unverified:"), "{text}");
    assert!(!text.contains("unavailable:"), "{text}");
    let record = measured(&selection(&["patient-original", "beacon"]), &[ORIGINAL, BEACON]);
    let text = explained(&record, "");
    assert!(text.contains("unverified: the outputs of this record were not checked."), "{text}");
    assert!(!text.contains("vs ref: "), "{text}");
}

#[test]
fn an_engine_is_explained_on_one_screen_with_the_verdicts_first() {
    for (file, record) in stored_records() {
        let data = RunData::of(&record);
        for label in data.engines.iter().map(|engine| engine.label.clone()) {
            let explained = explain(&record, std::slice::from_ref(&label), Detail::Brief).unwrap();
            for width in [80, 100] {
                let text = crate::report::shown(&explained, "table", Some(width));
                assert!(text.lines().count() <= 40, "{file}: {label}\n{text}");
            }
        }
    }
    let record = verified(&[ORIGINAL, BEACON, InventedEngine { dtype: "f32", ..REED }]);
    let explained = explain(&record, &["beacon".into()], Detail::Brief).unwrap();
    let text = words(&crate::report::shown(&explained, "table", Some(100)));
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part}\n{text}"));
    let verdict = at("`decode`: ");
    assert!(
        at("rank 2 of 3; 11.") > verdict
            && at("x as fast as the reference `patient-original` (46.3 tok/s) [") > verdict
    );
    assert!(at("x slower than the best, `reed` (850 tok/s) [") > verdict, "{text}");
    assert!(at("output: ") > verdict && at("`beacon`: what ran") > at("output: "), "{text}");
    assert!(!text.contains(" nats (root mean square)"), "{text}");
    assert!(text.contains("more: `orchestrate explain beacon --full`"), "{text}");
}

#[test]
fn the_report_and_explain_propose_the_budget_of_the_last_entry() {
    let mut record = decoding(&[ORIGINAL, BEACON]);
    let message = "no time: --budget 3s ended before this case was measured".to_string();
    let (kind, hint) = (FailureKind::NoTime, Some("--iterations 2".into()));
    let failure = Failure { configuration: 1, case: Some(1), kind, message, hint, ..Failure::default() };
    record.take(Entry::Failure(failure));
    record.take(Entry::Warning(Warning { configuration: Some(0), message: FEWER_BLOCKS.into() }));
    record.take(Entry::End(RunEnd { needs_budget: Some("20s".into()), ..End::Finished.into() }));
    let report = Report::of(&record);
    let failure = report.rows.iter().find_map(|row| row.failure.as_ref()).unwrap();
    assert_eq!(failure.hint.as_deref(), Some("--budget 20s\n--iterations 2"));
    assert!(failure.message.contains("--budget 3s"), "the budget of the run stays");
    assert_eq!(report.sufficient_budget.as_deref(), Some("20s"));
    let warning = format!("patient-original: {FEWER_BLOCKS}; hint: `--budget 20s`");
    assert!(report.warnings.contains(&warning), "{:?}", report.warnings);
    let explained = explain(&record, &["beacon".into(), "decode".into()], Detail::Full).unwrap();
    assert!(explained.parts.iter().any(|part| part.hints.contains(&"--budget 20s".to_string())));
}
