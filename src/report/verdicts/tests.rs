use super::super::tests::{assert_fits, decoding, json, rendered, rendered_with, verified_report};
use super::*;
use crate::engines::manifest::PresetComparison;
use crate::plan::{Extent, Order, Selection};
use crate::record::specimen::*;
use crate::record::{CalibratedFloor, Closed, Entry, RunRecord};
use crate::report::verdict_lines::why_no_verdicts;
use crate::report::{Report, TableId, View};
use stats::StoppedBy;

/// An engine as fast as the reference.
const EQUAL: InventedEngine = InventedEngine { name: "equal", ..ORIGINAL };
/// An engine as fast as the reference in the median, with much noise.
const NOISY: InventedEngine = InventedEngine { name: "noisy", own_noise: 0.08, ..ORIGINAL };

fn measured_engines(selection: &Selection) -> RunRecord {
    measured(selection, &[ORIGINAL, BEACON, EQUAL, NOISY])
}

const ALL_ENGINES: [&str; 4] = ["patient-original", "beacon", "equal", "noisy"];

/// The last word of each row of the table.
fn ratio_cells(text: &str) -> Vec<&str> {
    let rows =
        text.lines().skip_while(|line| !line.starts_with('─')).skip(1).take_while(|line| !line.is_empty());
    rows.filter_map(|line| line.split_whitespace().last()).collect()
}

#[test]
fn the_ratio_column_marks_uncertain_ratios_and_the_legend_explains_the_marks() {
    let record = measured_engines(&decoding(&ALL_ENGINES));
    let text = rendered(&record, "table", 200);
    let cells = ratio_cells(&text);
    assert_eq!((cells[0], cells[1], cells[2]), ("ref", "11.0x", "same"), "{text}");
    assert!(cells[3].ends_with('?'), "{text}");
    assert!(text.contains("\nsame: the whole interval is within 2 % of 1\n"), "{text}");
    assert!(
        text.contains("\n? after a ratio: neither faster, slower nor the same: inconclusive, or no verdict"),
        "{text}"
    );
    let text = rendered(&record, "table", 80);
    assert_fits(&text, 80);
}

#[test]
fn few_verdicts_are_sentences() {
    let text = rendered(&measured_engines(&decoding(&ALL_ENGINES)), "table", 120);
    assert!(
        text.contains("\nverdicts, 95 % intervals over 5 blocks:\n- `beacon` decodes 11.0x as fast as"),
        "{text}"
    );
    assert!(text.contains("- `equal` decodes as fast as `patient-original`, within 2 % ("), "{text}");
    assert!(text.contains("- `noisy`, decode: inconclusive against `patient-original` ("), "{text}");
}

#[test]
fn many_verdicts_are_listed_by_engine_and_no_interval_is_broken() {
    let record = measured_engines(&selection(&ALL_ENGINES));
    let text = rendered(&record, "table", 80);
    let verdicts: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("verdicts against")).collect();
    let heading = "verdicts against `patient-original`, speed-ups with 95 % intervals over 5";
    assert_eq!(verdicts[..2], [heading, "  blocks:"], "{text}");
    assert_eq!(verdicts.iter().filter(|line| line.starts_with("- `")).count(), 3, "{text}");
    for line in verdicts.iter().skip(2).take_while(|line| !line.starts_with("geometric")) {
        assert_eq!(line.matches('[').count(), line.matches(']').count(), "{line}");
    }
    assert!(!text.contains('\u{a0}') && !rendered(&record, "markdown", 80).contains('\u{a0}'));
}

#[test]
fn ten_engines_and_every_pair_of_them_stay_within_the_width() {
    let names: Vec<String> = (0..10).map(|number| format!("engine-number-{number}")).collect();
    let engines: Vec<InventedEngine> = names
        .iter()
        .enumerate()
        .map(|(index, name)| InventedEngine {
            name: Box::leak(name.clone().into_boxed_str()),
            token_ms: 2.0 + 0.3 * index as f64,
            ..ORIGINAL
        })
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let record = measured(&Selection { reference: names[0].into(), ..selection(&names) }, &engines);
    let verdict_count = |pairs| {
        let text = rendered_with(
            &record,
            "table",
            Some(80),
            View { pairs, tables: vec![TableId::WallTime, TableId::Resources], ..View::default() },
        );
        assert_fits(&text, 80);
        text.lines().filter(|line| line.starts_with("- `")).count()
    };
    assert_eq!((verdict_count(false), verdict_count(true)), (9, 45));
}

