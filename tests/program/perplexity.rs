//! The scenario `perplexity`: texts that engines score before the blocks.

use std::path::Path;

use serde_json::Value;

use crate::support::record::{Record, files};
use crate::support::run::{Run, Verifier, run_selected};
use crate::support::{Outcome, Scratch, finish, without_line_breaks};

const PERPLEXITY: &[&str] = &["-s", "perplexity", "--json", "-"];
/// The windows of the scenario, and the tokens of each one after BOS.
const WINDOWS: usize = 16;
const SCORED: usize = 511;

fn metric(case: &Value, name: &str) -> f64 {
    let metrics = case["metrics"].as_array().unwrap().iter();
    let found = metrics.clone().find(|it| it["metric"] == name);
    found.unwrap_or_else(|| panic!("no `{name}` in {case}"))["estimate"].as_f64().unwrap()
}

/// The scored windows of the only sample of an engine.
fn windows(run: &Run, label: &str) -> Vec<Value> {
    let samples = run.record.samples_of(label);
    let scored: Vec<&&Value> = samples.iter().filter(|it| it["scores"].is_object()).collect();
    assert_eq!(scored.len(), 1, "{samples:?}");
    scored[0]["scores"]["windows"].as_array().unwrap().clone()
}

fn logprobs(windows: &[Value]) -> Vec<f64> {
    let values = windows.iter().flat_map(|it| it["logprobs"].as_array().unwrap());
    values.map(|it| it.as_f64().unwrap()).collect()
}

/// Writes a text, and runs one engine on it.
fn run_on(scratch: &Scratch, text: &[u8], options: &[&str]) -> Outcome {
    let path = scratch.join("notes.txt");
    std::fs::write(&path, text).unwrap();
    run_with_text(scratch, &path, options)
}

fn run_with_text(scratch: &Scratch, path: &Path, options: &[&str]) -> Outcome {
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", "")).arg("--text").arg(path).args(options);
    finish(command.arg("--results").arg(scratch.results()))
}

/// The values are computed again from the record.
#[test]
fn the_perplexity_of_a_text_is_that_of_all_its_log_probabilities_and_drift_is_measured_from_the_verifier() {
    let engines = [("plain", ""), ("noisy", "--score-noise 0.02")];
    let run = run_selected(&engines, Verifier::Engine(""), PERPLEXITY);
    for (label, ..) in engines {
        let (windows, case) = (windows(&run, label), run.case_of(label));
        let lengths: Vec<usize> = windows.iter().map(|it| it["logprobs"].as_array().unwrap().len()).collect();
        assert_eq!(lengths, [SCORED; WINDOWS]);
        let nats = -logprobs(&windows).iter().sum::<f64>();
        let tokens = (WINDOWS * SCORED) as f64;
        assert!((metric(case, "loss") - nats / tokens).abs() < 1e-9, "{case}");
        assert!((metric(case, "perplexity") / (nats / tokens).exp() - 1.0).abs() < 1e-9, "{case}");
        let bytes: u64 = windows.iter().map(|it| it["text_bytes"].as_u64().unwrap()).sum();
        let bits = nats / std::f64::consts::LN_2 / bytes as f64;
        assert!((metric(case, "bits_per_byte") - bits).abs() < 1e-9, "{case}");
        assert_eq!(case["scored_text"]["tokens"], WINDOWS * SCORED);
        assert_eq!(case["scored_text"]["bytes"], bytes);
    }
    // A score has no rounds, so it has no ratio either.
    assert_eq!(run.report["comparisons"].as_array().unwrap().len(), 0, "{}", run.report["comparisons"]);
    let [plain, noisy] = ["plain", "noisy"].map(|label| run.case_of(label));
    assert_eq!((metric(plain, "drift"), metric(plain, "perplexity_change")), (0.0, 0.0));
    assert!((metric(noisy, "drift") - 0.02).abs() < 0.002, "{noisy}");
    let change = metric(noisy, "perplexity") / metric(plain, "perplexity") - 1.0;
    assert!((metric(noisy, "perplexity_change") - change).abs() < 1e-9, "{noisy}");
    // Every engine has the same windows, and the verifier has no row.
    let hash = |label| &run.record.samples_of(label)[0]["prompt_hash"];
    assert_eq!(hash("plain"), hash("noisy"));
    assert_eq!(run.report["cases"].as_array().unwrap().len(), 2);
    assert_eq!(run.status("plain"), "exact", "{}", run.report["outputs"]);
}

