//! The scenario `speculative`: requests in which an engine drafts tokens, beside the same requests without drafts.

use serde_json::Value;

use crate::support::run::{Run, Verifier, run_selected};
use crate::support::{Scratch, fake_engine, finish};

/// One block of two rounds, without warm-up.
const SHORT: &[&str] =
    &["-s", "speculative", "--blocks", "1", "--iterations", "2", "--warmup", "0", "--json", "-"];
/// The times of an engine whose tokens take longer than the noise of a machine.
const TIMES: &str = "--per-token-ns 500000";

fn estimate(case: &Value, metric: &str) -> Option<f64> {
    let metrics = case["metrics"].as_array().unwrap();
    metrics.iter().find(|it| it["metric"] == metric)?["estimate"].as_f64()
}

fn labels(run: &Run) -> Vec<&str> {
    run.report["cases"].as_array().unwrap().iter().map(|case| case["case"].as_str().unwrap()).collect()
}

#[test]
fn drafts_on_repeated_and_natural_text_have_rows_beside_those_without_drafts() {
    let run = run_selected(&[("one", TIMES)], Verifier::None, SHORT);
    assert_eq!(
        labels(&run),
        [
            "speculative no drafts",
            "speculative no drafts repeated",
            "speculative prompt lookup",
            "speculative prompt lookup repeated"
        ]
    );
    let cases = run.report["cases"].as_array().unwrap();
    // 127 tokens after the first in 32 steps, each with a draft of four.
    let accepted = Some(95.0 / 128.0);
    for (case, acceptance) in cases.iter().zip([None, None, accepted, accepted]) {
        assert_eq!((&case["headline"], &case["failure"]), (&"effective_rate".into(), &Value::Null));
        assert_eq!(estimate(case, "acceptance"), acceptance, "{case}");
        // The rate of drafted tokens is never shown as that of a plain decode.
        assert_eq!(estimate(case, "decode_rate"), None);
        assert_eq!(estimate(case, "inter_token").is_some(), acceptance.is_none(), "{case}");
    }
    // Drafts get the prompts of the requests without drafts.
    let samples = run.record.samples_of("one");
    let prompts = |case: u64| -> Vec<&Value> {
        let of_case = samples.iter().filter(|it| it["case"] == case);
        of_case.map(|it| &it["prompt_hash"]).collect()
    };
    assert_eq!((prompts(0), prompts(1)), (prompts(2), prompts(3)));
    assert_ne!(prompts(0), prompts(1));
    // Each step gives the three accepted tokens of a draft and one more.
    let gain =
        estimate(&cases[3], "effective_rate").unwrap() / estimate(&cases[1], "effective_rate").unwrap();
    assert!((3.5..4.5).contains(&gain), "{gain}");
}

#[test]
fn the_gain_of_drafts_is_a_row_with_an_interval() {
    let options = ["-s", "speculative", "--blocks", "5", "--iterations", "2", "--warmup", "0", "--json", "-"];
    let run = run_selected(&[("one", TIMES)], Verifier::None, &options);
    let settings = run.report["settings"].as_array().unwrap();
    let sides: Vec<(&str, &str)> =
        settings.iter().map(|it| (it["case"].as_str().unwrap(), it["against"].as_str().unwrap())).collect();
    let lookup = "speculative prompt lookup";
    let expected = [
        (lookup.to_string(), "speculative no drafts".to_string()),
        (format!("{lookup} repeated"), "speculative no drafts repeated".to_string()),
    ];
    assert_eq!(sides, expected.each_ref().map(|(case, against)| (&**case, &**against)));
    for gain in settings {
        let number = |name: &str| gain[name].as_f64().unwrap_or_else(|| panic!("{name}: {gain}"));
        assert_eq!(
            (&gain["setting"], &gain["value"], &gain["metric"], &gain["verdict"]),
            (&"speculation".into(), &"prompt lookup".into(), &"effective_rate".into(), &"faster".into())
        );
        // Each step gives four tokens in place of one.
        assert!(number("low") <= number("ratio") && number("ratio") <= number("high"), "{gain}");
        assert!((3.0..5.0).contains(&number("ratio")), "{gain}");
    }
}

