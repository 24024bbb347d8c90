use super::super::Report;
use super::super::tests::{assert_fits, decoding, rendered};
use super::*;
use crate::plan::{MetricId, Order};
use crate::record::specimen::*;
use crate::record::{CalibratedFloor, Entry, Header, RequestKind, WarmUpEnd};

/// Multiplies the times of a configuration's measured requests by a factor that depends on the block and the request's index.
fn slowed(mut record: RunRecord, configuration: usize, factor: impl Fn(u32, u32) -> f64) -> RunRecord {
    for sample in record.samples.iter_mut().filter(|sample| sample.kind == RequestKind::Measured) {
        let launch = &record.launches[sample.launch as usize];
        if launch.configuration != configuration {
            continue;
        }
        let longer = |ns: &mut u64| *ns = (*ns as f64 * factor(launch.block, sample.index)) as u64;
        for sequence in &mut sample.iteration.sequences {
            sequence.token_ns.as_mut().unwrap().iter_mut().for_each(longer);
        }
        longer(&mut sample.iteration.end_ns);
        sample.answered_ns = sample.sent_ns + sample.iteration.end_ns;
    }
    record
}

/// A quiet run of three engines and a twin.
fn quiet_run() -> RunRecord {
    measured(&decoding(&["patient-original", "beacon", "reed"]), &[ORIGINAL, BEACON, REED])
}

/// Returns the only note of a record, and checks that the report fits a narrow terminal.
fn only_note(record: &RunRecord) -> String {
    let text = rendered(record, "table", 80);
    assert_fits(&text, 80);
    let notes = Report::of(record).notes;
    assert_eq!(notes.len(), 1, "{notes:?}");
    notes.into_iter().next().unwrap()
}

#[test]
fn launches_that_differ_widely_are_a_note() {
    let note = only_note(&slowed(quiet_run(), 1, |block, _| [1.0, 3.0, 1.0, 2.9, 1.1][block as usize]));
    assert!(note.starts_with("`beacon` `decode`: its launches differ by a factor of 3."), "{note}");
    assert!(note.ends_with("`--blocks 8`"), "{note}");
    assert!(Report::of(&quiet_run()).notes.is_empty());
}

#[test]
fn a_hint_for_more_blocks_exceeds_the_blocks_of_the_run() {
    for (blocks, more) in [(5, 8), (8, 12), (12, 20), (20, 40), (21, 42)] {
        let mut selection = decoding(&["patient-original", "beacon"]);
        selection.extent.blocks = Some(blocks);
        let record = measured(&selection, &[ORIGINAL, BEACON]);
        let wide = slowed(record, 1, |block, _| if block % 2 == 0 { 3.0 } else { 1.0 });
        let notes = Report::of(&wide).notes;
        let hints: Vec<_> = notes.iter().filter(|note| note.contains("more blocks")).collect();
        assert!(!hints.is_empty(), "{blocks}: {notes:?}");
        assert!(hints.iter().all(|note| note.contains(&format!("`--blocks {more}`"))), "{notes:?}");
    }
}

#[test]
fn a_drifting_row_gives_a_note_with_a_remedy() {
    let drifting = slowed(quiet_run(), 1, |block, _| 1.0 + f64::from(block) / 5.0);
    let note = only_note(&drifting);
    assert!(note.starts_with("`beacon` `decode`: becomes slower from block to block, by "), "{note}");
    assert!(note.contains("ratios remain valid") && note.ends_with("or measure again later"), "{note}");
    let faster = only_note(&slowed(quiet_run(), 1, |block, _| 2.0 / (1.0 + f64::from(block) / 5.0)));
    assert!(faster.starts_with("`beacon` `decode`: becomes faster from block to block"), "{faster}");
}

#[test]
fn drift_of_all_rows_gives_one_note() {
    let mut record = quiet_run();
    for configuration in 0..record.header.plan.configurations.len() {
        record = slowed(record, configuration, |block, _| 1.0 + f64::from(block) / 5.0);
    }
    let note = only_note(&record);
    assert!(note.starts_with("3 of 3 rows become slower from block to block, by up to "), "{note}");
    let ratio = |record| Report::of(record).verdicts.against_reference[0].ratio().unwrap();
    assert!((ratio(&record) / ratio(&quiet_run()) - 1.0).abs() < 1e-3);
    record.header.plan.order = Order::Sequential;
    assert!(
        only_note(&record)
            .contains("neither values nor ratios are reliable; hint: leave out `--order sequential`")
    );
}

#[test]
fn levels_that_go_up_and_down_or_hardly_rise_are_no_drift() {
    for levels in [[1.0, 1.3, 1.0, 1.3, 1.0], [1.3, 1.0, 1.1, 1.2, 1.4], [1.0, 1.01, 1.02, 1.03, 1.04]] {
        let record = slowed(quiet_run(), 1, |block, _| levels[block as usize]);
        assert!(Report::of(&record).notes.is_empty(), "{levels:?} {:?}", Report::of(&record).notes);
    }
}