#[test]
fn every_pair_names_both_engines() {
    let record = measured_engines(&decoding(&ALL_ENGINES));
    let text = rendered_with(&record, "table", Some(120), View { pairs: true, ..View::default() });
    assert!(text.contains("- `beacon` decodes 11.0x as fast as `equal` ["), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("- `")).count(), 6, "{text}");
    let correction = "with --pairs, verdicts are corrected for 6 comparisons, without it for 3";
    assert!(text.contains(correction), "{text}");
    let usual = rendered_with(&record, "table", Some(120), View::default());
    assert!(!usual.contains("corrected for"), "{usual}");
}

#[test]
fn a_run_without_verdicts_has_the_reason_and_a_hint() {
    let why = |change: &dyn Fn(&mut Selection)| {
        let mut selection = decoding(&["patient-original", "beacon"]);
        change(&mut selection);
        let text = rendered(&measured_engines(&selection), "table", 200);
        assert!(!text.contains("noise floor,") && text.contains("11.0x?"), "{text}");
        let line = text.lines().find(|line| line.starts_with("no verdicts: ")).unwrap_or(&text);
        line.to_string()
    };
    let blocks = |blocks| {
        move |selection: &mut Selection| {
            selection.extent = Extent { blocks: Some(blocks), ..selection.extent }
        }
    };
    assert_eq!(why(&blocks(1)), "no verdicts: 1 block, verdicts need 5; hint: `--blocks 5`");
    assert_eq!(why(&blocks(4)), "no verdicts: 4 blocks, verdicts need 5; hint: `--blocks 5`");
    assert!(
        why(&|selection| selection.order = Order::Sequential)
            .ends_with("; hint: leave out `--order sequential`")
    );
}

#[test]
fn a_failed_engine_is_the_reason_for_no_verdicts() {
    let mut record = measured_engines(&decoding(&["patient-original", "beacon"]));
    let is_kept = |launch: &crate::record::Launch| launch.configuration != 1 || launch.block < 2;
    record.launches.retain(is_kept);
    record.samples.retain(|sample| record.launches.iter().any(|launch| launch.launch == sample.launch));
    record.take(Entry::Failure(failure(1, Some(1), "exited", "sample 1", "killed by signal 9")));
    let why = why_no_verdicts(&verified_report(&record));
    let expected = "no verdicts: `beacon` failed; verdicts need 5 blocks without a failure";
    assert_eq!(why.as_deref(), Some(expected));
}

#[test]
fn if_the_budget_ended_the_hint_names_a_larger_budget() {
    let why = |budget_s: u64, blocks: u32| {
        let mut selection = decoding(&["patient-original", "beacon"]);
        selection.extent.blocks = Some(blocks);
        let mut record = measured_engines(&selection);
        let extent = &mut record.header.plan.extent;
        (extent.blocks, extent.budget_ns) = (None, Some(budget_s * 1_000_000_000));
        record.closed.iter_mut().for_each(|closed| closed.by = StoppedBy::Time);
        why_no_verdicts(&verified_report(&record)).unwrap()
    };
    // 5 blocks would take 50 s here, and 300 s in the next case. The hint adds a quarter and rounds up.
    let expected =
        "no verdicts: --budget 20s is too short for the 5 blocks of a verdict (2 fit); hint: `--budget 70s`";
    assert_eq!(why(20, 2), expected);
    assert!(
        why(60, 1).ends_with(
            "--budget 1m is too short for the 5 blocks of a verdict (1 fits); hint: `--budget 7m`"
        ),
        "{}",
        why(60, 1)
    );
}

#[test]
fn a_budget_that_the_run_found_sufficient_is_named() {
    let mut record = measured_engines(&decoding(&["patient-original", "beacon"]));
    record.launches.retain(|launch| launch.block < 2);
    record.samples.retain(|sample| record.launches.iter().any(|launch| launch.launch == sample.launch));
    let extent = &mut record.header.plan.extent;
    (extent.blocks, extent.budget_ns) = (None, Some(180_000_000_000));
    for closed in &mut record.closed {
        (closed.by, closed.needs_budget) = (StoppedBy::Time, Some("5m".into()));
    }
    let why = |report: Report| why_no_verdicts(&report);
    // The run has five blocks, and two of them have the reference.
    let expected = "no verdicts: --budget 3m is too short for the 5 blocks of a verdict (2 with the reference); hint: `--budget 5m`";
    assert_eq!(why(verified_report(&record)).as_deref(), Some(expected));
    // While the run goes on, no budget has ended.
    record.closed.clear();
    let running = Report::so_far(&record);
    assert_eq!(running.notices, ["2 blocks so far"]);
    let running = Report { is_running: true, ..verified_report(&record) };
    assert_eq!(why(running).as_deref(), Some("no verdicts yet: 2 of 5 blocks"));
}

