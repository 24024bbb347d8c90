use super::*;
use crate::analysis::compare::matching::matching;
use crate::plan::Selection;
use crate::plan::axes::AxisValues;
use crate::record::specimen::timed::{measured, selection};
use stats::MIN_VERDICT_BLOCKS;

fn record() -> RunRecord {
    record_of(&selection(&["a"], &["decode"]))
}

fn record_of(selection: &Selection) -> RunRecord {
    measured(selection, MIN_VERDICT_BLOCKS as u32, |_| Some(2.0))
}

fn texts(base: &RunRecord, new: &RunRecord) -> Vec<String> {
    let found =
        differences(&Values::of(base), &Values::of(new), &matching(&base.header.plan, &new.header.plan));
    found.iter().map(ToString::to_string).collect()
}

/// The differences between a record and the same record after a change.
fn after_change(change: impl Fn(&mut RunRecord)) -> Vec<String> {
    let (base, mut new) = (record(), record());
    change(&mut new);
    texts(&base, &new)
}

#[test]
fn a_record_is_comparable_with_itself_and_with_a_record_of_other_settings() {
    assert!(after_change(|_| ()).is_empty());
    let differences = after_change(|new| {
        let plan = &mut new.header.plan;
        let it = &mut plan.configurations[0];
        (it.engine, it.label) = ("b".into(), "b".into());
        (it.dtype, it.threads) = (Some("bf16".into()), 8);
        (plan.cases[0].workload.rounds, plan.cases[0].workload.warmup) = (9, Some(1));
        new.header.machine.kernel = Some("6.9".into());
        new.launches.iter_mut().for_each(|it| it.hello.as_mut().unwrap().version = "2.0".into());
        new.samples.truncate(4);
    });
    assert!(differences.is_empty(), "{differences:?}");
}

#[test]
fn a_record_of_another_machine_is_refused_and_the_difference_named() {
    let found = after_change(|new| new.header.machine.cpu.model = Some("Xeon\u{1b}[2J".into()));
    assert_eq!(found, ["CPU: base `AMD EPYC`, new `Xeon`"]);
    let found = after_change(|new| new.header.machine.memory_bytes = Some(32 << 30));
    assert_eq!(found, ["memory: base `64 GiB`, new `32 GiB`"]);
}

#[test]
fn other_weights_of_the_same_name_are_refused() {
    let found = after_change(|new| new.header.plan.configurations[0].model.identity = Some("def".into()));
    assert_eq!(found, ["weights: base `embedded (abc)`, new `embedded (def)`"]);
    let found = after_change(|new| new.header.plan.configurations[0].model.identity = None);
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn lengths_of_files_with_one_name_and_other_content_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chat.csv");
    let with_lengths = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let mut record = record();
        record.header.plan.cases[0].workload.shape.lengths = path.to_str().unwrap().parse().unwrap();
        record
    };
    let [base, same, other] = ["8,2\n", "8,2\n", "8,3\n"].map(with_lengths);
    assert_eq!(texts(&base, &same), [""; 0]);
    let found = texts(&base, &other);
    assert!(found.len() == 1 && found[0].starts_with("file of lengths of decode: base `"), "{found:?}");
}

#[test]
fn other_prompts_and_token_counts_are_refused_with_their_block_and_round() {
    let found = after_change(|new| new.samples[4].prompt_hash = "other".into());
    let expected = "text, tokenizer, lengths or seed of prompts of decode (block 1, round 1): base `digest decode 1 1`, new `digest other`";
    assert_eq!(found, [expected]);
    let found = after_change(|new| new.samples[0].iteration.sequences[0].prompt_tokens = 45);
    let expected = "tokens of decode (block 0, round 0): base `32 + 64`, new `45 + 64`";
    assert_eq!(found, [expected]);
    let found = after_change(|new| {
        new.header.plan.seed = 7;
        new.samples.iter_mut().for_each(|it| it.prompt_hash.push('7'));
    });
    assert_eq!(found, ["prompts of decode: base `seed 0`, new `seed 7`"]);
}

/// The record of another run with the same recipe: each prompt differs, and has this many tokens.
fn with_other_nonce(new: &mut RunRecord, prompt_tokens: impl Fn(usize) -> u32) {
    new.header.plan.nonce = Some(7);
    for (index, sample) in new.samples.iter_mut().enumerate() {
        sample.recipe_hash = Some(std::mem::replace(&mut sample.prompt_hash, format!("prompt {index}")));
        sample.iteration.sequences[0].prompt_tokens = prompt_tokens(index);
    }
}

