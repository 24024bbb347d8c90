//! Engines without log-probabilities: the verifier checks the tokens alone, or reads them from the text of an engine that gives
//! no ids.

use serde_json::Value;

use crate::support::run::{Run, Verifier, run, run_with_verifier};

/// Takes and gives text by the model's own tokenizer.
const TALKER: &str = r#"--output text --models-tokenizer true --capabilities '{"stream":false,"prompt_ids":false,"score":false}'"#;

/// Engines that take and give text, each with its further settings.
fn run_talkers(talkers: &[(&str, &str)]) -> Run {
    let settings: Vec<String> = talkers.iter().map(|(_, settings)| format!("{TALKER} {settings}")).collect();
    let engines: Vec<(&str, &str)> =
        talkers.iter().zip(&settings).map(|((name, _), settings)| (*name, settings.as_str())).collect();
    run_with_verifier(&engines)
}

/// The ids that the verifier read from the texts of an engine, by sample.
fn read_ids<'a>(run: &'a Run, label: &str) -> Vec<&'a Value> {
    let launches: Vec<_> = run.record.launches_of(label).iter().map(|it| &it["launch"]).collect();
    let checked = run.record.entries("checked_output").into_iter();
    checked.filter(|it| launches.contains(&&it["launch"])).map(|it| &it["read"]["ids"]).collect()
}

#[test]
fn the_text_of_a_correct_engine_agrees_and_the_verifier_reads_all_its_tokens() {
    let writer = r#"--output text --models-tokenizer true --capabilities '{"stream":false,"score":false}'"#;
    let run = run_with_verifier(&[("talker", TALKER), ("writer", writer), ("right", "")]);
    for name in ["talker", "writer"] {
        assert_eq!((run.status(name), run.status_reasons(name)), ("text_agrees", vec![]), "{name}");
        let read = read_ids(&run, name);
        assert!(!read.is_empty() && read.iter().all(|ids| ids.as_array().unwrap().len() == 64), "{read:?}");
    }
    assert_eq!(run.status("right"), "exact");
    // The ids of an engine that got the same prompts as ids are known.
    let samples = run.record.entries("sample").into_iter();
    let right: Vec<&Value> = samples.map(|it| &it["iteration"]["sequences"][0]["output_ids"]).collect();
    assert!(read_ids(&run, "writer").iter().all(|ids| right.contains(ids)), "{right:?}");
    // A row with this status has a rank.
    run.assert_measured("talker").assert_measured("writer");
    assert!(!run.report["notes"].to_string().contains("unverified"), "{}", run.report["notes"]);
}

#[test]
fn a_text_that_the_model_would_not_write_is_wrong() {
    let wrong = [
        ("other-model", "--wrong-from 0"),
        ("later", "--wrong-from 30"),
        ("forgets", "--ignored-ids 3"),
        ("drops", "--dropped-words 3"),
    ];
    let run = run_talkers(&wrong);
    for (name, _) in wrong {
        assert_eq!(run.status(name), "wrong", "{name}: {:?}", run.status_reasons(name));
    }
    assert!(
        run.status_reasons("other-model")[0].contains("less likely"),
        "{:?}",
        run.status_reasons("other-model")
    );
    let drops = run.status_reasons("drops").join("; ");
    assert!(drops.contains("prompt tokens in `decode` sample"), "{drops}");
}

#[test]
fn an_engine_that_reports_other_counts_than_those_of_its_text_is_wrong() {
    let run = run_talkers(&[("half", "--fault half_of_text"), ("longer", "--fault wrong_prompt_tokens")]);
    let half = run.status_reasons("half");
    assert_eq!(run.status("half"), "wrong");
    assert!(half[0].starts_with("it reports 64 tokens in `decode` sample"), "{half:?}");
    assert!(half[0].ends_with("whose text has 32"), "{half:?}");
    let longer = run.status_reasons("longer");
    assert!(run.status("longer") == "wrong" && longer[0].starts_with("expected "), "{longer:?}");
}

#[test]
fn other_tokens_at_near_ties_agree_in_16_bits_and_are_wrong_in_f32() {
    let rounded =
        r#"--capabilities '{"score":false}' --near-ties 1.0 --rounding '{"bf16":0.05}' --computes-in bf16"#;
    let bf16 = format!(r#"{rounded} --loaded '{{"weights_dtype":"bf16","compute_dtype":"bf16"}}'"#);
    let run = run(&[("bf16", &bf16), ("f32", rounded)], Verifier::Engine("--near-ties 1.0"), &[]);
    let mut checked = run.record.entries("checked_output").into_iter();
    assert!(checked.any(|it| it["differing"].is_array()), "the rounding changed no token");
    assert_eq!(run.status("bf16"), "tokens_agree", "{:?}", run.status_reasons("bf16"));
    assert_eq!(run.status("f32"), "wrong", "{:?}", run.status_reasons("f32"));
}

#[test]
fn a_text_that_the_verifier_may_divide_in_another_way_is_never_wrong_in_16_bits() {
    let rounded = r#"--near-ties 1.0 --rounding '{"bf16":0.05}' --computes-in bf16"#;
    let bf16 = format!(r#"{TALKER} {rounded} --loaded '{{"weights_dtype":"bf16","compute_dtype":"bf16"}}'"#);
    let other = format!("{bf16} --wrong-from 0");
    let run = run(&[("bf16", &bf16), ("other", &other)], Verifier::Engine("--near-ties 1.0"), &[]);
    assert_ne!(run.status("bf16"), "wrong", "{:?}", run.status_reasons("bf16"));
    // The text of another model is not verified either.
    let reasons = run.status_reasons("other").join("; ");
    assert_eq!(run.status("other"), "unverified", "{reasons}");
    assert!(reasons.contains("less likely") && reasons.contains("gives only text and rounds"), "{reasons}");
}

#[test]
fn the_tokens_of_an_engine_without_scores_agree_or_are_wrong() {
    let mute = r#"--capabilities '{"score":false}'"#;
    let wrong = format!("{mute} --wrong-from 30");
    let run = run_with_verifier(&[("mute", mute), ("wrong", &wrong)]);
    assert_eq!((run.status("mute"), run.status_reasons("mute")), ("tokens_agree", vec![]));
    assert_eq!(run.status("wrong"), "wrong");
}

#[test]
fn few_tokens_without_scores_verify_nothing() {
    let mute = r#"--capabilities '{"score":false}'"#;
    let one = run(&[("mute", mute), ("talker", TALKER)], Verifier::Engine(""), &["--new-tokens", "3"]);
    assert_eq!(one.status("talker"), "unverified");
    let reasons = one.status_reasons("talker");
    assert!(
        reasons[0].contains("32 of its tokens must be compared")
            && reasons[0].ends_with("hint: `--new-tokens 32`"),
        "{reasons:?}"
    );
}
