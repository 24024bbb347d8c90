use serde_json::Value;

use super::super::tests::{assert_fits, full, json, words};
use super::super::{Report, ReportContent, shown};
use crate::analysis::agreement::specimen::*;
use crate::plan::Verification;
use crate::record::RunRecord;
use crate::record::specimen::{BEACON, ORIGINAL, REED};

/// The full report of a record, with the statuses that it has.
fn rendered(record: &RunRecord, format: &str, width: usize) -> String {
    let report = &Report::of(record);
    shown(&ReportContent { report, view: full(), judgement: None, saved: None }, format, Some(width))
}

/// A record of three engines: the verifier, an engine whose log-probabilities deviate by this many nats, and an engine that could
/// not be checked.
fn record_with_deviation(deviation: f64) -> RunRecord {
    let mut record = measured(&["patient-original", "beacon", "reed"], &[ORIGINAL, BEACON, REED]);
    set_dtypes(&mut record, VERIFIER, "f32", "f32");
    add_held_out(&mut record);
    for configuration in [VERIFIER, ENGINE] {
        let deviation = if configuration == ENGINE { deviation } else { 0.0 };
        set_scores(&mut record, configuration, |_| Some(deviation));
        set_continued(&mut record, configuration, vec![VERIFIER_ID; 32]);
    }
    // Nothing proves that the third engine got the same prompts.
    samples(&mut record, 2).for_each(|it| it.prompt_hash.clear());
    record
}

#[test]
fn the_table_shows_the_verification_status_of_every_engine() {
    let mut record = record_with_deviation(0.012);
    set_dtypes(&mut record, ENGINE, "bf16", "bf16");
    let text = rendered(&record, "table", 120);
    assert_fits(&text, 120);
    for shown in [" output ", " exact ", " agrees 0.012 ", " unverified "] {
        assert!(text.contains(shown), "no `{shown}` in\n{text}");
    }
    assert!(text.contains("output: difference from `patient-original` on held-out text, in nats"), "{text}");
    let markdown = rendered(&record, "markdown", 120);
    assert!(markdown.contains("| agrees 0.012 |"), "{markdown}");
    let json = json(&record);
    assert_eq!(json["cases"][1]["output"], "agrees");
    let output = &json["outputs"][1];
    assert_eq!((&output["engine"], &output["status"]), (&"beacon".into(), &"agrees".into()));
    assert_eq!((&output["scores"]["tokens"], &output["precision"]), (&TOKENS.into(), &"bits16".into()));
    assert_eq!(output["against"]["label"], "patient-original");
    let csv = rendered(&record, "csv", 120);
    let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let at = header.iter().position(|name| *name == "output").unwrap();
    let line: Vec<&str> = csv.lines().find(|line| line.contains("beacon")).unwrap().split(',').collect();
    assert_eq!((line[at], line[at + 2], line[at + 3]), ("agrees", "1151", ""));
    assert!((line[at + 1].parse::<f64>().unwrap() - 0.012).abs() < 1e-9, "{line:?}");
}

#[test]
fn a_shared_verification_status_is_shown_once() {
    let text = rendered(&checked(), "table", 100);
    assert!(text.contains(", output exact\n"), "{text}");
    assert!(!text.contains("unverified"), "{text}");
    let text = rendered(&not_checked(), "table", 100);
    assert!(text.contains("output unverified\n"), "{text}");
    let why =
        "note: each of `patient-original`, `beacon` is unverified: no verifier checked this model in f32";
    assert!(text.contains(why), "{text}");
    // Without a verified engine there are no marks.
    assert!(!text.contains("x*"), "{text}");
}

#[test]
fn an_engine_that_is_wrong_is_shown_and_never_ranked() {
    let record = record_with_deviation(2.3);
    let report = Report::of(&record);
    let text = rendered(&record, "table", 120);
    let row = text.lines().find(|line| line.contains("beacon") && line.contains("wrong 2.3")).unwrap();
    assert!(!row.contains("x "), "{text}");
    let why = "the output of `beacon` is wrong: its log-probabilities of 1,151 held-out tokens differ from those of `patient-original` by \
        2.3";
    let text = words(&text);
    assert!(text.contains(why) && text.contains("its speed is not compared"), "{text}");
    assert!(!text.contains("`beacon` decodes"), "{text}");
    assert!(report.verdicts.against_reference.iter().all(|it| it.engine != "beacon"));
    assert!(report.verdicts.all_pairs.iter().all(|it| it.engine != "beacon" && it.against != "beacon"));
    assert_eq!(json(&record)["cases"][1]["times_reference"], Value::Null);
}

