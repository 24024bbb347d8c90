//! Engines that compute only a part of each prompt. Runs find them by measured prompts whose next token depends on their first
//! half, and by the times of both kinds of prompts.

use serde_json::Value;

use crate::support::run::Run;
use crate::support::{Scratch, finish};

/// A fake model whose next token depends only on the last ids, as in a trained model, unless a prompt repeats a pattern.
const MODEL: &str = "--ignored-ids 4 --looks-back 32";
/// A prompt of 1,024 tokens takes 20 ms, and one of 64 tokens 2.3 ms.
const TIMES: &str = "--first-token-ns 1000000 --per-prompt-token-ns 20000";
const RIGHT: &str = "right";

/// Runs the engine `right` and these, each with its name and its settings.
fn run(scratch: &Scratch, engines: &[(&str, String)], options: &[&str]) -> Run {
    let _ = std::fs::remove_dir_all(scratch.results());
    let mut command = scratch.orchestrate();
    for (name, settings) in [(RIGHT, String::new())].iter().chain(engines) {
        command.arg("-e").arg(scratch.engine(name, &format!("{MODEL} {TIMES} {settings}")));
    }
    command.arg("--verifier").arg(scratch.engine("verifier", MODEL));
    command.args(["--json", "-"]).args(options).arg("--results").arg(scratch.results());
    Run::of(scratch, finish(&mut command))
}

/// The times to the first token of an engine's measured prompts of a workload.
fn first_token_ns(run: &Run, label: &str) -> Vec<u64> {
    let samples = run.record.samples_of(label).into_iter();
    let time = |it: &Value| {
        let iteration = &it["iteration"];
        let first = iteration["sequences"][0]["token_ns"][0].as_u64().unwrap();
        first - iteration["start_ns"].as_u64().unwrap()
    };
    samples.map(time).collect()
}

#[test]
fn engines_that_compute_a_part_of_each_prompt_are_wrong() {
    let parts = ["half", "start_and_half", "last_200", "last_64"];
    let engines = parts.map(|part| (part, format!("--computed-part {part}")));
    let run = run(&Scratch::new(), &engines, &["--blocks", "5"]);
    for part in parts {
        assert_eq!(run.status(part), "wrong", "{part}: {}", run.report["outputs"]);
        let reasons = run.status_reasons(part).concat();
        assert!(
            reasons.contains("it computes only a part of each prompt, or computes long prompts wrong. "),
            "{reasons}"
        );
    }
    assert_eq!((run.status(RIGHT), run.contradictions_of(RIGHT)), ("exact", Vec::new()));
    let samples = run.record.samples_of(RIGHT);
    let dependent = samples.iter().filter(|it| it["dependent"] == true).count();
    let long = samples
        .iter()
        .filter(|it| it["iteration"]["sequences"][0]["output_ids"].as_array().unwrap().len() == 1);
    assert!(dependent * 5 > long.count(), "{dependent}");
}

#[test]
fn engines_that_compute_a_part_of_one_kind_of_prompts_are_found() {
    let engines =
        ["text", "patterns"].map(|kind| (kind, format!("--computed-part last_64 --partial-prompts {kind}")));
    let run =
        run(&Scratch::new(), &engines, &["--blocks", "5", "-s", "ttft,prefill", "--prompt-tokens", "512"]);
    // After text, the tokens are right. Only the times show that the engine computes less.
    assert_ne!(run.status("text"), "wrong", "{}", run.report["outputs"]);
    let assert_named = |name: &str, words: &str| {
        let contradictions = run.contradictions_of(name).concat();
        assert!(contradictions.contains(words), "{}", run.report["warnings"]);
    };
    assert_named("text", "but answers prompts of text ");
    assert_named("patterns", "but answers prompts of a repeated pattern ");
    assert_eq!(run.status("patterns"), "wrong");
    assert_eq!(run.contradictions_of(RIGHT), Vec::<&str>::new());
}

#[test]
fn answers_stored_without_the_first_ids_fit_few_prompts_of_a_new_run() {
    let scratch = Scratch::new();
    let folder = scratch.join("answers");
    std::fs::create_dir(&folder).unwrap();
    let keeps = format!("--answers-folder '{}' --answers-ignore-ids 5", folder.display());
    let engines = [("keeps", keeps)];
    let options = ["--blocks", "3", "-s", "ttft,prefill", "--prompt-tokens", "512"];
    let computed_ns = 1_000_000 + 512 * 20_000;
    let kept_and_all = |run: &Run| {
        let times = first_token_ns(run, "keeps");
        (times.iter().filter(|ns| **ns < computed_ns).count(), times.len())
    };
    for _ in 0..3 {
        let (kept, all) = kept_and_all(&run(&scratch, &engines, &options));
        // Two windows of the text may begin at the same place.
        assert!(kept * 5 < all, "{kept} of {all}");
    }
    let same_nonce = ["--nonce", "5"].into_iter().chain(options).collect::<Vec<_>>();
    run(&scratch, &engines, &same_nonce);
    let (kept, all) = kept_and_all(&run(&scratch, &engines, &same_nonce));
    assert_eq!(kept, all);
}
