//! The suite `quantization`: every precision of an engine against its own widest one.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::record::files;
use crate::support::run::{Verifier, run_selected};
use crate::support::{Scratch, finish, without_line_breaks};

/// An engine whose log-probabilities have errors in narrow dtypes.
const ROUNDING: &str =
    r#"--rounding '{"bf16":0.01,"q8_0":0.03}' --capabilities '{"dtypes":["f32","bf16","q8_0"]}'"#;
const DTYPES: &[&str] = &["-s", "quantization", "--dtype", "bf16,f32,q8_0", "--warmup", "1"];

#[test]
fn each_precision_is_compared_with_the_widest_one_of_its_engine() {
    let options = [DTYPES, &["--blocks", "5", "--iterations", "2", "--json", "-"]].concat();
    let run = run_selected(&[("one", ROUNDING)], Verifier::None, &options);
    let impacts = run.report["precisions"].as_array().unwrap();
    let of = |engine: &str| impacts.iter().find(|it| it["engine"] == engine).unwrap();
    assert_eq!(impacts.len(), 3, "{impacts:?}");
    assert!(impacts.iter().all(|it| it["widest"] == "one f32"), "{impacts:?}");
    let order: Vec<&Value> = impacts.iter().map(|it| &it["engine"]).collect();
    assert_eq!(order, ["one f32", "one bf16", "one q8_0"]);
    let drift = |engine: &str| of(engine)["drift_from_widest"].as_f64().unwrap();
    assert_eq!((drift("one f32"), &of("one f32")["perplexity_change"]), (0.0, &Value::from(0.0)));
    assert!(
        (drift("one bf16") - 0.01).abs() < 0.002 && (drift("one q8_0") - 0.03).abs() < 0.006,
        "{impacts:?}"
    );
    // The widest precision has no gain.
    let gain = |engine: &str, name: &str| &of(engine)[name];
    for (name, metric) in [("decode_rate", "decode_rate"), ("memory", "peak_memory")] {
        let pair = gain("one q8_0", name);
        assert_eq!((&pair["metric"], &pair["against"]), (&metric.into(), &"one f32".into()), "{pair}");
        assert!(pair["ratio"].as_f64().is_some_and(|it| it > 0.0), "{pair}");
        assert!(gain("one f32", name).is_null(), "{impacts:?}");
    }
}

/// The record of a run in three precisions, and the folder that has it.
fn recorded() -> (Scratch, PathBuf) {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", ROUNDING)).args(DTYPES).args(["--blocks", "1"]);
    finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    let record = files(&scratch.results()).remove(0);
    (scratch, record)
}

#[test]
fn the_gain_and_the_loss_of_a_precision_are_lines_of_csv() {
    let (scratch, record) = recorded();
    let report = ["report", "--precision", "--format", "csv"];
    let csv = finish(scratch.orchestrate().args(report).arg(record)).exits_with(0).stdout;
    let head: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let field = |line: &str, name: &str| {
        line.split(',').nth(head.iter().position(|it| *it == name).unwrap()).unwrap().to_string()
    };
    let line = |engine: &str, metric: &str| {
        let mut lines = csv.lines();
        lines.find(|it| field(it, "engine") == engine && field(it, "metric") == metric)
    };
    for (metric, value) in [
        ("precision.decode_rate", "times_reference"),
        ("precision.peak_memory", "times_reference"),
        ("precision.perplexity_change", "estimate"),
        ("precision.drift", "estimate"),
    ] {
        let of_eight_bits = line("one q8_0", metric).unwrap_or_else(|| panic!("{metric}: {csv}"));
        assert_eq!(field(of_eight_bits, "reference"), "one f32", "{of_eight_bits}");
        assert!(field(of_eight_bits, value).parse::<f64>().is_ok(), "{value}: {of_eight_bits}");
    }
    assert!(line("one f32", "precision.decode_rate").is_none(), "{csv}");
}

