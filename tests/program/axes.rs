//! The axes of scenarios: batches, padding, the KV cache, and their options on the command line.

use serde_json::Value;

use crate::support::run::{Run, Verifier, run_selected};
use crate::support::{Outcome, Scratch, fake_engine, finish, without_line_breaks};

/// One block of two rounds, without warm-up.
const SHORT: &[&str] = &["--blocks", "1", "--iterations", "2", "--warmup", "0", "--json", "-"];

fn labels(run: &Run) -> Vec<&str> {
    let cases = run.report["cases"].as_array().unwrap();
    cases.iter().map(|case| case["case"].as_str().unwrap()).collect()
}

#[test]
fn each_batch_size_has_a_row_and_a_size_above_the_engines_largest_is_unsupported() {
    let run = run_selected(&[("one", "")], Verifier::None, &[&["-s", "batch"], SHORT].concat());
    assert_eq!(labels(&run), ["batch 1", "batch 2", "batch 4", "batch 8", "batch 16"]);
    let sequences = |sample: &Value| sample["iteration"]["sequences"].as_array().unwrap().len();
    let mut sizes: Vec<usize> = run.record.samples_of("one").into_iter().map(sequences).collect();
    sizes.dedup();
    assert_eq!(sizes, [1, 2, 4, 8]);
    let largest = &run.report["cases"][4];
    assert_eq!(largest["failure"]["kind"], "unsupported");
    let why = "the scenario needs a batch of 16, and the largest of this engine is 8";
    assert_eq!(largest["failure"]["message"], why);
}

#[test]
fn a_larger_batch_has_its_speed_up_and_its_scaling_efficiency_beside_it() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    // Only verified output has ratios.
    let engine = scratch.engine("one", "--per-token-ns 1000000");
    command.arg("-e").arg(&engine).arg("--verifier").arg(&engine).env_remove("ORCHESTRATE_VERIFIER");
    command.args(["-s", "batch", "--batch", "1,4", "--blocks", "5", "--iterations", "1", "--warmup", "0"]);
    let json = scratch.join("report.json");
    command.arg("--json").arg(&json).arg("--results").arg(scratch.results());
    let outcome = finish(&mut command).exits_with(0);
    outcome.assert_stdout(&["what each setting of `batch` changes, by throughput:", "of linear"]);
    let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let [setting] = &report["settings"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!((&setting["case"], &setting["against"]), (&"batch 4".into(), &"batch 1".into()));
    let number = |name: &str| setting[name].as_f64().unwrap();
    // This engine computes four sequences in the time of one.
    assert!((number("ratio") / 4.0 - number("scaling_efficiency")).abs() < 1e-9, "{setting}");
    assert!(number("scaling_efficiency") > 0.8, "{setting}");
    let explain = ["explain", "batch 4", "--results"];
    let explained = finish(scratch.orchestrate().args(explain).arg(scratch.results())).exits_with(0).stdout;
    let sentence = "Against the same engine with another setting: `one` generates (batch 4) ";
    let explained = without_line_breaks(&explained);
    assert!(explained.contains(sentence) && explained.contains(" as fast as `batch 1` ["), "{explained}");
    let report = ["report", "--settings", "--format", "csv", "--results"];
    let csv = finish(scratch.orchestrate().args(report).arg(scratch.results())).exits_with(0).stdout;
    assert!(csv.lines().any(|line| line.contains(",setting.batch.throughput,tok/s,5,")), "{csv}");
}

/// The verifier answers for one sequence of each sample: the next one in each round, through all blocks.
#[test]
fn wrong_tokens_in_the_last_sequence_of_a_batch_make_an_engine_wrong() {
    let options =
        ["-s", "batch", "--batch", "4", "--blocks", "2", "--iterations", "2", "--warmup", "0", "--json", "-"];
    let run = run_selected(&[("wrong", "--wrong-sequence 3"), ("right", "")], Verifier::Engine(""), &options);
    assert_eq!((run.status("wrong"), run.status("right")), ("wrong", "exact"), "{}", run.report["outputs"]);
}

