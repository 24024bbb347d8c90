//! `orchestrate recommend`: a recommendation from a run of invented engines, and the same from its record.

use crate::support::record::{Record, files};
use crate::support::{Outcome, Scratch, copy_program, fake_engine, finish, root, without_line_breaks};

/// The verifier, slow and in f32.
const STEADY: &str = r#"
    about = "verifies"
    binary = "steady-engine"
    reference = true
    [presets.default]
    about = "slow"
    options = { first_token_ns = 9000000, per_token_ns = 400000 }
"#;
/// An engine with a preset of a lower precision, and a preset with another speed in the same precision.
const SWIFT: &str = r#"
    about = "fast"
    binary = "swift-engine"
    [presets.default]
    about = "f32"
    options = { first_token_ns = 3000000, per_token_ns = 100000 }
    [presets.small]
    about = "weights in 8 bits"
    dtype = "q8_0"
    options = { first_token_ns = 1000000, per_token_ns = 20000, score_noise = 0.01 }
    [presets.spinning]
    about = "the same numbers with more threads"
    options = { per_token_ns = 1 }
"#;
/// The fastest engine, whose log-probabilities are wrong.
const BROKEN: &str = r#"
    about = "fast and wrong"
    binary = "broken-engine"
    [presets.default]
    about = "wrong"
    options = { first_token_ns = 1000, per_token_ns = 10, score_offset = -3.0 }
"#;
const ABSENT: &str = r#"
    about = "not built"
    binary = "absent-engine"
    [build]
    package = "absent-engine"
"#;

fn tree() -> Scratch {
    let scratch = Scratch::outside_checkout();
    scratch.write_tree(&[("steady", STEADY), ("swift", SWIFT), ("broken", BROKEN), ("absent", ABSENT)]);
    let programs = scratch.join("target/release");
    std::fs::create_dir_all(&programs).unwrap();
    for name in ["steady", "swift", "broken"] {
        copy_program(fake_engine(), &programs.join(format!("{name}-engine")));
    }
    scratch
}

fn recommend(scratch: &Scratch, options: &[&str]) -> Outcome {
    let mut command = scratch.orchestrate_without_checkout();
    command.env_remove("ORCHESTRATE_VERIFIER").arg("recommend").args(options);
    finish(command.arg("--results").arg(scratch.results()))
}

fn measure(scratch: &Scratch, options: &[&str]) -> Outcome {
    // The stored reference answers of the embedded model do not fit invented engines.
    let short =
        ["-s", "ttft,decode", "--blocks", "5", "--iterations", "1", "--warmup", "1", "--verifier", "steady"];
    let model = root().join("models/embedded");
    let options = [&short, options, &["-m", model.to_str().unwrap()]].concat();
    recommend(scratch, &options)
}

/// The text from the recommendation on, on one line.
fn recommendation(outcome: &Outcome) -> String {
    let at = outcome.stdout.find("recommendation for the latency of a chat").expect("no recommendation");
    without_line_breaks(&outcome.stdout[at..])
}

#[test]
fn engines_that_are_set_up_are_measured_in_each_precision_and_the_best_verified_is_recommended() {
    let scratch = tree();
    let outcome = measure(&scratch, &[]);
    let text = recommendation(&outcome);
    let record = Record::only_one_in(&scratch.results());
    let rows: Vec<&str> = record.0[0]["plan"]["configurations"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it.get("role").is_none())
        .map(|it| it["label"].as_str().unwrap())
        .collect();
    assert_eq!(rows, ["absent", "broken", "steady", "swift", "swift:small"]);
    assert!(text.contains("use: `swift:small` (q8_0"), "{text}");
    assert!(text.contains("best without quantization: `swift` (f32"), "{text}");
    assert!(text.contains("best at a lower precision: the same, `swift:small`"), "{text}");
    assert!(text.contains(" nats, and its output agrees with the verifier"), "{text}");
    assert!(text.contains("not recommended: `broken`: its output is wrong"), "{text}");
    assert!(
        text.contains("not tried: `absent` is not set up; hint: `./bin/orchestrate setup absent`"),
        "{text}"
    );
    assert!(text.contains("not tried: throughput, because it needs batches"), "{text}");
    let untried = "not tried: the presets `swift:spinning`; hint: `./bin/orchestrate recommend --presets`";
    assert!(text.contains(untried), "{text}");
    // The output has the table too.
    assert!(
        outcome.stdout.starts_with("model embedded")
            || outcome.stdout.contains("TTFT")
            || outcome.stdout.contains("decode")
    );
    let file = files(&scratch.results()).remove(0);
    let again = recommend(&scratch, &["--record", file.to_str().unwrap()]).exits_with(0);
    // Only the evidence differs: for a record that the user names, it has the file.
    let without_evidence = |text: &str| text.split("evidence: ").next().unwrap().to_string();
    let recommended = without_evidence(&recommendation(&again));
    assert_eq!(recommended, without_evidence(&text), "the record gives the same recommendation");
    assert!(again.stdout.starts_with("recommendation for the latency of a chat"), "{}", again.stdout);
    let json =
        recommend(&scratch, &["--record", file.to_str().unwrap(), "--format", "json"]).exits_with(0).json();
    assert_eq!(json["models"][0]["best"]["engine"], "swift:small");
    assert_eq!(json["models"][0]["without_quantization"]["engine"], "swift");
}