#[test]
fn a_text_is_scored_once_whatever_the_number_of_blocks() {
    let options =
        ["-s", "perplexity,decode", "--depth", "0", "--blocks", "2", "--warmup", "1", "--json", "-"];
    let run = run_selected(&[("one", "")], Verifier::None, &options);
    assert_eq!(windows(&run, "one").len(), WINDOWS);
    let workloads = run.report["workloads"].as_array().unwrap();
    let blocks: Vec<_> = workloads.iter().map(|it| (&it["workload"], &it["blocks"])).collect();
    assert_eq!(blocks, [(&"perplexity".into(), &1.into()), (&"decode".into(), &2.into())]);
}

#[test]
fn iterations_and_prompt_tokens_set_the_number_and_the_length_of_the_windows() {
    let options = [PERPLEXITY, &["--iterations", "3", "--prompt-tokens", "64,128"]].concat();
    let run = run_selected(&[("one", "")], Verifier::None, &options);
    let cases = run.report["cases"].as_array().unwrap();
    let scored: Vec<_> = cases.iter().map(|it| (&it["case"], &it["scored_text"]["tokens"])).collect();
    let expected = [("perplexity 64", 3 * 63), ("perplexity 128", 3 * 127)];
    assert_eq!(
        scored,
        expected
            .map(|(case, tokens)| (Value::from(case), Value::from(tokens)))
            .each_ref()
            .map(|it| (&it.0, &it.1))
    );
}

