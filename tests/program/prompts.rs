//! The texts of prompts: unusual ones, kinds of text, and the prompts of a user's file.

use serde_json::Value;

use crate::support::record::Record;
use crate::support::run::{Run, Verifier, run_selected};
use crate::support::{Scratch, finish};

/// One block of two rounds, without warm-up.
const SHORT: &[&str] = &["--blocks", "1", "--iterations", "2", "--warmup", "0", "--json", "-"];

fn cases<'a>(run: &'a Run, engine: &str) -> Vec<&'a Value> {
    let cases = run.report["cases"].as_array().unwrap().iter();
    cases.filter(|case| case["engine"]["label"] == engine || case["engine"] == engine).collect()
}

/// The failure of each case of an engine that has one: the case and the kind.
fn failures(run: &Run, engine: &str) -> Vec<(String, String)> {
    let failed = cases(run, engine).into_iter().filter(|case| !case["failure"].is_null());
    let text = |value: &Value| value.as_str().unwrap().to_string();
    failed.map(|case| (text(&case["case"]), text(&case["failure"]["kind"]))).collect()
}

fn prompt_tokens(run: &Run, engine: &str) -> Vec<u64> {
    let samples = run.record.samples_of(engine).into_iter();
    samples.map(|it| it["iteration"]["sequences"][0]["prompt_tokens"].as_u64().unwrap()).collect()
}

#[test]
fn an_engine_must_refuse_an_empty_prompt_and_one_beyond_the_context() {
    let strict = ("strict", "--context-tokens 2048");
    // This engine reports the context of the model, and accepts more.
    let lax = ("lax", r#"--context-tokens 4096 --loaded '{"context_tokens":2048}'"#);
    let run = run_selected(&[strict, lax], Verifier::None, &[&["-s", "edge"], SHORT].concat());
    let refused = |case: &str| (format!("edge {case}"), "refused".to_string());
    assert_eq!(failures(&run, "strict"), [refused("empty"), refused("beyond")]);
    let wrong = ("edge beyond".to_string(), "wrong_output".to_string());
    assert_eq!(failures(&run, "lax"), [refused("empty"), wrong]);
    let lengths = [1, 1, 2032, 2032, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128];
    assert_eq!(prompt_tokens(&run, "strict"), lengths);
    // A refusal is no failure.
    assert_eq!(run.outcome.code, Some(4));
    let alone = run_selected(&[strict], Verifier::None, &[&["-s", "edge"], SHORT].concat());
    assert_eq!(alone.outcome.code, Some(0), "{:?}", alone.outcome);
}

#[test]
fn a_refusal_that_must_be_is_below_the_table_and_no_warning() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("strict", "--context-tokens 2048")).args(["-s", "edge"]);
    command.args(&SHORT[..SHORT.len() - 2]).args(["--format", "markdown", "--results"]);
    let outcome = finish(command.arg(scratch.results())).exits_with(0);
    let lines: Vec<&str> = outcome.stdout.lines().filter(|line| line.contains("refused")).collect();
    let [note] = lines[..] else { panic!("{outcome:?}") };
    assert!(note.starts_with("- refused, as it must be: edge empty, edge beyond ("), "{outcome:?}");
    let explain = ["explain", "strict", "edge empty", "--results"];
    let text = finish(scratch.orchestrate().args(explain).arg(scratch.results())).exits_with(0).stdout;
    assert!(text.contains("This is not a failure.") && !text.contains("It failed"), "{text}");
}

