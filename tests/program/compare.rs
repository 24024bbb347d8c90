//! `orchestrate compare` on records: its output and its exit status.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::snapshot::formats;
use crate::support::{Outcome, Scratch, finish};

/// A record that a test writes: one engine in one scenario, five blocks of three rounds.
struct TestRecord {
    cpu: &'static str,
    /// The time between tokens in each block, in milliseconds.
    ms: [f64; 5],
}

const STEADY: TestRecord = TestRecord { cpu: "a CPU", ms: [10.0, 10.05, 9.95, 10.02, 9.98] };

impl TestRecord {
    /// `STEADY` with all times multiplied by `factor`: above 1, the engine is slower.
    fn scaled(factor: f64) -> Self {
        Self { ms: STEADY.ms.map(|ms| ms * factor), ..STEADY }
    }

    fn write(&self, scratch: &Scratch, name: &str) -> PathBuf {
        let mut lines = vec![self.header(name)];
        for (block, ms) in self.ms.iter().enumerate() {
            lines.push(json!({
                "entry": "launch", "launch": block, "configuration": 0, "block": block, "pid": 1,
                "loaded_ns": 100_000_000,
            }));
            lines.extend((0..3).map(|round| sample(block, round, *ms)));
        }
        lines.push(json!({"entry": "end", "how": "finished"}));
        let path = scratch.join(&format!("{name}.jsonl"));
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&path, text).unwrap();
        path
    }

    fn header(&self, name: &str) -> Value {
        let model = json!({"name": "tiny", "path": "/m", "identity": "abc"});
        let configuration = json!({
            "label": "pebble", "engine": "pebble", "command": ["pebble"], "model": model, "device": "cpu", "threads": 2,
        });
        let workload = json!({
            "scenario": "decode", "label": "decode", "kind": "warm", "headline": "decode_rate",
            "prompt": {"tokens": 32}, "max_new_tokens": 8, "ignore_eos": true, "rounds": 3,
        });
        let plan = json!({
            "mode": "warm", "order": "interleaved", "extent": {"target": 0.02, "case_cap_ns": 60_000_000_000_u64},
            "seed": 0, "reference": "pebble", "configurations": [configuration],
            "cases": [{"configuration": 0, "workload": workload}],
        });
        json!({
            "entry": "header", "record_version": 2, "id": name, "started": "2026-01-02T03:04:05Z",
            "orchestrate_version": "0.1.0", "command": ["orchestrate"], "plan": plan,
            "machine": {"cpu": {"model": self.cpu}},
        })
    }
}

fn sample(block: usize, round: usize, ms: f64) -> Value {
    let times: Vec<u64> = (1..=8).map(|token| (f64::from(token) * ms * 1e6) as u64).collect();
    let sequence = json!({"prompt_tokens": 32, "output_ids": [1, 2, 3, 4, 5, 6, 7, 8], "token_ns": times, "finish": "length"});
    json!({
        "entry": "sample", "launch": block, "case": 0, "index": round, "kind": "measured",
        "prompt_hash": format!("{block} {round}"), "sent_ns": 200_000_000, "answered_ns": 200_000_000 + times[7],
        "iteration": {"start_ns": 0, "end_ns": times[7], "sequences": [sequence]},
    })
}

fn compare(base: &TestRecord, new: &TestRecord, arguments: &[&str]) -> Outcome {
    let scratch = Scratch::new();
    let (base, new) = (base.write(&scratch, "base"), new.write(&scratch, "new"));
    finish(scratch.orchestrate().arg("compare").arg(base).arg(new).args(arguments))
}

#[test]
fn a_critical_change_is_named_and_exits_with_1() {
    let outcome = compare(&STEADY, &TestRecord::scaled(1.4), &[]).exits_with(1);
    outcome.assert_stdout(&["critical: `pebble` decodes 1.4", "x slower than before ["]);
    // The table of all metrics needs `--full`.
    assert!(!outcome.stdout.contains("base → new"), "{}", outcome.stdout);
    let full = compare(&STEADY, &TestRecord::scaled(1.4), &["--full"]).exits_with(1);
    full.assert_stdout(&["critical: `pebble` decodes 1.4", "base → new", "> decode"]);
    assert!(outcome.stdout.ends_with("1 headline metric: 1 worse (1 critical)\n"), "{}", outcome.stdout);
}