#[test]
fn each_padding_has_a_row_with_and_without_cache_and_an_unsupported_padding_has_the_reason() {
    let options = [&["-s", "cache-padding"], SHORT].concat();
    let run = run_selected(&[("one", "")], Verifier::None, &options);
    let packed = |case: &&Value| case["case"].as_str().unwrap().ends_with("packed");
    let cases = run.report["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 6);
    for case in cases {
        let failure = &case["failure"]["message"];
        match packed(&case) {
            true => {
                let why = "the scenario needs the padding `packed`, and this engine does not support it";
                assert_eq!(failure, why);
            }
            false => assert_eq!(failure, &Value::Null),
        }
    }
    let sample = run.record.samples_of("one")[0];
    let lengths: Vec<u64> = sample["iteration"]["sequences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["prompt_tokens"].as_u64().unwrap())
        .collect();
    assert_eq!(lengths, [64, 48, 32, 16]);
}

#[test]
fn each_combination_of_the_listed_values_of_axes_is_a_row() {
    let axes = ["-s", "decode", "--prompt-tokens", "16,32", "--new-tokens", "4,8", "--depth", "0,64"];
    let run = run_selected(&[("one", "")], Verifier::None, &[&axes[..], SHORT].concat());
    let labels = labels(&run);
    assert_eq!(labels.len(), 8);
    assert_eq!((labels[0], labels[7]), ("decode 16 new 4", "decode 32 new 8 depth 64"));
    let last = *run.record.samples_of("one").last().unwrap();
    let sequence = &last["iteration"]["sequences"][0];
    assert_eq!(
        (&sequence["prompt_tokens"], sequence["output_ids"].as_array().unwrap().len()),
        (&96.into(), 8)
    );
}

#[test]
fn a_prompt_that_the_context_does_not_hold_becomes_the_longest_that_fits_and_its_label_says_so() {
    let run = run_selected(&[("one", "")], Verifier::None, &[&["-s", "prefill"], SHORT].concat());
    let lengths = ["prefill 32", "prefill 128", "prefill 512", "prefill 1024", "prefill 2047 full context"];
    assert_eq!(labels(&run), lengths);
    let last = *run.record.samples_of("one").last().unwrap();
    assert_eq!(last["iteration"]["sequences"][0]["prompt_tokens"], 2047);
    // Two lengths that are too long become one row.
    let options = ["-s", "ttft", "--prompt-tokens", "3000,100,4000", "--new-tokens", "9"];
    let run = run_selected(&[("one", "")], Verifier::None, &[&options[..], SHORT].concat());
    assert_eq!(labels(&run), ["ttft 2039 full context", "ttft 100"]);
}

#[test]
fn a_depth_of_a_sweep_beyond_the_context_is_unsupported_and_no_failure_of_the_run() {
    let run = run_selected(&[("one", "")], Verifier::None, &[&["-s", "decode"], SHORT].concat());
    assert_eq!(labels(&run), ["decode", "decode depth 512", "decode depth 2048", "decode depth 8192"]);
    let failure = |index: usize| &run.report["cases"][index]["failure"];
    assert_eq!((failure(0), failure(1)), (&Value::Null, &Value::Null));
    for index in [2, 3] {
        assert_eq!(failure(index)["kind"], "unsupported");
        let message = failure(index)["message"].as_str().unwrap();
        assert!(message.ends_with("and 64 new tokens exceed the context of 2,048"), "{message}");
    }
    assert_eq!(run.outcome.code, Some(0), "{:?}", run.outcome);
}

#[test]
fn depths_beyond_the_context_are_one_line_of_the_screen_and_of_the_dry_run() {
    let scratch = Scratch::new();
    let measure = |options: &[&str]| {
        let mut command = scratch.orchestrate();
        command
            .arg("-e")
            .arg(scratch.engine("one", ""))
            .args(["-s", "decode"])
            .args(&SHORT[..6])
            .args(options);
        finish(command.arg("--results").arg(scratch.results())).exits_with(0)
    };
    let screen = measure(&[]).stdout;
    let line =
        "! not measured: decode depth 2048, decode depth 8192: the requests exceed the context of 2,048\n";
    assert_eq!(screen.matches("exceed the context").count(), 1, "{screen}");
    assert!(screen.contains(line), "{screen}");
    let dry = measure(&["--dry-run"]).stdout;
    assert_eq!(dry.matches("depth 8192").count(), 1, "{dry}");
    let line = "not measured on embedded: decode depth 2048, decode depth 8192 (the";
    assert!(dry.contains(line), "{dry}");
}

#[test]
fn the_latency_suite_has_the_distribution_without_an_option() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", "")).args(["-s", "latency", "--blocks", "1"]);
    command.args(["--iterations", "2", "--warmup", "0", "--results"]).arg(scratch.results());
    let outcome = finish(&mut command).exits_with(0);
    outcome.assert_stdout(&["distribution of TTFT over all requests:", "p99: mean of 9"]);
}

#[test]
fn the_subcommand_request_prints_the_same_batch_for_the_same_nonce() {
    let scratch = Scratch::new();
    let request = |arguments: &[&str]| -> Outcome {
        let mut command = scratch.orchestrate();
        finish(command.arg("request").arg(fake_engine()).args(arguments)).exits_with(0)
    };
    let lines = request(&["batch", "--batch", "2", "--nonce", "5"]).stdout;
    let generate: Value = serde_json::from_str(lines.lines().nth(2).unwrap()).unwrap();
    assert_eq!(generate["prompts_ids"].as_array().unwrap().len(), 2, "{generate}");
    assert_eq!(lines, request(&["batch", "--batch", "2", "--nonce", "5"]).stdout);
    assert_ne!(lines, request(&["batch", "--batch", "2", "--nonce", "6"]).stdout);
}

#[test]
fn the_distribution_of_ttft_ends_with_the_mean_over_its_prompt_lengths() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", "")).args(["-s", "ttft", "--blocks", "1"]);
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    let report = ["report", "--results"];
    let reported = finish(scratch.orchestrate().args(report).arg(scratch.results())).exits_with(0);
    // The report of the record has the table that the run had.
    for text in [&outcome.stdout, &reported.stdout] {
        assert!(text.contains("distribution of TTFT over all requests:"), "{text}");
        let mut lines = text.lines();
        let mean = lines.find(|line| line.starts_with("ttft: mean of 9")).unwrap_or_else(|| panic!("{text}"));
        assert!(mean.split_whitespace().count() > 8, "{mean}");
        // The mean of percentiles of five values is an estimate too.
        assert_eq!(mean.matches('~').count(), 2, "{mean}");
    }
}

