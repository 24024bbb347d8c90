//! Run files: a run with its own scenarios and targets in TOML, and the run that a record embeds.

use serde_json::Value;

use crate::support::record::{Record, case_of};
use crate::support::{Outcome, Scratch, finish};

const FILE: &str = r#"
# A chat turn, on one engine.
scenario = ["chat", "decode"]
blocks = 1
depth = 0
warmup = 0
verifier = "none"
json = "-"

[scenarios.chat]
about = "one turn of a chat"
like = "decode"
depth = 0
prompt-tokens = 20
new-tokens = [4, 8]
iterations = 2
"#;

/// Runs `orchestrate run` with a file of this text, on one fake engine.
fn run(scratch: &Scratch, text: &str, options: &[&str]) -> Outcome {
    let file = scratch.join("run.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = scratch.orchestrate();
    command.arg("run").arg(file).arg("-e").arg(scratch.engine("one", "--per-token-ns 1000000"));
    finish(command.args(options).arg("--results").arg(scratch.results()))
}

fn cases(report: &Value) -> Vec<&str> {
    report["cases"].as_array().unwrap().iter().map(|it| it["case"].as_str().unwrap()).collect()
}

#[test]
fn a_run_file_selects_engines_and_defines_scenarios() {
    let scratch = Scratch::new();
    let report = run(&scratch, FILE, &[]).exits_with(0).json();
    assert_eq!(cases(&report), ["chat new 4", "chat new 8", "decode"]);
    let chat = case_of(&report, "one");
    assert_eq!((&chat["rounds"], &chat["samples"]), (&2.into(), &2.into()), "{chat}");
    let record = Record::only_one_in(&scratch.results());
    let prompts = &record.samples_of("one")[0]["iteration"]["sequences"][0];
    assert_eq!(prompts["prompt_tokens"], 20, "{prompts}");
    // An option of the command line replaces that of the file.
    let report = run(&scratch, FILE, &["-s", "chat", "--new-tokens", "3"]).exits_with(0).json();
    assert_eq!(cases(&report), ["chat"]);
}

#[test]
fn the_report_of_a_record_repeats_the_tables_of_its_own_scenarios_and_of_its_suite() {
    let scratch = Scratch::new();
    let own = "scenario = \"first\"\nblocks = 1\nwarmup = 0\nverifier = \"none\"\n[scenarios.first]\nlike = \"ttft\"\n\
               prompt-tokens = [16, 32]\niterations = 2\n";
    let suite = "scenario = \"quality\"\nblocks = 1\nwarmup = 0\niterations = 2\n";
    for (text, options, table) in [
        (own, &[][..], "distribution of TTFT over all requests:"),
        (suite, &["--verifier", "none"], "no table of quality: outputs were not checked"),
    ] {
        let results = scratch.results();
        let outcome = run(&scratch, text, options).exits_with(0);
        assert!(outcome.stdout.contains(table), "{outcome:?}");
        let reported =
            finish(scratch.orchestrate().args(["report", "--results"]).arg(&results)).exits_with(0);
        assert!(reported.stdout.contains(table), "{reported:?}");
    }
}

#[test]
fn a_record_is_run_again_with_its_options_scenarios_and_targets() {
    let scratch = Scratch::new();
    let target = "\n[[targets]]\ncase = \"decode\"\nat-least = \"1 tok/s\"\n";
    let first = run(&scratch, &format!("{FILE}{target}"), &["--iterations", "3"]).exits_with(0).json();
    let record = scratch.results().join(format!("{}.jsonl", first["record"].as_str().unwrap()));
    std::fs::remove_file(scratch.join("run.toml")).unwrap();
    let mut command = scratch.orchestrate();
    command
        .args(["run", "--like"])
        .arg(&record)
        .args(["--json", "-", "--results"])
        .arg(scratch.join("again"));
    let again = finish(&mut command).exits_with(0).json();
    assert_eq!((cases(&again), &again["cases"][0]["rounds"]), (cases(&first), &first["cases"][0]["rounds"]));
    assert_eq!((&again["cases"][0]["rounds"], again["targets"].as_array().unwrap().len()), (&3.into(), 1));
    assert_ne!(again["nonce"], first["nonce"]);
    // A record of a command line without a file has one too.
    let again = scratch.join("again").join(format!("{}.jsonl", again["record"].as_str().unwrap()));
    let file = Record::read(&again).header()["run_file"].as_str().unwrap().to_string();
    assert!(file.contains("[scenarios.chat]") && !file.contains("results"), "{file}");
}

#[test]
fn the_noise_of_a_scenario_of_a_run_file_is_measured_and_used() {
    let scratch = Scratch::new();
    run(&scratch, FILE, &["--dry-run"]).exits_with(0);
    let mut command = scratch.orchestrate();
    command.arg("calibrate").arg(scratch.join("run.toml")).args(["--blocks", "5", "-s", "chat"]);
    command.arg("-e").arg(scratch.engine("one", "--per-token-ns 1000000"));
    finish(command.arg("--results").arg(scratch.join("calibrations"))).exits_with(0);
    let report = run(&scratch, FILE, &["-s", "chat"]).exits_with(0).json();
    let record = scratch.results().join(format!("{}.jsonl", report["record"].as_str().unwrap()));
    let header = Record::read(&record).header().clone();
    let floors = header["noise_floors"].as_array().unwrap();
    assert!(floors.iter().any(|it| it["workload"] == "chat new 8"), "{floors:?}");
}

#[test]
fn the_verifier_of_the_environment_is_part_of_the_embedded_file() {
    let scratch = Scratch::new();
    let without = FILE.replace("verifier = \"none\"\n", "");
    let report = run(&scratch, &without, &[]).exits_with(0).json();
    let record = scratch.results().join(format!("{}.jsonl", report["record"].as_str().unwrap()));
    let file = Record::read(&record).header()["run_file"].as_str().unwrap().to_string();
    assert!(file.contains("verifier = \"none\""), "{file}");
}

#[test]
fn a_missed_target_is_a_row_and_gives_exit_code_1() {
    let scratch = Scratch::new();
    let targets = r#"
[[targets]]
case = "decode"
at-least = "100 tok/s"
[[targets]]
case = "decode"
metric = "inter_token"
at-most = "0.1 ms"
"#;
    let table = FILE.replace("json = \"-\"\n", "");
    let outcome = run(&scratch, &format!("{table}{targets}"), &[]).exits_with(1);
    let lines: Vec<&str> =
        outcome.stdout.lines().filter(|it| it.contains("at least") || it.contains("at most")).collect();
    let [met, missed] = lines[..] else { panic!("{outcome:?}") };
    assert!(met.contains("at least 100 tok/s") && met.trim_end().ends_with("met"), "{met}");
    assert!(missed.contains("at most 100 µs") && missed.trim_end().ends_with("MISSED"), "{missed}");
    let record = &crate::support::record::files(&scratch.results())[0];
    let report = finish(scratch.orchestrate().arg("report").arg(record).args(["--format", "json"])).json();
    let met: Vec<&Value> = report["targets"].as_array().unwrap().iter().map(|it| &it["is_met"]).collect();
    assert_eq!(met, [true, false]);
}

#[test]
fn a_target_on_a_percentile_is_about_all_requests_of_the_case_and_says_if_they_are_too_few() {
    let scratch = Scratch::new();
    let text = r#"
scenario = "p99"
prompt-tokens = 16
blocks = 1
warmup = 0
iterations = 20
verifier = "none"

[[targets]]
case = "p99"
percentile = 99
at-most = "0.001 ms"
[[targets]]
case = "p99"
percentile = 95
at-most = "1 s"
"#;
    let outcome = run(&scratch, text, &[]).exits_with(1);
    let words = outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("TTFT p99 one p99 at most 1.00 µs ~"), "{outcome:?}");
    assert!(words.contains("MISSED (an estimate from 20"), "{outcome:?}");
    let p95 = outcome.stdout.lines().find(|line| line.starts_with("TTFT p95")).unwrap();
    assert!(p95.trim_end().ends_with(" met") && !p95.contains('~'), "{p95}");
    let record = &crate::support::record::files(&scratch.results())[0];
    let report = finish(scratch.orchestrate().arg("report").arg(record).args(["--format", "json"])).json();
    let metrics = report["cases"][0]["metrics"].as_array().unwrap();
    let ttft = metrics.iter().find(|it| it["metric"] == "first_token").unwrap();
    for (target, (percentile, is_estimate)) in
        report["targets"].as_array().unwrap().iter().zip([(99, true), (95, false)])
    {
        let facts = ["percentile", "is_estimate", "values"].map(|name| target[name].clone());
        assert_eq!(facts, [Value::from(percentile), is_estimate.into(), Value::from(20)], "{target}");
        assert_eq!(target["value"], ttft[format!("p{percentile}")], "{target}");
    }
}