#[test]
fn an_engine_that_cannot_draft_has_unsupported_rows_and_is_measured_without_drafts() {
    let settings = r#"--capabilities '{"speculation":[]}'"#;
    let run = run_selected(&[("plain", settings)], Verifier::None, SHORT);
    let cases = run.report["cases"].as_array().unwrap();
    let why = "the scenario needs the speculation `prompt_lookup`, and this engine does not support it";
    for case in &cases[2..] {
        assert_eq!(
            (&case["failure"]["kind"], &case["failure"]["message"]),
            (&"unsupported".into(), &why.into())
        );
    }
    assert!(cases[..2].iter().all(|case| estimate(case, "effective_rate").is_some()), "{cases:?}");
}

#[test]
fn drafts_are_compared_between_engines_and_not_with_the_rows_without_drafts() {
    let run = run_selected(&[("one", TIMES), ("other", TIMES)], Verifier::None, SHORT);
    let comparisons = run.report["comparisons"].as_array().unwrap();
    let metrics = |case: &str| -> Vec<&str> {
        let of_case = comparisons.iter().filter(|it| it["case"] == case);
        of_case.map(|it| it["metric"].as_str().unwrap()).collect()
    };
    for label in labels(&run) {
        assert!(metrics(label).contains(&"effective_rate"), "{label}: {comparisons:?}");
        assert!(!metrics(label).contains(&"decode_rate"), "{label}");
    }
}

#[test]
fn the_screen_has_drafts_on_repeated_text_and_the_share_of_accepted_ones() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", TIMES)).arg("-e").arg(scratch.engine("other", TIMES));
    command.args(&SHORT[..SHORT.len() - 2]);
    let outcome = finish(command.arg("--results").arg(scratch.results())).exits_with(0);
    let words = outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains("accepted peak engine dtype @no drafts @no drafts repeated @prompt lookup repeated @prompt lookup repeated")
            && words.contains(" 74.2 "),
        "{}",
        outcome.stdout
    );
}

#[test]
fn each_share_of_accepted_drafts_names_its_case() {
    let scratch = Scratch::new();
    let mut command = scratch.orchestrate();
    command.arg("-e").arg(scratch.engine("one", TIMES)).args(&SHORT[..SHORT.len() - 2]);
    command.args(["--format", "markdown", "--results"]);
    let outcome = finish(command.arg(scratch.results())).exits_with(0);
    let head = outcome.stdout.lines().find(|line| line.contains("accepted")).unwrap();
    let titles: Vec<&str> = head.split(" | ").filter(|title| title.contains("accepted")).collect();
    assert_eq!(titles, ["accepted @prompt lookup %", "accepted @prompt lookup repeated %"], "{head}");
    // Beside another scenario with drafts, the title has the whole name of the case.
    let file = scratch.join("run.toml");
    std::fs::write(&file, "[scenarios.mine]\nlike = \"speculative\"\nprompts = \"natural\"\n").unwrap();
    let mut command = scratch.orchestrate();
    command
        .arg("run")
        .arg(&file)
        .arg("-e")
        .arg(scratch.engine("one", TIMES))
        .args(["-s", "mine,speculative"]);
    command.args(&SHORT[2..SHORT.len() - 2]).args(["--format", "markdown", "--results"]);
    let outcome = finish(command.arg(scratch.join("several"))).exits_with(0);
    assert!(outcome.stdout.contains("| accepted mine prompt lookup % |"), "{outcome:?}");
}

#[test]
fn the_option_needs_a_scenario_with_drafts() {
    let mut command = Scratch::new().orchestrate();
    command.arg("-e").arg(fake_engine()).args(["-s", "decode", "--speculation", "prompt_lookup"]);
    let outcome = finish(&mut command).exits_with(2);
    outcome.assert_stderr(&["--speculation: none of the selected scenarios uses it"]);
    let scratch = Scratch::new();
    let file = scratch.join("run.toml");
    let text =
        "scenario = [\"mine\"]\n[scenarios.mine]\nlike = \"decode\"\nspeculation = [\"prompt_lookup\"]\n";
    std::fs::write(&file, text).unwrap();
    let mut command = scratch.orchestrate();
    let outcome = finish(command.arg("run").arg(&file).arg("-e").arg(fake_engine())).exits_with(2);
    outcome.assert_stderr(&["`scenarios.mine`: `speculation`: no scenario like this one has this setting"]);
}