#[test]
fn an_engine_without_score_is_unsupported_and_the_others_are_measured() {
    let engines = [
        ("mute", r#"--capabilities '{"score":false}'"#),
        ("minimal", "--fault says_bad_request_to_hello"),
        ("sound", ""),
    ];
    let run = run_selected(&engines, Verifier::None, PERPLEXITY);
    run.assert_failed("mute", "unsupported", "load");
    let minimal = run.assert_failed("minimal", "unsupported", "load");
    assert!(minimal["message"].as_str().unwrap().contains("the scenario needs `score`"), "{minimal}");
    assert_eq!(windows(&run, "sound").len(), WINDOWS);
}

#[test]
fn an_engine_that_ends_while_it_scores_is_a_failed_row() {
    let run = run_selected(&[("wrong", "--fault wrong_scores"), ("sound", "")], Verifier::None, PERPLEXITY);
    let failure = run.assert_failed("wrong", "protocol", "sample 1");
    assert!(failure["message"].as_str().unwrap().contains("`logprobs`"), "{failure}");
    assert_eq!(windows(&run, "sound").len(), WINDOWS);
}

#[test]
fn a_text_that_takes_too_long_is_a_row_without_values() {
    let engines = [("stuck", "--fault hangs_in_score"), ("sound", "")];
    let capped =
        run_selected(&engines, Verifier::None, &[PERPLEXITY, &["--max-request-time", "1s"]].concat());
    capped.assert_failed("stuck", "too_slow", "sample 1");
    assert_eq!(windows(&capped, "sound").len(), WINDOWS);
    let of_budget = run_selected(&engines[..1], Verifier::None, &[PERPLEXITY, &["--budget", "4s"]].concat());
    let failure = of_budget.record.failure_of("stuck");
    assert_eq!(failure["kind"], "no_time");
    assert_eq!(
        failure["message"], "no time: --budget 4s is too short for 16 windows (0 were scored)",
        "{failure}"
    );
    assert!(failure["hint"].is_null(), "no number of windows fits: {failure}");
    assert!(of_budget.record.only("end")["needs_budget"].is_string(), "{failure}");
}

#[test]
fn the_whole_text_of_the_user_is_scored_and_the_record_has_its_digest_and_not_the_text() {
    let scratch = Scratch::new();
    let text = "The ferry crossed the bay at dawn, and the pier was still empty. ".repeat(20);
    let outcome = run_on(&scratch, text.as_bytes(), PERPLEXITY);
    let run = Run::of(&scratch, outcome);
    let case = run.case_of("one");
    assert_eq!(case["case"], "perplexity notes.txt");
    assert_eq!(case["scored_text"]["bytes"], text.len());
    assert_eq!(case["scored_text"]["left_out_bytes"], 0);
    let workload = &run.record.only("header")["plan"]["cases"][0]["workload"];
    // `sha256sum notes.txt`
    let sha256 = workload["scored_text"]["sha256"].as_str().unwrap();
    assert!(sha256.len() == 64 && sha256.bytes().all(|it| it.is_ascii_hexdigit()), "{workload}");
    assert!(!format!("{:?}", run.record).contains("the pier was still"));
}

#[test]
fn a_record_with_a_text_can_be_repeated() {
    let scratch = Scratch::new();
    let text = "Each of these sentences is scored again by the second run. ".repeat(20);
    run_on(&scratch, text.as_bytes(), PERPLEXITY).exits_with(0);
    let first = Record::only_one_in(&scratch.results());
    let record = std::fs::read_dir(scratch.results()).unwrap().flatten().next().unwrap().path();
    let again = scratch.join("again");
    let repeat = |results: &Path| {
        let mut command = scratch.orchestrate();
        command.args(["run", "--like"]).arg(&record).arg("--results").arg(results);
        finish(&mut command).exits_with(0)
    };
    let outcome = repeat(&again);
    let second = Record::only_one_in(&again);
    let hash = |record: &Record| record.samples_of("one")[0]["prompt_hash"].clone();
    assert_eq!(hash(&first), hash(&second));
    assert!(!outcome.stderr.contains("has changed"), "{}", outcome.stderr);
    std::fs::write(scratch.join("notes.txt"), text.replace("second", "third")).unwrap();
    let changed = repeat(&scratch.join("changed"));
    let warning = "the text `";
    assert!(changed.stderr.contains(warning) && changed.stderr.contains("has changed"), "{}", changed.stderr);
}

#[test]
fn a_text_that_cannot_be_scored_is_refused_before_anything_starts() {
    let scratch = Scratch::new();
    let refused = |path: &Path, options: &[&str], words: &str| {
        let outcome = run_with_text(&scratch, path, options).exits_with(2);
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
        assert!(!scratch.results().exists(), "{}", outcome.stderr);
    };
    let file = |name: &str, content: &[u8]| {
        let path = scratch.join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    refused(&scratch.join("absent.txt"), PERPLEXITY, "No such file");
    refused(&scratch.join("."), PERPLEXITY, "not a file");
    refused(&file("empty.txt", b""), PERPLEXITY, "the file has no text");
    refused(&file("blank.txt", b" \n\n"), PERPLEXITY, "the file has no text");
    refused(&file("latin1.txt", &[b'a', 0xe9, b'b'].repeat(400)), PERPLEXITY, "it is not text in UTF-8");
    refused(&file("short.txt", b"Too short."), PERPLEXITY, "a perplexity needs 32\nhint: name a longer text");
    let long = file("long.txt", "A long enough text, word for word. ".repeat(40).as_bytes());
    for words in ["none of the selected scenarios scores a text\nhint: orchestrate ", " -s perplexity\n"] {
        refused(&long, &["-s", "decode"], words);
    }
}

#[test]
fn the_table_states_the_text_and_the_part_that_is_left_out() {
    let scratch = Scratch::new();
    let text = "One sentence after the other makes a text that is longer than its windows. ".repeat(60);
    let options = ["-s", "perplexity", "--prompt-tokens", "64", "--iterations", "2"];
    let outcome = run_on(&scratch, text.as_bytes(), &options).exits_with(0);
    for words in [
        "loss",
        "perplexity",
        "bits/byte",
        "drift",
        "in 2 windows",
        "126 tokens scored",
        "bytes are left out",
    ] {
        let unbroken = outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(unbroken.contains(words), "{words}: {}", outcome.stdout);
    }
}

#[test]
fn a_window_longer_than_the_models_context_becomes_the_longest_that_fits() {
    let scratch = Scratch::new();
    let model = scratch.join("tiny");
    finish(scratch.orchestrate().args(["model", "synth", "tiny-llama", "--out"]).arg(&model)).exits_with(0);
    let config = model.join("config.json");
    let mut settings: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    settings["max_position_embeddings"] = 100.into();
    std::fs::write(&config, settings.to_string()).unwrap();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", "")).arg("-m").arg(&model).args(PERPLEXITY);
    let outcome = finish(command.arg("--results").arg(scratch.results()));
    let run = Run::of(&scratch, outcome);
    assert_eq!(run.case_of("one")["case"], "perplexity 100 full context");
}

#[test]
fn a_comparison_of_two_records_judges_the_perplexity_of_the_same_text_exactly() {
    let scratch = Scratch::new();
    let record = |name: &str, settings: &str| {
        let offset = if settings.starts_with("--") { "" } else { "--score-offset " };
        let engine = scratch.engine("one", &format!("{offset}{settings}"));
        let mut command = scratch.orchestrate();
        command.arg("-e").arg(engine).args(["-s", "decode,perplexity", "--depth", "0"]);
        command.args(["--blocks", "1", "--iterations", "3", "--warmup", "0", "--results"]);
        finish(command.arg(scratch.join(name))).exits_with(0);
        files(&scratch.join(name)).remove(0)
    };
    let base = record("base", "0.0");
    let compared = |new: &Path, fail_on: &str| {
        let mut command = scratch.orchestrate();
        command.arg("compare").arg(&base).arg(new).args(["--format", "json", "--fail-on", fail_on]);
        finish(&mut command)
    };
    let change = |outcome: &Outcome| {
        let changes = outcome.json()["changes"].as_array().unwrap().clone();
        let perplexity: Vec<Value> = changes.into_iter().filter(|it| it["case"] == "perplexity").collect();
        let [only] = &perplexity[..] else { panic!("{perplexity:?}") };
        assert_eq!((&only["metric"], &only["gating"]), (&"perplexity".into(), &true.into()), "{only}");
        only.clone()
    };
    let same = change(&compared(&record("same", "0.0"), "critical"));
    assert_eq!((&same["verdict"], &same["severity"]), (&"same".into(), &"informative".into()), "{same}");
    let tiny = change(&compared(&record("tiny", "-0.0005"), "critical"));
    assert_eq!(tiny["verdict"], "same", "{tiny}");
    let better = change(&compared(&record("better", "0.004"), "critical"));
    assert_eq!((&better["verdict"], &better["severity"]), (&"better".into(), &"informative".into()));
    // A regression of 0.5 % is a warning, and one of 3 % is critical.
    let worse_record = record("worse", "-0.005");
    let warned = compared(&worse_record, "warning").exits_with(1);
    let worse = change(&warned);
    assert_eq!((&worse["verdict"], &worse["severity"]), (&"worse".into(), &"warning".into()), "{worse}");
    assert_eq!(worse["sentence"], "`one`, perplexity: 0.50 % higher than before");
    // The value has no noise, so it is both ends of its interval.
    let csv =
        finish(scratch.orchestrate().arg("compare").arg(&base).arg(&worse_record).args(["--format", "csv"]));
    let mut lines = csv.stdout.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let line = lines.find(|line| line.contains(",perplexity,ppl,")).unwrap_or_else(|| panic!("{csv:?}"));
    let field = |name: &str| line.split(',').nth(head.iter().position(|it| *it == name).unwrap()).unwrap();
    let value = field("times_as_good");
    assert!(value.parse::<f64>().unwrap() < 1.0, "{line}");
    assert_eq!([field("low"), field("high")], [value; 2], "{line}");
    let impossible = compared(&record("impossible", "--fault impossible_tokens"), "critical").exits_with(1);
    assert!(impossible.stdout.contains("it finds a token of the text impossible"), "{impossible:?}");
    let broken = compared(&record("broken", "-0.03"), "critical").exits_with(1);
    assert_eq!(change(&broken)["severity"], "critical");
}

#[test]
fn a_window_without_room_for_two_tokens_is_refused_before_the_start() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", "")).args(["-s", "perplexity", "--prompt-tokens", "2"]);
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(2);
    outcome.assert_stderr(&["a window of 2 tokens has no room", " --prompt-tokens 3 "]);
    assert!(!scratch.results().exists(), "{outcome:?}");
}

/// The words of a command about a run that only scores a text.
fn words_of(scratch: &Scratch, arguments: &[&str]) -> String {
    let mut command = scratch.orchestrate();
    command.args(arguments).arg("-e").arg(scratch.engine("one", "")).args(["-s", "perplexity"]);
    let outcome = finish(command.arg("--results").arg(scratch.results()));
    format!("{} {}", outcome.stdout, outcome.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_scenario_that_scores_a_text_once_is_described_without_blocks_and_rounds() {
    let scratch = Scratch::new();
    let planned = words_of(&scratch, &["run", "--dry-run"]);
    assert!(planned.contains("each configuration scores the text once"), "{planned}");
    words_of(&scratch, &["run"]);
    let known = words_of(&scratch, &["run", "--dry-run"]);
    assert!(known.contains("from earlier runs on this machine"), "{known}");
    let explain = ["explain", "perplexity", "--results"];
    let explained = finish(scratch.orchestrate().args(explain).arg(scratch.results())).exits_with(0).stdout;
    assert!(explained.contains("scored the text once"), "{explained}");
    let calibrated = words_of(&scratch, &["calibrate"]);
    assert!(calibrated.contains("each configuration scores the text once hint: "), "{calibrated}");
    assert!(calibrated.ends_with("-s decode"), "{calibrated}");
    for text in [planned, known, explained, calibrated] {
        assert!(!text.contains(" block") && !text.contains(" round"), "{text}");
    }
}

#[test]
fn an_own_scenario_like_perplexity_has_the_table_of_quality() {
    let scratch = Scratch::new();
    let file = scratch.join("run.toml");
    let own = "[scenarios.mine]\nlike = \"perplexity\"\niterations = 2\nprompt_tokens = 64\n";
    std::fs::write(&file, own).unwrap();
    let mut command = scratch.orchestrate();
    command.arg("run").arg(file).arg("-e").arg(scratch.engine("one", "")).arg("--results");
    let outcome = finish(command.arg(scratch.results())).exits_with(0);
    for words in ["bits/byte", "126 tokens scored"] {
        assert!(outcome.stdout.contains(words), "{words}: {}", outcome.stdout);
    }
}

#[test]
fn a_token_that_an_engine_finds_impossible_leaves_no_perplexity_and_a_reason() {
    let engines = [("sure", "--fault impossible_tokens"), ("plain", "")];
    let run = run_selected(&engines, Verifier::Engine(""), &[PERPLEXITY, &["--quality"]].concat());
    let (case, metrics) = (run.case_of("sure"), run.case_of("sure")["metrics"].as_array().unwrap());
    let has = |name: &str| metrics.iter().any(|it| it["metric"] == name);
    assert!(!["loss", "perplexity", "perplexity_change", "bits_per_byte", "drift"].into_iter().any(has));
    assert_eq!(case["scored_text"]["impossible_tokens"], WINDOWS, "{case}");
    let expected = "`sure` `perplexity`: no perplexity, because it finds 16 of 8,176 tokens impossible";
    let has_reason = |notes: &Value| notes.as_array().unwrap().iter().any(|it| it == expected);
    assert!(has_reason(&run.report["notes"]), "{}", run.report["notes"]);
}

#[test]
fn a_perplexity_that_is_too_large_for_a_number_is_not_available_and_has_a_reason() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("lost", "--score-offset -1000")).args(["-s", "perplexity"]);
    let outcome = finish(command.arg("--results").arg(scratch.results()));
    let shown = without_line_breaks(&outcome.stdout);
    let reason = "`lost` `perplexity`: no perplexity, because it is larger than any number of 64 bits";
    assert!(shown.contains(reason) && shown.contains("n/a"), "{}", outcome.stdout);
    let mut report = scratch.orchestrate();
    let shown = finish(report.args(["report", "--results"]).arg(scratch.results())).exits_with(0).stdout;
    assert!(without_line_breaks(&shown).contains(reason), "{shown}");
    let mut report = scratch.orchestrate();
    let json = finish(report.args(["report", "--format", "json", "--results"]).arg(scratch.results())).json();
    let metrics = json["cases"][0]["metrics"].as_array().unwrap();
    assert!(metrics.iter().all(|it| it["estimate"].is_f64()), "{metrics:?}");
}