#[test]
fn the_user_sets_which_changes_fail() {
    let slower = TestRecord::scaled(1.15);
    let code = |arguments: &[&str]| compare(&STEADY, &slower, arguments).code;
    assert_eq!((code(&[]), code(&["--fail-on", "warning"])), (Some(0), Some(1)));
    assert_eq!(code(&["--warning", "5%", "--critical", "8%"]), Some(1));
    let refused = compare(&STEADY, &slower, &["--warning", "30%"]).exits_with(2);
    refused.assert_stderr(&["--warning 30% is above --critical 20%"]);
}

#[test]
fn same_and_better_exit_with_0_and_inconclusive_exits_with_3() {
    let outcome = compare(&STEADY, &STEADY, &[]);
    assert_eq!(
        (outcome.code, outcome.stdout.contains("`pebble` decodes as fast as before")),
        (Some(0), true)
    );
    compare(&STEADY, &TestRecord::scaled(0.5), &[]).exits_with(0);
    let noisy = TestRecord { ms: [10.0, 14.0, 9.0, 15.0, 11.0], ..STEADY };
    let outcome = compare(&STEADY, &noisy, &[]).exits_with(3);
    outcome.assert_stdout(&["`pebble`, decode: the change is inconclusive"]);
}

#[test]
fn a_record_of_another_machine_is_refused_or_compared_with_force_and_a_warning() {
    let on_other_cpu = TestRecord { cpu: "another CPU", ..STEADY };
    let refused = compare(&STEADY, &on_other_cpu, &[]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""));
    refused.assert_stderr(&["CPU: base `a CPU`, new `another CPU`", "hint: `--force`"]);
    let forced = compare(&STEADY, &on_other_cpu, &["--force"]).exits_with(0);
    assert!(
        forced.stdout.starts_with("not comparable, but compared because of `--force`: CPU:"),
        "{}",
        forced.stdout
    );
}

#[test]
fn a_comparison_has_every_format_of_a_report() {
    let formats = formats(&["compare", "base", "new"]);
    assert_eq!(formats, crate::support::snapshot::formats(&["report", "record"]));
    let excerpts = [("csv", "base,new,forced,"), ("markdown", "headline metric"), ("json", "\"changes\"")];
    let mut seen = Vec::new();
    for format in &formats {
        let outcome = compare(&STEADY, &STEADY, &["--format", format]);
        assert!(outcome.code == Some(0) && outcome.stdout.contains("pebble"), "{format}: {}", outcome.stdout);
        let excerpt = excerpts.iter().find(|(name, _)| name == format);
        assert!(
            excerpt.is_none_or(|(_, text)| outcome.stdout.contains(text)),
            "{format}: {}",
            outcome.stdout
        );
        assert!(!seen.contains(&outcome.stdout), "`{format}` prints the same text as another format");
        seen.push(outcome.stdout);
    }
    assert!(excerpts.iter().all(|(name, _)| formats.iter().any(|format| format == name)), "{formats:?}");
    let json = compare(&STEADY, &TestRecord::scaled(1.5), &["--format", "json"]).stdout;
    let changes = serde_json::from_str::<Value>(&json).unwrap()["changes"].clone();
    let decode = changes.as_array().unwrap().iter().find(|it| it["metric"] == "decode_rate").unwrap().clone();
    assert_eq!(
        (&decode["verdict"], &decode["severity"], &decode["gating"]),
        (&json!("worse"), &json!("critical"), &json!(true))
    );
}

#[test]
fn a_name_that_is_no_file_and_no_baseline_is_a_usage_error() {
    let scratch = Scratch::new();
    let base = STEADY.write(&scratch, "base");
    let outcome =
        finish(scratch.orchestrate().arg("compare").arg("no-such-baseline").arg(&base)).exits_with(2);
    outcome.assert_stderr(&["`no-such-baseline`"]);
    let truncated = scratch.join("truncated.jsonl");
    std::fs::write(&truncated, "{\"entry\":\"header\"").unwrap();
    let outcome = finish(scratch.orchestrate().arg("compare").arg(&base).arg(&truncated)).exits_with(5);
    outcome.assert_stderr(&["truncated.jsonl"]);
}

#[test]
fn a_record_that_was_cut_off_is_compared_with_a_notice() {
    let scratch = Scratch::new();
    let (base, new) = (STEADY.write(&scratch, "base"), STEADY.write(&scratch, "new"));
    let text = std::fs::read_to_string(&new).unwrap();
    std::fs::write(&new, &text[..text.len() - 300]).unwrap();
    let outcome = finish(scratch.orchestrate().arg("compare").arg(base).arg(new)).exits_with(0);
    assert!(
        outcome.stdout.starts_with("note: the new record was cut off before its end"),
        "{}",
        outcome.stdout
    );
}