#[test]
fn a_case_that_an_engine_must_refuse_has_no_row_of_a_target() {
    let scratch = Scratch::new();
    let text = "scenario = \"edge\"\nprompts = [\"short\", \"empty\"]\nblocks = 1\nwarmup = 0\nverifier = \"none\"\n\
                json = \"-\"\n[[targets]]\nmetric = \"total\"\nat-most = \"300 s\"\n";
    let report = run(&scratch, text, &[]).exits_with(0).json();
    assert_eq!(report["cases"][1]["failure"]["kind"], "refused");
    let targets: Vec<&str> =
        report["targets"].as_array().unwrap().iter().map(|it| it["case"].as_str().unwrap()).collect();
    assert_eq!(targets, ["edge short"]);
}

#[test]
fn a_mistake_in_a_run_file_is_refused_with_its_key_and_a_hint() {
    let scratch = Scratch::new();
    for (text, expected) in [
        ("promt-tokens = 3", "no option named `promt-tokens`\nhint: did you mean `prompt-tokens`?"),
        ("blocks = 0", "--blocks 0: expected a whole number from 1 to 10000"),
        ("quick = 3", "`quick`: expected `true` or `false`"),
        ("scenarios = [\"decode\"]", "hint: `scenario` selects them"),
        (
            "[scenarios.decode]\nlike = \"ttft\"",
            "`scenarios.decode`: a scenario or suite already has this name",
        ),
        ("[scenarios.a]\nlike = \"decod\"", "hint: did you mean `decode`?"),
        ("[scenarios.a]\nlike = \"decode\"\nlength = 3", "`scenarios.a`: no option named `length`"),
        ("[scenarios.a]\nlike = \"decode\"\nbatch = 0", "--batch 0: expected a whole number from 1 to 1024"),
        ("[[targets]]\ncase = \"decode\"", "target 1: a target needs `at-least` or `at-most`"),
        ("[[targets]]\nmetric = \"decod_rate\"\nat-least = 1", "hint: did you mean `decode_rate`?"),
        ("[[targets]]\ncase = \"decode\"\nat-most = \"1 ms\"", "the unit of `decode_rate` is tok/s, not ns"),
        (
            "[[targets]]\nmetric = \"total\"\npercentile = 98\nat-most = \"1 s\"",
            "target 1: `percentile`: no percentile 98\nhint: choose one of `50`, `90`, `95`, `99`",
        ),
        (
            "[[targets]]\ncase = \"decode\"\npercentile = 99\nat-least = 1",
            "the p99 of `decode_rate` is one of its best values\nhint: a time, such as `metric = \"total\"`",
        ),
        ("scenario = [\"chat\"", "TOML parse error"),
        ("set = { a = nan }", "`set`: `a`: an engine takes no NaN\nhint: a finite number"),
        ("set = { a = [2026-01-01] }", "an engine takes no date\nhint: a text, \"2026-01-01\""),
    ] {
        let outcome = run(&scratch, text, &["-s", "decode", "--depth", "0"]).exits_with(2);
        let stderr = crate::support::without_line_breaks(&outcome.stderr);
        assert!(stderr.contains(&expected.replace('\n', " ")), "{text}: {stderr}");
        assert!(!scratch.results().exists(), "{text}");
    }
}