#[test]
fn verdicts_against_the_program_that_made_a_baseline_are_shown() {
    let selection = decoding(&["patient-original", "beacon"]);
    let mut record = measured_engines(&selection);
    // The twin becomes the program that made the baseline `main`.
    let twin = &mut record.header.plan.configurations[2];
    (twin.label, twin.role) = ("patient-original (main)".into(), Some(Role::Baseline { of: 0 }));
    let text = rendered(&record, "table", 200);
    let expected = "\n- `patient-original` decodes as fast as `patient-original (main)`, within 2 % (";
    assert!(text.contains(expected) && text.contains("\n- `beacon` decodes 11.0x as fast as"), "{text}");
    assert!(rendered(&record, "markdown", 200).contains("(main)"));
    let json = json(&record);
    let baseline_entries = json["against_baseline"].as_array().unwrap();
    let decode = baseline_entries.iter().find(|it| it["metric"] == "decode_rate").unwrap();
    assert_eq!(
        (decode["against"].as_str(), decode["verdict"].as_str()),
        (Some("patient-original (main)"), Some("same"))
    );
}

#[test]
fn a_workload_without_a_calibration_is_named_beside_its_engine() {
    let mut record = measured_engines(&selection(&["patient-original", "beacon"]));
    let plan = record.header.plan.clone();
    // Everything is calibrated except `beacon` in the scenario `ttft`.
    for case in plan.cases.iter().filter(|case| case.configuration < 2) {
        if case.configuration == 0 || case.workload.scenario != "ttft" {
            record.header.noise_floors.push(CalibratedFloor {
                configuration: case.configuration,
                workload: case.workload.label.clone(),
                metric: crate::analysis::metric::headline(&plan, &case.workload).unwrap().id,
                paired: NoiseFloor::of(&[0.01; 20]).unwrap(),
                between: None,
                since: "2026-01-01T00:00:00Z".into(),
            });
        }
    }
    let text = rendered(&record, "table", 300);
    let expected = "but not for `beacon` (ttft 16, ttft 128, ttft 512); 20 blocks measure it; hint:\n  `orchestrate calibrate -e beacon -s ttft --prompt-tokens 16,128,512 --threads 2`\n";
    assert!(text.contains(expected), "{text}");
}

/// The specimen's `prefill` has one prompt length, and that of `-s prefill` several. `--prompt-tokens` would change `decode` too.
#[test]
fn a_calibration_that_would_measure_other_requests_is_no_hint() {
    let engines = ["patient-original", "beacon"];
    assert!(Report::of(&measured_engines(&decoding(&engines))).verdicts.calibration.remedy.is_some());
    let record = measured_engines(&selection(&engines));
    assert_eq!(Report::of(&record).verdicts.calibration.remedy, None);
    let text = rendered(&record, "table", 300);
    assert!(text.contains("; not calibrated\n") && !text.contains("orchestrate calibrate"), "{text}");
}

#[test]
fn a_list_of_verdicts_says_why_an_interval_without_1_is_inconclusive() {
    let mut record = measured_engines(&selection(&["patient-original", "beacon", "equal"]));
    record.header.noise_floors.push(CalibratedFloor {
        configuration: 1,
        workload: "decode".into(),
        metric: crate::plan::MetricId::DECODE_RATE,
        paired: NoiseFloor::of(&[3.0; 20]).unwrap(),
        between: None,
        since: "2026-01-01T00:00:00Z".into(),
    });
    let text = rendered(&record, "table", 300);
    let why = "decode inconclusive [11x, 11x]: difference not beyond the noise of this machine (a factor of";
    let is_listed = |line: &str| line.starts_with("- `beacon`: ") && line.contains(why);
    assert!(text.lines().any(is_listed), "{text}");
}

