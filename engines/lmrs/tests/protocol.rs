//! The program itself, asked through its pipes about the embedded model.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::path::Path;

use engine_kit::protocol::{Failed, FailureKind, Generated, Loaded, Message, Scored, parse_message};

/// The answers to these lines, but for progress and hello.
fn ask_in(home: Option<&Path>, lines: &[&str]) -> Vec<Message> {
    let mut command = duct::cmd!(env!("CARGO_BIN_EXE_lmrs")).stdin_bytes(lines.join("\n")).stdout_capture();
    if let Some(home) = home {
        command = command.env("ORCHESTRATE_HOME", home);
    }
    let output = command.unchecked().run().unwrap();
    assert!(output.status.success());
    let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let said = lines.map(|line| parse_message(line).unwrap());
    said.filter(|message| !matches!(message, Message::Progress(_) | Message::Token(_))).collect()
}

fn ask(lines: &[&str]) -> Vec<Message> {
    ask_in(None, lines)
}

fn load(fields: &str) -> String {
    format!(r#"{{"type":"load","model":"embedded","threads":2{fields}}}"#)
}

fn loaded(message: &Message) -> &Loaded {
    match message {
        Message::Loaded(loaded) => loaded,
        other => panic!("not loaded: {other:?}"),
    }
}

fn generated(message: &Message) -> &Generated {
    match message {
        Message::Generated(generated) => generated,
        other => panic!("not generated: {other:?}"),
    }
}

fn ids(message: &Message) -> Vec<Vec<u32>> {
    let sequences = &generated(message).iterations[0].sequences;
    sequences.iter().map(|sequence| sequence.output_ids.clone().unwrap()).collect()
}

fn scored(message: &Message) -> &Scored {
    match message {
        Message::Scored(scored) => scored,
        other => panic!("not scored: {other:?}"),
    }
}

fn refused(lines: &[&str]) -> Failed {
    match ask(lines).remove(0) {
        Message::Failed(failed) => failed,
        other => panic!("not refused: {other:?}"),
    }
}

const RECIPE: &str = r#"{"prompt":"You need:\n- 1 cup of cinnamon\n- 1 cup of cabbage\n- 1 cup","max_new_tokens":64,"ignore_eos":true}"#;
const PROMPT: &str = r#"{"prompt_ids":[0,88,13,396,1670,800,347],"max_new_tokens":24,"ignore_eos":true}"#;

#[test]
fn a_load_states_what_is_in_effect() {
    for (dtype, held, kv) in [("bf16", 16, "f16"), ("f32", 32, "f32"), ("f16", 16, "f16"), ("q8_0", 9, "f16")]
    {
        let answers = ask(&[&load(&format!(r#","dtype":"{dtype}","context_tokens":100"#))]);
        let facts = &loaded(&answers[0]).facts;
        assert_eq!(facts.weights_dtype.as_deref(), Some(dtype));
        assert_eq!(facts.kv_dtype.as_deref(), Some(kv));
        assert_eq!((facts.context_tokens, facts.vocabulary_size), (Some(100), Some(2048)));
        let bits = facts.weights_bytes.unwrap() as f64 * 8.0 / facts.parameters.unwrap() as f64;
        assert!(
            bits > 0.9 * f64::from(held) && bits < 1.1 * f64::from(held),
            "{dtype}: {bits} bits a weight"
        );
        assert!(facts.libraries.contains_key("kernels") && !facts.libraries.contains_key("prompt-lookup"));
    }
}

#[test]
fn every_level_of_this_machine_writes_the_same_text_in_f32() {
    let expected = ids(&ask(&[&load(r#","dtype":"f32","options":{"kernels":"portable"}"#), PROMPT])[1]);
    for level in lmrs::kernels::Level::here() {
        let options = format!(r#","dtype":"f32","options":{{"kernels":"{level}"}}"#);
        let answers = ask(&[&load(&options), PROMPT]);
        assert_eq!(loaded(&answers[0]).facts.libraries["kernels"], level.to_string());
        assert_eq!(ids(&answers[1]), expected, "{level}");
    }
}

#[test]
fn prompt_lookup_writes_the_same_text_and_says_that_it_is_on() {
    for dtype in ["f32", "q8_0"] {
        let plain = ask(&[&load(&format!(r#","dtype":"{dtype}""#)), RECIPE, PROMPT]);
        for lookup in [1, 4, 7] {
            let options = format!(r#","dtype":"{dtype}","options":{{"lookup":{lookup}}}"#);
            let answers = ask(&[&load(&options), RECIPE, PROMPT]);
            let said = &loaded(&answers[0]).facts.libraries["prompt-lookup"];
            assert_eq!(*said, format!("up to {lookup} drafted tokens"));
            assert_eq!(
                (ids(&answers[1]), ids(&answers[2])),
                (ids(&plain[1]), ids(&plain[2])),
                "{dtype} {lookup}"
            );
        }
    }
}

#[test]
fn a_batch_writes_what_each_prompt_writes_alone_however_it_is_padded() {
    let prompts = ["[0,88,13,396]", "[0,5,9,17,200,265,34,1000,7]", "[0]"];
    let alone = |prompt: &&str| format!(r#"{{"prompt_ids":{prompt},"max_new_tokens":16,"ignore_eos":true}}"#);
    let batch = |padding: &str| {
        let prompts = prompts.join(",");
        format!(
            r#"{{"prompts_ids":[{prompts}],"max_new_tokens":16,"ignore_eos":true,"padding":"{padding}"}}"#
        )
    };
    let mut lines = vec![load(r#","dtype":"f32""#)];
    lines.extend(prompts.iter().map(alone).chain(["left", "right", "packed"].map(batch)));
    let answers = ask(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let expected: Vec<_> = answers[1..4].iter().flat_map(ids).collect();
    assert!(answers[4..].iter().all(|answer| ids(answer) == expected));
}

#[test]
fn what_is_scored_is_what_is_generated() {
    let score = |ids: &[u32]| format!(r#"{{"type":"score","sequences":[{ids:?}]}}"#);
    let prompt = [0, 88, 13, 396, 1670, 800, 347];
    let answers = ask(&[&load(r#","dtype":"f32""#), PROMPT]);
    let text = [prompt.as_slice(), &ids(&answers[1])[0]].concat();
    let answers = ask(&[&load(r#","dtype":"f32""#), &score(&text)]);
    let logprobs = &scored(&answers[1]).logprobs[0];
    assert_eq!(logprobs.len(), text.len() - 1);
    // Each of the 24 was the likeliest of 2,048.
    assert!(logprobs[prompt.len() - 1..].iter().all(|logprob| logprob.unwrap() > -(2048_f64).ln()));
}

#[test]
fn packed_weights_are_kept_and_used_and_made_anew_when_they_are_damaged() {
    let home = tempfile::tempdir().unwrap();
    let lines = [load(r#","dtype":"q8_0","options":{"sidecar":true}"#), PROMPT.to_string()];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let phases = |message: &Message| {
        let kept = loaded(message).phases.iter().filter(|phase| phase.name == "sidecar").count();
        kept == 1
    };
    let first = ask_in(Some(home.path()), &lines);
    let second = ask_in(Some(home.path()), &lines);
    assert_eq!((phases(&first[0]), phases(&second[0])), (true, false), "written once");
    assert_eq!(ids(&second[1]), ids(&first[1]));
    let packed = std::fs::read_dir(home.path().join("packed")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&packed).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&packed, bytes).unwrap();
    let third = ask_in(Some(home.path()), &lines);
    assert!(phases(&third[0]), "written again");
    assert_eq!(ids(&third[1]), ids(&first[1]));
}

#[test]
fn what_cannot_be_is_refused_by_its_name() {
    let unknown = refused(&[&load(r#","options":{"kernels":"mmx"}"#)]);
    assert!(unknown.message.contains("`mmx`") && unknown.hint.unwrap().contains("`portable`"));
    let refusal = refused(&[&load(r#","options":{"speed":9}"#)]);
    assert_eq!((refusal.kind, refusal.message.as_str()), (FailureKind::BadRequest, "unknown option `speed`"));
    assert_eq!(refused(&[&load(r#","dtype":"q2_k""#)]).kind, FailureKind::Unsupported);
    assert_eq!(refused(&[&load(r#","device":"cuda""#)]).kind, FailureKind::Unsupported);
    assert_eq!(refused(&[r#"{"type":"load","model":"/nowhere"}"#]).kind, FailureKind::Model);
}