#[test]
fn a_scenario_with_a_file_of_lengths_has_no_other_lengths() {
    let scratch = Scratch::new();
    let file = scratch.join("chat.csv");
    std::fs::write(&file, "8,2\n").unwrap();
    for key in ["prompt-tokens", "new-tokens"] {
        let lengths = format!("lengths = {:?}", file.to_str().unwrap());
        let text = format!("[scenarios.mine]\nlike = \"serve\"\n{key} = 8\n{lengths}\n");
        let refused =
            "`scenarios.mine`: `lengths` names a file, so `prompt-tokens` and `new-tokens` have no effect";
        run(&scratch, &text, &[]).exits_with(2).assert_stderr(&[refused]);
    }
}

#[test]
fn a_scenario_has_no_setting_that_its_kind_of_work_cannot_have() {
    let scratch = Scratch::new();
    for (like, setting) in
        [("perplexity", "batch = 4"), ("queries", "new-tokens = 4"), ("decode", "page-cache = \"dropped\"")]
    {
        let text = format!("scenario = \"mine\"\n[scenarios.mine]\nlike = \"{like}\"\n{setting}\n");
        let key = setting.split(' ').next().unwrap();
        let refused = format!("`scenarios.mine`: `{key}`: no scenario like this one has this setting");
        run(&scratch, &text, &[]).exits_with(2).assert_stderr(&[&refused]);
    }
}

#[test]
fn a_target_that_names_no_case_is_an_error_unless_an_option_replaced_the_files_selection() {
    let scratch = Scratch::new();
    let (engine, file) = (scratch.engine("one", "--per-token-ns 1000000"), scratch.join("run.toml"));
    let text =
        "verifier = \"none\"\nblocks = 1\nwarmup = 0\nscenario = \"ttft\"\nprompt-tokens = [16, 128, 512]\n";
    let target = "[[targets]]\nengine = \"./bin/one\"\ncase = \"decode\"\nat-least = 1\n";
    std::fs::write(&file, format!("engine = \"{}\"\n{text}{target}", engine.display())).unwrap();
    let run = |options: &[&str]| {
        let mut command = scratch.orchestrate();
        finish(command.arg("run").arg(&file).args(options).arg("--results").arg(scratch.results()))
    };
    let refused = run(&["--dry-run"]).exits_with(2);
    let hint = "hint: the engines are `one`, and the cases `ttft 16`, `ttft 128`, `ttft 512`";
    refused.assert_stderr(&["target 1 of the run file names no case of this run"]);
    assert!(crate::support::without_line_breaks(&refused.stderr).contains(hint), "{refused:?}");
    let words = ["-s", "prefill", "--prompt-tokens", "8", "--dry-run"];
    let message = "warning: target 1 of the run file names no case of this run, and is left out";
    run(&words).exits_with(0).assert_stdout(&[message]);
    let left_out = run(&words[..4]).exits_with(0);
    left_out.assert_stderr(&["target 1 of the run file names no case of this run, and is left out"]);
    let met = run(&["-s", "decode", "--depth", "0", "--new-tokens", "4"]).exits_with(0);
    assert!(met.stdout.contains("at least 1.00 tok/s"), "{met:?}");
}