#[test]
fn a_slow_first_request_is_a_note_with_a_longer_warm_up() {
    let note = only_note(&slowed(quiet_run(), 2, |_, index| if index == 0 { 3.0 } else { 1.0 }));
    let expected = "`reed` `decode`: its first measured request takes ";
    assert!(note.starts_with(expected) && note.ends_with("`--warmup 12`"), "{note}");
    // A slow last request, or one in a single launch, gives no note.
    let slow_last = slowed(quiet_run(), 2, |_, index| if index == 2 { 3.0 } else { 1.0 });
    let in_one_launch =
        slowed(quiet_run(), 2, |block, index| if block == 3 && index == 0 { 3.0 } else { 1.0 });
    for record in [slow_last, in_one_launch] {
        let notes = Report::of(&record).notes;
        assert!(notes.iter().all(|note| !note.contains("first measured request")), "{notes:?}");
    }
}

#[test]
fn a_warm_up_that_ran_out_of_time_is_a_note() {
    let mut record = quiet_run();
    // A block has four launches, so launches 0 to 7 are the first two blocks.
    for warm_up in record.warm_ups.iter_mut().filter(|warm_up| warm_up.case == 1 && warm_up.launch < 8) {
        warm_up.ended_by = WarmUpEnd::Time;
    }
    let expected = "`beacon` `decode`: not steady at the end of its warm-up time, in 2 of 5 launches; hint: `--warmup 12`";
    assert_eq!(only_note(&record), expected);
}

#[test]
fn values_far_from_the_others_are_a_note_with_their_share() {
    let note =
        only_note(&slowed(quiet_run(), 1, |block, index| if index == 1 && block < 3 { 1.6 } else { 1.0 }));
    assert!(
        note.starts_with("`beacon` `decode`: 3 of 15 values (20.0 %) are outliers within their launch"),
        "{note}"
    );
    assert!(note.contains("all are included") && note.ends_with("`--blocks 8`"), "{note}");
}

#[test]
fn a_twin_that_failed_is_a_note_and_no_row() {
    let mut record = quiet_run();
    // Configuration 3 is the twin; case 3 is its only case.
    record.samples.retain(|sample| sample.case != 3);
    record.take(Entry::Failure(failure(3, Some(3), "exited", "sample 1", "killed by signal 9")));
    let expected = "`patient-original (twin)` failed (killed by signal 9): the noise of this run is unknown";
    assert_eq!(only_note(&record), expected);
    let text = rendered(&record, "table", 80);
    assert!(!text.contains("noise,") && text.matches("(twin)").count() == 1, "{text}");
}

#[test]
fn a_converted_model_is_a_note() {
    let mut record = measured(&decoding(&["patient-original", "beacon"]), &[ORIGINAL, BEACON]);
    for launch in record.launches.iter_mut().filter(|launch| launch.configuration == 1) {
        let (format, dtype) = ("gguf".into(), "bf16".into());
        launch.converted = Some(crate::record::Converted { format, dtype, path: "/c".into() });
    }
    let report = Report::of(&record);
    let expected =
        "`beacon` does not read the model's format: it ran the same weights converted to gguf in bf16";
    assert_eq!(report.notes.iter().filter(|note| note.as_str() == expected).count(), 1, "{:?}", report.notes);
}

#[test]
fn every_note_of_a_kind_is_shown() {
    let mut record = measured(&selection(&["beacon"]), &[BEACON]);
    for sample in &mut record.samples {
        sample.iteration.sequences[0].prompt_tokens += 1;
    }
    let notes = Report::of(&record).notes;
    assert_eq!(notes.len(), 6, "{notes:?}");
    assert!(notes.iter().all(|note| note.contains("were planned")), "{notes:?}");
}

#[test]
fn prompts_of_another_length_than_planned_are_a_note() {
    let mut record = measured(&decoding(&["patient-original", "beacon"]), &[ORIGINAL, BEACON]);
    let measured = |sample: &&mut Sample| sample.case == 1 && sample.kind == RequestKind::Measured;
    let of_beacon = record.samples.iter_mut().filter(measured);
    for (number, sample) in of_beacon.enumerate() {
        sample.iteration.sequences[0].prompt_tokens = 90 + number as u32 % 7;
    }
    let note = |why: &str| {
        let expected = "its prompts have 90..96 tokens, 32 were planned";
        format!("`beacon` `decode`: {expected}{why}: its rates use its own token counts")
    };
    assert_eq!(Report::of(&record).notes, [note(" (the engine takes text, not ids)")]);
    for launch in &mut record.launches {
        launch.hello.as_mut().unwrap().capabilities.prompt_ids = true;
    }
    assert_eq!(Report::of(&record).notes, [note("")]);
}