#[test]
fn a_mean_with_a_ratio_that_is_inconclusive_is_marked() {
    let record = measured_engines(&selection(&ALL_ENGINES));
    let means = Report::of(&record).verdicts.means;
    let conclusive: Vec<_> = means.iter().map(|mean| (mean.engine.as_str(), mean.is_conclusive)).collect();
    assert_eq!(conclusive, [("beacon", true), ("equal", true), ("noisy", false)]);
    let text = rendered(&record, "table", 200);
    let means = text.lines().find(|line| line.starts_with("geometric mean")).unwrap();
    assert!(means.contains("`beacon` 10.0x, `equal` 1.00x,") && means.ends_with('?'), "{means}");
    assert!(text.contains("; in a mean: one of its ratios is inconclusive\n"), "{text}");
}

#[test]
fn a_failed_reference_gives_a_hint_with_another_one() {
    let failing = |cases: &[usize]| {
        let mut record = measured_engines(&selection(&["patient-original", "beacon", "equal"]));
        for case in cases {
            record.take(Entry::Failure(failure(0, Some(*case), "exited", "sample 1", "gone")));
        }
        rendered(&record, "table", 200)
    };
    // Case 5 is `decode` of the reference.
    let text = failing(&[5]);
    let expected =
        "\nn/a: the reference `patient-original` failed in this case; hint: `--reference beacon`\n";
    assert!(text.contains(expected), "{text}");
    let absent_ratios = |text: &str| text.lines().filter(|line| line.ends_with(" n/a")).count();
    assert_eq!((absent_ratios(&text), absent_ratios(&failing(&[]))), (2, 0), "{text}");
    assert!(!failing(&[]).contains("--reference"));
}

#[test]
fn a_run_that_was_cut_off_says_how_many_blocks_verdicts_need() {
    let mut record = measured_engines(&decoding(&["patient-original", "beacon"]));
    record.launches.retain(|launch| launch.block < 2);
    record.samples.retain(|sample| record.launches.iter().any(|launch| launch.launch == sample.launch));
    (record.closed, record.end) = (Vec::new(), None);
    let text = rendered(&record, "table", 100);
    assert!(
        text.contains("\nno verdicts: the run ended after 2 complete blocks; verdicts need 5\n"),
        "{text}"
    );
}

#[test]
fn one_line_shows_the_noise_floors_of_the_twin_and_of_the_calibration() {
    let mut record = measured_engines(&decoding(&ALL_ENGINES));
    let noise_line = |record: &RunRecord| {
        let text = rendered(record, "table", 300);
        text.lines().find(|line| line.starts_with("noise floor, ")).unwrap_or(&text).to_string()
    };
    let floor = Report::of(&record).verdicts.noise[0].floors[0].1.log_ratio();
    let noise = format!("decode {:.1} %", 100.0 * floor.exp_m1());
    let beginning =
        format!("noise floor, `patient-original` against its twin (a second copy of it): {noise}; ");
    let command =
        "`orchestrate calibrate -e patient-original,beacon,equal,noisy -s decode --depth 0 --threads 2`";
    assert_eq!(
        noise_line(&record),
        beginning.clone() + "not calibrated; 20 blocks measure it; hint: " + command
    );
    record.header.noise_floors.push(CalibratedFloor {
        configuration: 1,
        workload: "decode".into(),
        metric: crate::plan::MetricId::DECODE_RATE,
        paired: NoiseFloor::of(&[3.0; 20]).unwrap(),
        between: None,
        since: "2026-01-01T00:00:00Z".into(),
    });
    let others = "`patient-original`, `equal`, `noisy`";
    let command = "`orchestrate calibrate -e patient-original,equal,noisy -s decode --depth 0 --threads 2`";
    let since = "at 2026-01-01T00:00:00Z";
    assert_eq!(
        noise_line(&record),
        format!("{beginning}calibrated {since}, but not for {others}; 20 blocks measure it; hint: {command}")
    );
    let of_beacon = record.header.noise_floors.clone();
    let floor = |configuration| CalibratedFloor { configuration, ..of_beacon[0].clone() };
    record.header.noise_floors.extend([0, 2, 3].map(floor));
    assert_eq!(noise_line(&record), beginning + "calibrated " + since);
    record.header.noise_floors = of_beacon;
    // A quiet run does not lower the calibrated noise floor: the ratio of 11 is below e³ = 20.
    let verdicts = Report::of(&record).verdicts.against_reference;
    let headline = verdicts.iter().find(|pair| pair.is_headline).unwrap();
    assert_eq!(headline.certainty(), Some(Certainty::Inconclusive));
}