#[test]
fn runs_with_different_nonces_are_comparable_if_the_recipe_of_their_prompts_is_the_same() {
    assert_eq!(after_change(|new| with_other_nonce(new, |_| 32)), [""; 0]);
    let mut first = record();
    with_other_nonce(&mut first, |_| 32);
    let mut second = first.clone();
    second.header.plan.nonce = Some(8);
    second.samples.iter_mut().for_each(|it| it.prompt_hash.push('8'));
    assert_eq!(texts(&first, &second), [""; 0]);
    // Another text, tokenizer or length.
    second.samples.iter_mut().for_each(|it| it.recipe_hash = Some("other".into()));
    let expected = "text, tokenizer, lengths or seed of prompts of decode (block 0, round 0): base `digest decode 0 0`, new `digest other`";
    assert_eq!(texts(&first, &second), [expected]);
    let found = after_change(|new| {
        with_other_nonce(new, |_| 32);
        new.header.plan.seed = 7;
    });
    assert_eq!(found, ["prompts of decode: base `seed 0`, new `seed 7`"]);
}

#[test]
fn an_engine_that_splits_texts_by_itself_may_have_slightly_longer_prompts() {
    let varied = |index: usize| [31, 32, 33, 34][index % 4];
    assert_eq!(after_change(|new| with_other_nonce(new, varied)), [""; 0]);
    // A chat template adds tokens to every prompt.
    let found = after_change(|new| with_other_nonce(new, |index| varied(index) + 13));
    assert_eq!(found, ["median prompt tokens of decode: base `32`, new `45`"]);
    let found = after_change(|new| {
        with_other_nonce(new, |_| 32);
        new.samples[4].iteration.sequences[0].output_ids = Some(vec![1, 2]);
    });
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("tokens of decode (block 1, round 1)"), "{found:?}");
}

#[test]
fn another_workload_under_the_same_name_is_refused() {
    let base = record();
    let longer =
        record_of(&Selection { axes: AxisValues::with_new_tokens(128), ..selection(&["a"], &["decode"]) });
    assert_eq!(texts(&base, &longer), ["tokens to generate of decode: base `64`, new `128`"]);
    let sampled = record_of(&Selection { temperature: Some(0.5), ..selection(&["a"], &["decode"]) });
    assert!(texts(&base, &sampled)[0].starts_with("sampling of decode: base `greedy`"));
    let one_shot = record_of(&Selection { mode: Mode::OneShot, ..selection(&["a"], &["decode"]) });
    assert_eq!(texts(&base, &one_shot), ["mode: base `warm`, new `one-shot`"]);
}

#[test]
fn records_that_share_no_workload_or_no_configuration_are_refused() {
    let base = record();
    let found = texts(&base, &record_of(&selection(&["a"], &["prefill"])));
    assert_eq!(found, ["workloads: base `decode`, new `prefill`"]);
    let found = texts(&base, &record_of(&selection(&["b", "c"], &["decode"])));
    assert_eq!(found, ["configurations: base `a`, new `b, c`"]);
}

#[test]
fn a_refusal_lists_all_differences_and_ends_with_a_hint() {
    let differences = vec![Difference::new("CPU", "x", "y"), Difference::new("memory", "1 GiB", "2 GiB")];
    let text = Incomparable { differences }.to_string();
    let expected = "the two records are not comparable:\n  CPU: base `x`, new `y`\n  memory: base `1 GiB`, new `2 GiB`\nhint: `--force` compares them anyway, with a warning";
    assert_eq!(text, expected);
}

#[test]
fn requests_of_output_checks_are_not_compared() {
    let other_prompt = |new: &mut RunRecord| {
        let launch = new.launches[0].launch;
        new.samples.iter_mut().filter(|it| it.launch == launch).for_each(|it| it.prompt_hash.push('x'));
    };
    assert!(!after_change(other_prompt).is_empty());
    let for_output_checks = after_change(|new| {
        other_prompt(new);
        new.launches[0].for_output_checks = true;
    });
    assert_eq!(for_output_checks, [""; 0]);
}