#[test]
fn a_row_that_differs_in_more_than_the_precision_is_not_in_the_table() {
    let (scratch, record) = recorded();
    let text = std::fs::read_to_string(&record).unwrap();
    let (header, rest) = text.split_once('\n').unwrap();
    let mut header: Value = serde_json::from_str(header).unwrap();
    let rows = header["plan"]["configurations"].as_array_mut().unwrap();
    rows.iter_mut().find(|it| it["label"] == "one q8_0").unwrap()["options"] = json!({ "pin": false });
    // An option that quantizes is a precision.
    rows.iter_mut().find(|it| it["label"] == "one bf16").unwrap()["options"] = json!({ "quantize": "int8" });
    std::fs::write(&record, format!("{header}\n{rest}")).unwrap();
    let report = |arguments: &[&str]| {
        finish(scratch.orchestrate().arg("report").args(arguments).arg(&record)).exits_with(0)
    };
    let json = report(&["--format", "json"]).json();
    let compared: Vec<&Value> =
        json["precisions"].as_array().unwrap().iter().map(|it| &it["engine"]).collect();
    assert_eq!(compared, ["one f32", "one bf16"]);
    let shown = without_line_breaks(&report(&["--precision"]).stdout);
    assert!(shown.contains("not in this table: one q8_0 (more than the precision differs)"), "{shown}");
}

#[test]
fn the_table_has_gain_and_loss_of_each_precision_side_by_side() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", ROUNDING)).args(DTYPES).args(["--blocks", "1"]);
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    let (_, table) = outcome.stdout.split_once("drift from").unwrap_or_else(|| panic!("{}", outcome.stdout));
    for words in ["perplexity", "change", "widest", "one q8_0 q8_0", "against the widest precision"] {
        let unbroken = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(unbroken.contains(words), "{words}: {}", outcome.stdout);
    }
    // `report` prints the table of a record too.
    let report =
        finish(scratch.orchestrate().args(["report", "--precision", "--results"]).arg(scratch.results()));
    assert!(report.exits_with(0).stdout.contains("widest"));
}

const MANIFEST: &str = r#"about = "x"
binary = "toy-engine"
[load]
devices = ["cpu", "cuda"]
dtypes = ["f32", "bf16", "q8_0"]
[presets.default]
about = "x"
[presets.eight-bits]
about = "x"
dtype = "q8_0"
[presets.on-gpu]
about = "x"
devices = ["cuda"]
dtype = "bf16"
[presets.loop]
about = "no precision"
options = { path = "loop" }
"#;

/// The rows of a dry run of the suite.
fn planned_rows(options: &[&str]) -> Vec<String> {
    let scratch = Scratch::outside_checkout();
    scratch.write_tree(&[("toy", MANIFEST)]);
    let mut command = scratch.orchestrate_without_checkout();
    command.args(["-s", "quantization", "--quick", "--no-setup", "--dry-run"]).args(options);
    let outcome = finish(&mut command);
    let rows = outcome.stdout.lines().filter(|line| line.starts_with("  toy"));
    rows.map(|line| line.trim().split(" on ").next().unwrap().to_string()).collect()
}

#[test]
fn an_engine_without_a_named_precision_is_measured_in_all_that_its_manifest_offers_here() {
    assert_eq!(planned_rows(&["-e", "toy"]), ["toy:eight-bits", "toy f32", "toy bf16"]);
    assert_eq!(planned_rows(&["-e", "toy,toy:eight-bits"]), ["toy:eight-bits", "toy f32", "toy bf16"]);
    assert_eq!(planned_rows(&["-e", "toy:eight-bits"]), ["toy:eight-bits"]);
    assert_eq!(planned_rows(&["-e", "toy", "--dtype", "f32,bf16"]), ["toy f32", "toy bf16"]);
}

#[test]
fn without_a_named_reference_the_speed_too_is_compared_with_the_widest_precision() {
    let options = [DTYPES, &["--blocks", "1", "--json", "-"]].concat();
    let run = run_selected(&[("one", ROUNDING)], Verifier::None, &options);
    assert_eq!(run.report["reference"], "one f32", "{}", run.report);
    let named = [&options[..], &["--reference", "one q8_0"]].concat();
    let run = run_selected(&[("one", ROUNDING)], Verifier::None, &named);
    assert_eq!(run.report["reference"], "one q8_0", "{}", run.report);
    // The precisions of other scenarios keep the usual reference.
    let decode = ["-s", "decode", "--dtype", "bf16,f32", "--depth", "0", "--blocks", "1", "--json", "-"];
    let run = run_selected(&[("one", ROUNDING)], Verifier::None, &decode);
    assert_eq!(run.report["reference"], "one bf16", "{}", run.report);
}