#[test]
fn the_throughput_of_each_length_has_its_mean_its_peak_and_the_percentiles_of_its_requests() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", "")).args(["-s", "throughput", "--new-tokens", "4,8"]);
    command.args(["--blocks", "1", "--results"]).arg(scratch.results());
    let text = finish(&mut command).exits_with(0).stdout;
    let (_, table) = text.split_once("distribution of throughput").unwrap_or_else(|| panic!("{text}"));
    let titles = table.lines().find(|line| line.contains(" mean ")).unwrap();
    let titles: Vec<&str> = titles.split_whitespace().skip_while(|it| *it != "mean").collect();
    assert_eq!(titles[..8], ["mean", "std", "min", "max", "mean", "p50", "p95", "p99"], "{table}");
}

#[test]
fn an_option_that_no_selected_scenario_uses_is_refused() {
    let scratch = Scratch::new();
    for (options, why) in [
        (&["-s", "load", "--batch", "4"][..], "--batch: none of the selected scenarios uses it"),
        (&["-s", "queries", "--use-cache", "false"], "--use-cache: none of the selected scenarios uses it"),
        (&["-s", "decode", "--depth", "0", "--padding", "left"], "each request has one sequence"),
        (&["-s", "decode", "--prompt", ""], "the text is empty"),
    ] {
        for mode in [&[][..], &["--dry-run"]] {
            let mut command = scratch.orchestrate();
            command.arg("-e").arg(scratch.engine("one", "")).args(options).args(mode);
            let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(2);
            assert!(without_line_breaks(&outcome.stderr).contains(why), "{why}: {}", outcome.stderr);
        }
    }
    // A scenario beside them may use it.
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", "")).args(["-s", "load,decode", "--batch", "4", "--dry-run"]);
    finish(&mut command).exits_with(0);
}