#[test]
fn the_mean_weighs_all_workloads_the_same_and_leaves_out_a_failed_engine() {
    let mut record = measured_engines(&selection(&["patient-original", "beacon", "equal"]));
    let mean = |record: &RunRecord, engine: &str| {
        let means = Report::of(record).verdicts.means;
        means.into_iter().find(|mean| mean.engine == engine).map(|mean| mean.ratio)
    };
    let ratios = [67.9, 8.67, 5.91, 5.21, 5.08, 11.0];
    let expected = ratios.iter().product::<f64>().powf(1.0 / 6.0);
    assert!((mean(&record, "beacon").unwrap() / expected - 1.0).abs() < 0.02);
    assert!((mean(&record, "equal").unwrap() - 1.0).abs() < 0.01);
    let text = rendered(&record, "table", 200);
    assert!(text.contains("\ngeometric mean over 6 workloads (each has the same weight"), "{text}");
    // Case 8 is `ttft 128` of `beacon`.
    record.take(Entry::Failure(failure(1, Some(8), "exited", "sample 1", "gone")));
    assert_eq!(mean(&record, "beacon"), None);
    assert!(Report::of(&measured_engines(&decoding(&ALL_ENGINES))).verdicts.means.is_empty());
}

#[test]
fn the_caption_has_the_reason_why_each_workload_ended() {
    let mut record = measured_engines(&selection(&["patient-original", "beacon"]));
    let caption = |record: &RunRecord| rendered(record, "table", 200).lines().nth(1).unwrap().to_string();
    assert!(caption(&record).starts_with("5 blocks, interleaved; rounds: 1 (load), 5 (ttft), 3 (prefill, "));
    assert!(caption(&record).ends_with("; warm after 3 to 6 requests"), "{}", caption(&record));
    for closed in &mut record.closed {
        closed.by = StoppedBy::Width;
    }
    assert!(caption(&record).starts_with("5 blocks (stopped by narrow intervals), interleaved"));
    let with = |record: &mut RunRecord, workload: &str, blocks, by| {
        record.closed.retain(|closed| closed.workload != workload);
        record.take(Entry::Closed(Closed { workload: workload.into(), blocks, by, needs_budget: None }));
    };
    with(&mut record, "decode", 8, StoppedBy::Time);
    with(&mut record, "ttft 128", 8, StoppedBy::Time);
    // The record has samples of only 5 blocks, so the rounds are called planned. The number of blocks is not.
    let expected = "8 blocks (5 for load, ttft 16, ttft 512, prefill; stopped by narrow intervals (load, ttft 16, ttft 512, \
                prefill), by the time budget (ttft 128, decode)), interleaved; planned rounds: ";
    assert!(caption(&record).starts_with(expected), "{}", caption(&record));
}

#[test]
fn a_pair_that_cannot_be_compared_gives_a_note_with_the_reason() {
    let mut record = measured_engines(&decoding(&["patient-original", "beacon"]));
    for sample in record.samples.iter_mut().filter(|sample| sample.case == 1) {
        // The reference does not have these rounds.
        sample.index += 100;
    }
    let report = Report::of(&record);
    assert!(
        report.notes[0].starts_with("`beacon` `decode`: no ratio to `patient-original`: "),
        "{:?}",
        report.notes
    );
    assert!(rendered(&record, "table", 100).contains("no ratios: "));
}