#[test]
fn nothing_is_compared_with_a_wrong_reference_and_another_is_proposed() {
    let mut record = record_with_deviation(2.3);
    record.header.plan.reference = "beacon".into();
    let text = rendered(&record, "table", 120);
    assert!(text.contains("no ratios: the output of the reference `beacon` is wrong"), "{text}");
    assert!(!text.contains("vs ref"), "{text}");
}

#[test]
fn an_unverified_engine_has_no_ratio_no_verdict_and_no_mean() {
    let mut record = record_with_deviation(0.0);
    let text = rendered(&record, "table", 120);
    let row = text.lines().find(|line| line.contains("reed") && line.contains("unverified")).unwrap();
    assert!(row.trim_end().ends_with(" unverified"), "{text}");
    assert!(text.contains("`beacon` decodes") && !text.contains("`reed` decodes"), "{text}");
    let why = "note: `reed` is unverified: the tokens in `decode` were not checked; it gave neither";
    assert!(text.contains(why), "{text}");
    // Two workloads, so that there is a mean.
    let more: Vec<_> = record.header.plan.cases.clone();
    let case_count = record.header.plan.cases.len();
    for mut case in more {
        case.workload.label = "decode again".into();
        record.header.plan.cases.push(case);
    }
    for mut sample in record.samples.clone() {
        sample.case += case_count;
        record.samples.push(sample);
    }
    let text = words(&rendered(&record, "table", 120));
    let mean = text.split_once("geometric mean over 2 workloads").unwrap().1;
    let mean = mean.split_once("noise floor").map_or(mean, |(mean, _)| mean);
    assert!(mean.contains("`beacon`") && !mean.contains("`reed`"), "{text}");
    // JSON has the ratios with the statuses.
    let json = json(&record);
    let of_reed = json["comparisons"].as_array().unwrap().iter().find(|it| it["engine"] == "reed").unwrap();
    assert!(of_reed["ratio"].is_number() && of_reed["is_verified"] == false, "{of_reed}");
    // CSV too, and there an unverified output has no verdict.
    let csv = rendered(&record, "csv", 120);
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let at = |name: &str| lines[0].iter().position(|it| *it == name).unwrap();
    let is_of_reed = |line: &&Vec<&str>| line[at("engine")] == "reed" && line[at("metric")] == "decode_rate";
    let of_reed = lines.iter().find(is_of_reed).unwrap();
    assert_eq!((of_reed[at("verdict")], of_reed[at("is_verified")]), ("", "false"), "{csv}");
    assert!(of_reed[at("times_reference")].parse::<f64>().is_ok(), "{csv}");
    record.header.plan.verification = Verification::Off;
    let text = rendered(&record, "table", 120);
    assert!(text.contains("no ratios: outputs were not checked") && !text.contains("x as fast as"), "{text}");
}

#[test]
fn without_output_checks_a_line_replaces_the_column() {
    let mut record = record_with_deviation(2.3);
    record.header.plan.verification = Verification::Off;
    let text = rendered(&record, "table", 120);
    assert!(
        text.contains("output: not checked, because of `--verifier none`; hint: `--verifier ENGINE`"),
        "{text}"
    );
    assert!(!text.contains("wrong"), "{text}");
    record.header.plan.verification = Verification::Usual;
    record.header.record_version = 2;
    let text = rendered(&record, "table", 120);
    assert!(text.contains("output: not checked, because the record is older than output checks"), "{text}");
    assert!(!text.contains("wrong"), "{text}");
}

#[test]
fn the_name_of_an_engine_cannot_leave_its_line() {
    let mut record = record_with_deviation(2.3);
    record.header.plan.configurations[ENGINE].label = "be\u{1b}[31macon\n=x".into();
    record.header.plan.configurations[VERIFIER].label = "veri\nfier".into();
    for format in ["table", "markdown", "csv"] {
        let text = rendered(&record, format, 100);
        assert!(!text.contains('\u{1b}') && !text.contains("\n=x"), "{text}");
    }
}