#[test]
fn engines_that_count_different_tokens_of_one_text_give_a_note() {
    let mut record = measured(&decoding(&["patient-original", "beacon"]), &[ORIGINAL, BEACON]);
    for case in &mut record.header.plan.cases {
        case.workload.prompt = Prompt::Text("Once upon a time".into());
    }
    assert!(Report::of(&record).notes.is_empty());
    record.samples.iter_mut().filter(|sample| sample.case == 1).for_each(|sample| {
        sample.iteration.sequences[0].prompt_tokens = 5;
    });
    let notes = Report::of(&record).notes;
    let expected = "`beacon` `decode`: its prompts have 5 tokens, those of `patient-original` have 32";
    assert!(notes.len() == 1 && notes[0].starts_with(expected), "{notes:?}");
}

#[test]
fn an_unreported_requested_setting_gives_a_note() {
    let mut selection = decoding(&["patient-original", "beacon"]);
    (selection.devices, selection.dtypes) = (vec!["cuda".into()], vec![Some("bf16".into())]);
    let mut record = measured(&selection, &[ORIGINAL, BEACON]);
    assert!(Report::of(&record).notes.is_empty());
    for launch in record.launches.iter_mut().filter(|launch| launch.configuration == 1) {
        launch.loaded = None;
    }
    let notes = [
        "`beacon`: device cuda was requested, but it does not report its device",
        "`beacon`: dtype bf16 was requested, but it does not report its dtype",
    ];
    assert_eq!(Report::of(&record).notes, notes);
    record.header.plan.configurations[1].device = "cpu".into();
    record.header.plan.configurations[1].dtype = None;
    assert!(Report::of(&record).notes.is_empty());
}

#[test]
fn an_unknown_metric_is_a_note_and_the_known_metrics_are_shown() {
    let mut record = measured(&selection(&["patient-original", "beacon"]), &[ORIGINAL, BEACON]);
    let before = Report::of(&record);
    let (later_headline, later_floor) =
        (MetricId::named("later_rate"), MetricId::named("later\u{1b}[31m_bytes"));
    let headline = record.header.plan.cases.iter_mut().filter(|it| it.workload.scenario == "decode");
    headline.for_each(|case| case.workload.headline = later_headline);
    record.header.noise_floors.push(CalibratedFloor {
        configuration: 0,
        workload: "decode".into(),
        metric: later_floor,
        paired: stats::NoiseFloor::of(&[0.1; 20]).unwrap(),
        between: None,
        since: "2026-01-02T03:04:05Z".into(),
    });
    for number in 0..6 {
        let metric = MetricId::named(&format!("x{number}{}", "y".repeat(1000)));
        let known = record.header.noise_floors[0].clone();
        record.header.noise_floors.push(CalibratedFloor { metric, ..known });
    }
    let read = serde_json::from_str::<Header>(&serde_json::to_string(&record.header).unwrap()).unwrap();
    assert_eq!(read, record.header);
    let report = Report::of(&record);
    let found: Vec<&String> = report.notes.iter().filter(|it| it.contains("does not know")).collect();
    assert_eq!(found.len(), 1, "{:?}", report.notes);
    assert!(found[0].contains("`later_rate`") && !found[0].contains('\u{1b}'), "{found:?}");
    assert!(found[0].contains("and 4 more") && found[0].len() < 500, "{found:?}");
    assert_eq!(report.rows.len(), before.rows.len());
    assert!(before.notes.iter().all(|it| !it.contains("does not know")));
}

#[test]
fn a_slow_row_of_an_unusual_prompt_is_a_note_with_the_likely_reason() {
    let scenarios = crate::plan::scenario::named("edge").unwrap();
    let mut selection = crate::plan::Selection { scenarios, ..selection(&["patient-original"]) };
    selection.models[0].context_tokens = Some(2048);
    let words = ["short", "lines", "repeated", "unicode", "long"];
    selection.axes.prompts = words.iter().map(|word| word.parse().unwrap()).collect();
    let notes = Report::of(&measured(&selection, &[ORIGINAL])).notes;
    let slow: Vec<_> = notes.iter().filter(|note| note.contains("likely reason")).collect();
    let [note] = &slow[..] else { panic!("{notes:?}") };
    assert!(note.starts_with("`patient-original` `edge long`: a request takes "), "{note}");
    assert!(note.contains("likely reason: a long prefill: 2,032 prompt tokens, "), "{note}");
}

#[test]
fn a_row_that_is_slow_by_its_length_or_its_output_is_no_slow_row_of_an_unusual_prompt() {
    for (scenario, texts) in
        [("prefill", "code"), ("throughput", "random"), ("throughput", "natural,random,code")]
    {
        let scenarios = crate::plan::scenario::named(scenario).unwrap();
        let mut selection = crate::plan::Selection { scenarios, ..selection(&["patient-original"]) };
        selection.axes.prompts = texts.split(',').map(|word| word.parse().unwrap()).collect();
        let notes = Report::of(&measured(&selection, &[ORIGINAL])).notes;
        assert!(!notes.iter().any(|note| note.contains("likely reason")), "{scenario} {texts}: {notes:?}");
    }
}