#[test]
fn a_recommendation_without_ttft_says_so_and_the_budget_is_named_before_the_run() {
    let scratch = tree();
    let model = root().join("models/embedded");
    let words = ["-e", "swift", "-s", "decode", "--iterations", "1", "--warmup", "1", "--verifier", "steady"];
    let options = [&words[..], &["--interval", "50%", "-m", model.to_str().unwrap()]].concat();
    let outcome = recommend(&scratch, &options);
    let text = recommendation(&outcome);
    let incomplete = "incomplete: the record has no TTFT, so only the decode rate counts; hint: measure with `-s ttft,decode`";
    assert!(text.contains(incomplete), "{text}");
    outcome.assert_stderr(&[
        "2 configurations can be measured; the time budget is 3 min, or that of `--budget`\n",
    ]);
}

#[test]
fn without_verified_output_no_engine_is_recommended_and_the_exit_code_says_so() {
    let scratch = tree();
    let outcome = measure(&scratch, &["-e", "broken"]).exits_with(4);
    assert!(recommendation(&outcome).contains("use: no engine can be recommended"), "{}", outcome.stdout);
}

#[test]
fn a_dry_run_lists_the_precisions_and_starts_nothing() {
    let scratch = tree();
    let outcome = recommend(&scratch, &["--dry-run"]).exits_with(0);
    outcome.assert_stdout(&["swift:small", "steady"]);
    assert!(!outcome.stdout.contains("spinning"), "{}", outcome.stdout);
    assert!(files(&scratch.results()).is_empty());
    let all = recommend(&scratch, &["--dry-run", "--presets"]).exits_with(0);
    all.assert_stdout(&["swift:spinning", "the default time budget is 3 min"]);
}

#[test]
fn options_that_a_recommendation_cannot_use_are_refused() {
    let scratch = tree();
    for flags in [
        &["--verifier", "none"][..],
        &["--mode", "one-shot"],
        &["--order", "sequential"],
        &["--save-baseline", "x"],
        &["--format", "csv"],
        &["--fail-on", "warning"],
        &["--record", "x.jsonl", "--sort", "decode"],
    ] {
        let outcome = recommend(&scratch, flags).exits_with(2);
        assert!(outcome.stderr.contains(flags[0]), "{}", outcome.stderr);
    }
    recommend(&scratch, &["--record", "no/such/record.jsonl"]).exits_with(5);
}

#[test]
fn explain_without_a_record_explains_the_latest_one() {
    let scratch = tree();
    let orchestrate = |arguments: &[&str]| finish(scratch.orchestrate_without_checkout().args(arguments));
    orchestrate(&["explain", "steady"]).exits_with(2).assert_stderr(&["no run record in", "hint: "]);
    // The terms need no record.
    let terms = orchestrate(&["explain"]).exits_with(0);
    terms.assert_stdout(&[
        "\n- *: ratio of paired rounds",
        "\n- inconclusive: ",
        "\n- TTFT: ",
        "\n- no time: ",
    ]);
    let star = orchestrate(&["explain", "*"]).exits_with(0).stdout;
    assert!(star.contains("- *: ratio of paired rounds") && !star.contains("TTFT"), "{star}");
    orchestrate(&["explain", "noise", "floor"])
        .exits_with(0)
        .assert_stdout(&["- noise floor: the smallest difference"]);
    let model = root().join("models/embedded");
    let run = [
        "-s",
        "decode",
        "--depth",
        "0",
        "--blocks",
        "1",
        "--iterations",
        "1",
        "-m",
        model.to_str().unwrap(),
        "-e",
    ];
    for engine in ["steady", "swift:small"] {
        orchestrate(&[&run[..], &[engine]].concat()).exits_with(0);
    }
    let outcome = orchestrate(&["explain", "swift:small", "decode"]).exits_with(0);
    outcome.assert_stdout(&["`swift:small` `decode`", "1 measured request in 1 launch"]);
    let outcome = orchestrate(&["explain", "swfit:small"]).exits_with(2);
    outcome
        .assert_stderr(&["no engine or case `swfit:small`", "hint: ./bin/orchestrate explain swift:small"]);
    orchestrate(&["explain"])
        .exits_with(0)
        .assert_stdout(&["columns", "decode: generated tokens per second"]);
}

#[test]
fn the_evidence_of_a_recommendation_names_its_record() {
    let record = root().join("results/curated/embedded.jsonl");
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.env_remove("ORCHESTRATE_VERIFIER").args(["recommend", "--record"]).arg(&record);
    let outcome = finish(&mut command).exits_with(0);
    let evidence = format!("evidence: `orchestrate explain lmrs {}`", record.display());
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&outcome.stdout).contains(&words(&evidence)), "{outcome:?}");
}