#[test]
fn each_kind_of_text_is_a_row_and_random_ids_need_an_engine_that_takes_ids() {
    let reader = ("reader", r#"--capabilities '{"prompt_ids":false}'"#);
    let kinds = ["-s", "prefill", "--prompt-tokens", "64", "--prompts", "natural,random,code"];
    let run = run_selected(&[("ids", ""), reader], Verifier::None, &[&kinds[..], SHORT].concat());
    let labels: Vec<&Value> = cases(&run, "ids").into_iter().map(|case| &case["case"]).collect();
    assert_eq!(labels, ["prefill", "prefill random", "prefill code"]);
    assert_eq!(prompt_tokens(&run, "ids"), [64; 6]);
    assert_eq!(failures(&run, "ids"), []);
    assert_eq!(failures(&run, "reader"), [("prefill random".into(), "unsupported".into())]);
}

#[test]
fn requests_take_the_prompts_of_a_file_in_turn_and_a_record_repeats_them() {
    let scratch = Scratch::new();
    let file = scratch.join("chats.jsonl");
    let chat = r#"{"messages": [{"role": "user", "content": "Where is the old mill by the river?"}]}"#;
    std::fs::write(&file, format!("{{\"prompt\": \"Hello\"}}\n{chat}\n")).unwrap();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", "")).args(["-s", "decode", "--new-tokens", "4", "--prompts"]);
    let options = ["--blocks", "1", "--iterations", "3", "--warmup", "0", "--json", "-", "--results"];
    let first = finish(command.arg(&file).args(options).arg(scratch.results())).exits_with(0);
    first.assert_stderr(&["warning: requests take the 2 prompts of"]);
    assert_eq!(first.json()["cases"][0]["case"], "decode chats.jsonl");
    let record = Record::only_one_in(&scratch.results());
    let lengths = |record: &Record| -> Vec<u64> {
        let samples = record.samples_of("one").into_iter();
        samples.map(|it| it["iteration"]["sequences"][0]["prompt_tokens"].as_u64().unwrap()).collect()
    };
    let [short, long, again] = lengths(&record)[..] else { panic!("{record:?}") };
    assert!(short < long && short == again, "{short} {long} {again}");
    assert!(!format!("{:?}", record.header()).contains("old mill"), "the record has the texts");
    let path = &crate::support::record::files(&scratch.results())[0];
    let mut command = scratch.orchestrate();
    command.args(["run", "--like"]).arg(path).args(["--json", "-", "--results"]).arg(scratch.join("again"));
    finish(&mut command).exits_with(0);
    assert_eq!(lengths(&Record::only_one_in(&scratch.join("again"))), [short, long, again]);
    std::fs::write(&file, "{\"prompt\": \"Hello again\"}\n").unwrap();
    let mut command = scratch.orchestrate();
    command.args(["run", "--dry-run", "--like"]).arg(path);
    let planned = crate::support::without_line_breaks(&finish(&mut command).exits_with(0).stdout);
    assert!(planned.contains("warning: the file of prompts `"), "{planned}");
    assert!(planned.contains("has changed since the record of `--like`"), "{planned}");
}

#[test]
fn a_text_that_is_no_kind_and_no_file_of_prompts_is_refused() {
    let scratch = Scratch::new();
    std::fs::write(scratch.join("bad.jsonl"), "{\"text\": 1}\n").unwrap();
    for (text, expected) in [
        ("randm", "no kind of text; a file needs a path, as in `./randm` hint: orchestrate "),
        ("./absent.txt", "No such file"),
        ("bad.jsonl", "line 1: expected either `prompt` or `messages`"),
    ] {
        let mut command = scratch.orchestrate();
        command.arg("-e").arg(scratch.engine("one", "")).args(["-s", "decode", "--prompts", text]);
        let outcome = finish(command.current_dir(scratch.join("."))).exits_with(2);
        let stderr = crate::support::without_line_breaks(&outcome.stderr);
        assert!(stderr.contains(expected), "{text}: {stderr}");
    }
}

#[test]
fn texts_with_the_same_name_and_lengths_for_a_file_of_prompts_are_refused() {
    let scratch = Scratch::new();
    for folder in ["a", "b"] {
        std::fs::create_dir(scratch.join(folder)).unwrap();
        std::fs::write(scratch.join(folder).join("p.txt"), "Hello\n").unwrap();
    }
    std::fs::write(scratch.join("code"), "Hello\n").unwrap();
    let no_length = "the prompts of `--prompts` have lengths of their own, and no depth";
    for (options, expected) in [
        ("prefill --prompts a/p.txt,b/p.txt", "--prompts: two texts have the name `p.txt` in labels"),
        ("prefill --prompts code,./code", "--prompts: two texts have the name `code` in labels"),
        ("prefill --prompts a/p.txt --prompt-tokens 64", &format!("--prompt-tokens: {no_length}")),
        ("decode --prompts a/p.txt --depth 512", &format!("--depth: {no_length}")),
        ("depth --prompts a/p.txt", "`depth`: each of its requests has a depth"),
    ] {
        let mut command = scratch.orchestrate();
        command.arg("-e").arg(scratch.engine("one", "")).arg("-s").args(options.split(' ')).arg("--dry-run");
        let outcome = finish(command.current_dir(scratch.join("."))).exits_with(2);
        let stderr = crate::support::without_line_breaks(&outcome.stderr);
        assert!(stderr.contains(expected) && stderr.contains("hint: "), "{options}: {stderr}");
    }
    let own = "[scenarios.mine]\nlike = \"prefill\"\nprompts = [\"a/p.txt\", \"b/p.txt\"]\n";
    std::fs::write(scratch.join("run.toml"), own).unwrap();
    let mut command = scratch.orchestrate();
    command.args(["run", "run.toml", "--dry-run", "-e"]).arg(scratch.engine("one", ""));
    let outcome = finish(command.current_dir(scratch.join("."))).exits_with(2);
    outcome.assert_stderr(&["`scenarios.mine`: two texts have the name `p.txt` in labels"]);
}

#[test]
fn a_label_of_a_files_prompts_has_no_length_and_no_depth() {
    let scratch = Scratch::new();
    std::fs::write(scratch.join("p.txt"), "Hello\n").unwrap();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", "")).args(["-s", "ttft,decode", "--prompts", "p.txt"]);
    command.args(SHORT).arg("--results").arg(scratch.results());
    let outcome = finish(command.current_dir(scratch.join("."))).exits_with(0);
    let cases: Vec<Value> = outcome.json()["cases"].as_array().unwrap().clone();
    let labels: Vec<&Value> = cases.iter().map(|case| &case["case"]).collect();
    assert_eq!(labels, ["ttft p.txt", "decode p.txt"]);
}

#[test]
fn a_cold_start_shows_the_first_request_of_the_launch_beside_a_warm_one() {
    let slow_first = ("slow", "--per-token-ns 1000");
    let options = ["-s", "cold", "--page-cache", "kept", "--blocks", "2", "--json", "-"];
    let run = run_selected(&[slow_first], Verifier::None, &options);
    let case = cases(&run, "slow").into_iter().find(|case| case["case"] == "cold-start").unwrap();
    let metrics: Vec<&Value> = case["metrics"].as_array().unwrap().iter().map(|it| &it["metric"]).collect();
    for name in ["first_run", "warm_run", "warm_up_gain"] {
        assert!(metrics.contains(&&name.into()), "{name}: {metrics:?}");
    }
    // The first request of each launch is that of `load`, which is of the same kind.
    let first: Vec<&Value> = run.record.samples_of("slow");
    assert_eq!(first[0]["case"], 1, "{first:?}");
}
