//! Engines that compute only a part of each prompt. Runs find them by measured prompts whose next token depends on
//! their first half.

use std::process::Command;

use serde_json::Value;

use crate::support::run::{Run, store_answers_of};
use crate::support::{Scratch, copy_program, fake_engine, finish};

/// A fake model whose next token does not depend on the random ids at the start of a prompt, as in a trained model.
const MODEL: &str = "--ignored-ids 4";
const RIGHT: &str = "right";
const PARTS: [&str; 4] = ["half", "start_and_half", "last_200", "last_64"];

/// Adds the engine `right`, and an engine for each part.
fn add_engines(scratch: &Scratch, command: &mut Command) {
    command.arg("-e").arg(scratch.engine(RIGHT, MODEL));
    for part in PARTS {
        command.arg("-e").arg(scratch.engine(part, &format!("{MODEL} --computed-part {part}")));
    }
}

fn assert_only_partial_engines_are_wrong(run: &Run) {
    for part in PARTS {
        assert_eq!(run.status(part), "wrong", "{part}: {}", run.report["outputs"]);
        let reasons = run.status_reasons(part).concat();
        let expected = "depends on their first half: ";
        assert!(reasons.contains(expected) && reasons.contains("are those to a shorter prompt"), "{reasons}");
    }
    assert_ne!(run.status(RIGHT), "wrong", "{}", run.report["outputs"]);
    let dependent = run.record.samples_of(RIGHT).into_iter().filter(|it| !it["next"].is_null());
    let answers: Vec<(&Value, &Value)> = dependent
        .map(|it| (&it["next"]["token"], &it["iteration"]["sequences"][0]["output_ids"][0]))
        .collect();
    assert!(answers.len() > 10 && answers.iter().all(|(next, answer)| next == answer), "{answers:?}");
}

#[test]
fn stored_dependent_prompts_find_engines_that_compute_a_part_of_each_prompt() {
    let scratch = Scratch::new();
    let stored = store_answers_of(&scratch, MODEL, &["--force"]).exits_with(0);
    for tokens in [128, 512, 1024] {
        let line = format!("{tokens} tokens: the next token depends on the first half of 8 prompts\n");
        assert!(stored.stdout.contains(&line), "{}", stored.stdout);
    }
    let mut command = scratch.orchestrate();
    // No verifier can run here, so the prompts must come from the stored file.
    command.env_remove("ORCHESTRATE_VERIFIER").arg("-m").arg(scratch.join("model"));
    add_engines(&scratch, &mut command);
    command.args(["--blocks", "5", "--json", "-"]).arg("--results").arg(scratch.results());
    assert_only_partial_engines_are_wrong(&Run::of(&scratch, finish(&mut command)));
}

#[test]
fn the_verifier_finds_dependent_prompts_once_for_each_model_and_stores_them() {
    let scratch = Scratch::outside_checkout();
    let sage = r#"
    about = "verifies"
    binary = "sage-engine"
    reference = true
    [presets.default]
    about = "the only one"
    options = { ignored_ids = 4 }
    "#;
    scratch.write_tree(&[("sage", sage)]);
    let programs = scratch.join("target/release");
    std::fs::create_dir_all(&programs).unwrap();
    copy_program(fake_engine(), &programs.join("sage-engine"));
    store_answers_of(&scratch, MODEL, &["--force"]).exits_with(0);
    let model = scratch.join("model");
    std::fs::remove_file(model.join("dependent-prompts.json")).unwrap();
    let run = |options: &[&str]| {
        let _ = std::fs::remove_dir_all(scratch.results());
        let mut command = scratch.orchestrate_without_checkout();
        command.env_remove("ORCHESTRATE_VERIFIER").arg("-m").arg(&model).args(["-s", "ttft,prefill"]);
        add_engines(&scratch, &mut command);
        command.args(["--blocks", "2", "--json", "-"]).args(options).arg("--results").arg(scratch.results());
        Run::of(&scratch, finish(&mut command))
    };
    let found = "finding prompts with sage (verifier), to check whether engines compute whole prompts";
    let first = run(&[]);
    first.outcome.assert_stderr(&[found]);
    assert_only_partial_engines_are_wrong(&first);
    let stored = std::fs::read_dir(scratch.join("home/dependent-prompts")).unwrap().count();
    assert_eq!(stored, 1);
    let second = run(&[]);
    assert!(!second.outcome.stderr.contains(found), "{}", second.outcome.stderr);
    assert_only_partial_engines_are_wrong(&second);
}