#[test]
fn csv_and_json_have_the_whole_comparison() {
    let record = measured_engines(&decoding(&ALL_ENGINES));
    let text = rendered(&record, "csv", 80);
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = lines.next().unwrap();
    let at = |name: &str| names.iter().position(|it| *it == name).unwrap();
    let rows: Vec<Vec<&str>> = lines.filter(|line| line[at("metric")] == "decode_rate").collect();
    let column = |name: &str| rows.iter().map(|row| row[at(name)]).collect::<Vec<_>>();
    assert_eq!(column("reference"), ["patient-original"; 4]);
    assert_eq!(column("verdict"), ["", "faster", "same", "inconclusive"]);
    assert_eq!(column("evidence"), ["", "firm", "firm", "firm"]);
    assert_eq!(column("blocks"), ["", "5", "5", "5"]);
    assert_eq!(column("stopped_by"), ["", "fixed", "fixed", "fixed"]);
    let number = |name: &str| rows[1][at(name)].parse::<f64>().unwrap();
    assert!(number("low") <= number("times_reference") && number("times_reference") <= number("high"));
    assert!(number("p") < 0.05 && number("p_adjusted") < 0.05 && number("p_welch") < 0.05);
    assert!((number("threshold") - 0.02).abs() < 1e-9 && number("p_mann_whitney") < 0.05);

    let json = json(&record);
    let pairs = json["pairs"].as_array().unwrap();
    let count_of = |metric: &str| pairs.iter().filter(|pair| pair["metric"] == metric).count();
    assert_eq!((count_of("decode_rate"), count_of("peak_memory")), (6, 6));
    let entries = json["comparisons"].as_array().unwrap();
    let decode = entries.iter().find(|it| it["metric"] == "decode_rate" && it["engine"] == "beacon").unwrap();
    assert_eq!((decode["verdict"].as_str(), decode["stopped_by"].as_str()), (Some("faster"), Some("fixed")));
    assert!(decode["sentence"].as_str().unwrap().starts_with("`beacon` decodes 11.0x as fast as"));
    assert_eq!(json["workloads"][0]["blocks"], 5);
    assert_eq!(json["cases"][1]["warm_ups"].as_array().unwrap().len(), 5);
    assert_eq!(json["cases"][0]["times_reference"], 1.0);
}

#[test]
fn the_effect_of_a_preset_is_listed_with_the_words_of_its_manifest() {
    let mut selection = decoding(&["patient-original", "beacon", "beacon"]);
    selection.candidates[2].preset = Some("half".into());
    selection.candidates[2].options.insert("half".into(), true.into());
    selection.candidates[2].against =
        Some(PresetComparison { preset: "default".into(), effect: "precision impact".into() });
    let record = measured_engines(&selection);
    let text = rendered(&record, "table", 100);
    assert!(text.contains("\nprecision impact, `beacon:half` against `beacon`: decode same"), "{text}");
    let json = json(&record);
    let derived = &json["derived"][0];
    assert_eq!(derived["effect"], "precision impact");
    assert_eq!(derived["comparisons"][0]["engine"], "beacon:half");
    // Presets with the same dtype and the same options are not compared.
    selection.candidates[2].options.clear();
    assert!(!rendered(&measured_engines(&selection), "table", 100).contains("precision impact"));
    selection.candidates[2].options.insert("half".into(), true.into());
    // One block gives no verdict, but the ratio is still shown.
    selection.extent.blocks = Some(1);
    let one_block = rendered(&measured_engines(&selection), "table", 100);
    let effect_line = one_block.lines().find(|line| line.starts_with("precision impact, ")).unwrap();
    assert!(effect_line.contains(": decode ") && effect_line.ends_with("x?"), "{effect_line}");
    // A preset that is measured alone has no effect to show.
    selection.candidates.remove(1);
    assert!(!rendered(&measured_engines(&selection), "table", 100).contains("precision impact"));
}

#[test]
fn a_preset_effect_with_a_verdict_is_also_given_as_a_time_difference() {
    let mut selection = decoding(&["patient-original", "patient-original"]);
    selection.candidates[1].preset = Some("fast".into());
    selection.candidates[1].options.insert("logging".into(), false.into());
    selection.candidates[1].against =
        Some(PresetComparison { preset: "default".into(), effect: "without logging".into() });
    let record =
        measured(&selection, &[ORIGINAL, InventedEngine { name: "patient-original:fast", ..BEACON }]);
    let text = rendered(&record, "table", 200);
    let effect_line = text.lines().find(|line| line.starts_with("without logging, ")).unwrap();
    assert!(
        effect_line.contains(": decode 11.") && effect_line.ends_with("] (19.6 ms a token less)"),
        "{effect_line}"
    );
    let json = json(&record);
    let comparisons = json["derived"][0]["comparisons"].as_array().unwrap();
    let by = |metric: &str| comparisons.iter().find(|it| it["metric"] == metric).unwrap();
    assert!((by("decode_rate")["difference_ns"].as_f64().unwrap() + 19.6e6).abs() < 0.2e6);
    assert!(by("peak_memory")["difference_ns"].is_null());
}
