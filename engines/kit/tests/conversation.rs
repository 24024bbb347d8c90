//! Tests hello, load, facts, score, shutdown, and invalid lines.
#![expect(clippy::unwrap_used, reason = "tests panic and print")]

mod toy;

use engine_kit::Environment;
use engine_kit::protocol::{Failed, FailureKind, Id, Message};
use toy::{
    HAS_NAN_SCORES, HAS_NO_SCORES, IMPOSSIBLE, Toy, answers_to, converse, environment, environment_of,
    failed, failure_of, model, tiny,
};

fn load(model: &str, fields: &str) -> String {
    format!(r#"{{"type":"load","model":"{model}"{fields}}}"#)
}

/// The last answer to these lines, which must be a `failed`.
fn last_failure(toy: Toy, environment: Environment, lines: &[&str]) -> Failed {
    failed(converse(toy, environment, lines.join("\n")).messages.last().unwrap()).clone()
}

#[test]
fn hello_needs_no_model_and_reports_the_build() {
    let session = converse(Toy::new(), Environment::default(), br#"{"type":"hello","protocol":1}"#);
    let [Message::Hello(hello)] = session.messages.as_slice() else { panic!("{}", session.raw) };
    assert_eq!((hello.protocol, hello.engine.as_str(), hello.version.as_str()), (1, "toy", "1.2.3"));
    assert!(hello.capabilities.stream && hello.capabilities.prompt_ids);
    assert!(hello.build.is_some());
    assert!(session.log.is_empty(), "{:?}", session.log);
}

#[test]
fn load_reports_its_progress_and_then_the_configuration_in_effect() {
    let path = model("load");
    let session = converse(Toy::new(), Environment::default(), load(&path, r#","device":"cpu","threads":3"#));
    let phases: Vec<_> = session
        .messages
        .iter()
        .filter_map(|message| match message {
            Message::Progress(progress) => Some(progress.phase.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(phases, ["headers", "weights"]);
    let Some(Message::Loaded(loaded)) = session.messages.last() else { panic!("{}", session.raw) };
    assert_eq!(loaded.phases.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>(), phases);
    assert!(loaded.load_ns >= loaded.phases.iter().map(|phase| phase.ns).sum());
    let facts = &loaded.facts;
    assert_eq!((facts.threads, facts.context_tokens, facts.hidden_size), (Some(3), Some(256), Some(4)));
    assert_eq!((facts.architecture.as_deref(), facts.vocabulary_size), (Some("llama"), Some(64)));
    let dimensions = (facts.layers, facts.heads, facts.kv_heads, facts.head_dim, facts.intermediate_size);
    assert_eq!(dimensions, (Some(2), Some(2), Some(1), Some(2), Some(8)));
    // In effect all weights are f32. On disk most are bf16.
    assert_eq!((facts.parameters, facts.weights_bytes), (Some(259), Some(259 * 4)));
    assert_eq!((facts.eos_ids.as_deref(), facts.bos_id), (Some([1].as_slice()), Some(0)));
}

#[test]
fn a_second_load_replaces_the_first_unless_it_is_invalid() {
    let (first, second) = (model("first"), model("second"));
    let lines = [
        load(&first, ""),
        load("/no/such/model", ""),
        load(&second, r#","device":"tpu""#),
        r#"{"prompt_ids":[5],"max_new_tokens":1}"#.into(),
        load(&second, ""),
        r#"{"prompt_ids":[5],"max_new_tokens":1}"#.into(),
    ];
    let session = converse(Toy::new(), Environment::default(), lines.join("\n"));
    // A model has the name of its folder: `first-` and numbers.
    let log: Vec<_> = session.log.iter().map(|line| line.split('-').next().unwrap()).collect();
    assert_eq!(log, ["load first", "generate [[5]]", "drop", "load second", "generate [[5]]", "drop"]);
    let failures: Vec<_> =
        session.messages.iter().filter(|message| matches!(message, Message::Failed(_))).map(failed).collect();
    let [missing, unsupported] = failures.as_slice() else { panic!("{failures:?}") };
    assert_eq!((missing.kind, missing.hint.is_some()), (FailureKind::Model, true));
    assert!(missing.message.contains("no model at `/no/such/model`"), "{missing:?}");
    assert_eq!(unsupported.kind, FailureKind::Unsupported);
    assert_eq!(unsupported.message, "device `tpu`: expected one of `cpu`");
}

#[test]
fn the_first_cpu_is_accepted_if_the_engine_lists_cpu() {
    let session =
        converse(Toy::new(), Environment::default(), load(&model("numbered"), r#","device":"cpu:0""#));
    assert!(matches!(session.messages.last(), Some(Message::Loaded(_))), "{:?}", session.messages);
}

#[test]
fn a_load_with_an_unsupported_value_is_refused() {
    let path = model("refused");
    for (fields, kind, message) in [
        (r#","dtype":"f16""#, FailureKind::Unsupported, "dtype `f16`: expected one of `f32`, `bf16`"),
        (r#","device":"cpu:1""#, FailureKind::Unsupported, "device `cpu:1`: expected one of `cpu`"),
        (r#","threads":0"#, FailureKind::BadRequest, "`threads`: expected at least 1"),
        (r#","context_tokens":257"#, FailureKind::Context, "257 is more than the 256"),
        (r#","options":{"speed":"high"}"#, FailureKind::BadRequest, "unknown option `speed`"),
        (r#","options":{"panics":"maybe"}"#, FailureKind::BadRequest, "`panics`: expected true or false"),
        (r#","options":{"fails":"the device failed"}"#, FailureKind::Device, "the device failed"),
        (r#","options":{"panics":true}"#, FailureKind::Internal, "the engine panicked: "),
    ] {
        let failure = last_failure(Toy::new(), Environment::default(), &[&load(&path, fields)]);
        assert!(failure.kind == kind && failure.message.contains(message), "{fields}: {failure:?}");
    }
    let mut toy = Toy::new();
    toy.capabilities.architectures = vec!["mamba".into()];
    let failure = last_failure(toy, Environment::default(), &[&load(&path, "")]);
    assert_eq!(failure.message, "architecture `llama`: expected one of `mamba`");
}

#[test]
fn after_a_failed_load_no_other_model_is_loaded() {
    let path = model("lost");
    let lines = [load(&path, r#","options":{"panics":true}"#), r#"{"prompt_ids":[5]}"#.into()];
    let session = converse(Toy::new(), environment("other"), lines.join("\n"));
    let failure = failed(session.messages.last().unwrap());
    assert_eq!(failure.kind, FailureKind::Model);
    assert!(failure.message.contains("the model was dropped after a panic"), "{failure:?}");
    assert!(session.log.iter().all(|line| !line.contains("other")), "{:?}", session.log);
    let lines = [&load("/no/such/model", ""), r#"{"prompt_ids":[5]}"#];
    let failure = last_failure(Toy::new(), environment("other"), &lines);
    assert_eq!(failure.message, "no model: the load of `/no/such/model` failed");
}

#[test]
fn the_requested_context_is_in_effect_and_limits_prompts() {
    let path = model("context");
    let lines = [&load(&path, r#","context_tokens":8"#), r#"{"prompt_ids":[5],"max_new_tokens":8}"#];
    let failure = last_failure(Toy::new(), Environment::default(), &lines);
    assert_eq!(failure.kind, FailureKind::Context);
    assert_eq!(failure.message, "prompt of 1 tokens and 8 new ones exceed the context of 8");
}

#[test]
fn facts_are_empty_before_a_load_and_known_after_it() {
    let path = model("facts");
    let lines = [r#"{"type":"facts"}"#.into(), load(&path, ""), r#"{"type":"facts"}"#.into()];
    let session = converse(Toy::new(), Environment::default(), lines.join("\n"));
    let facts: Vec<_> = session
        .messages
        .iter()
        .filter_map(|message| match message {
            Message::Facts(facts) => Some(facts.vocabulary_size),
            _ => None,
        })
        .collect();
    assert_eq!(facts, [None, Some(64)]);
}

#[test]
fn score_returns_a_value_for_each_id_but_the_first_and_null_for_impossible_ids() {
    let line = format!(r#"{{"type":"score","id":"s","sequences":[[5,6,{IMPOSSIBLE}],[7,8]]}}"#);
    let answers = answers_to("score", Toy::new(), &[&line]);
    let [Message::Scored(scored)] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(scored.logprobs, [vec![Some(-6.0), None], vec![Some(-8.0)]]);
    assert!(scored.id.is_some());
}

#[test]
fn a_score_longer_than_the_context_is_refused() {
    let line = |id_count: usize| {
        let long = vec!["5"; id_count].join(",");
        format!(r#"{{"type":"score","id":3,"sequences":[[5,6],[{long}]]}}"#)
    };
    let answers = answers_to("long-score", Toy::new(), &[&line(256)]);
    let [Message::Scored(scored)] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(scored.logprobs[1].len(), 255);
    let failure = failure_of("long-score", Toy::new(), &line(257));
    assert_eq!((failure.kind, failure.id), (FailureKind::Context, Some(Id::Number(3))));
    assert_eq!(failure.message, "`sequences[1]`: 257 tokens exceed the context of 256");
}

#[test]
fn score_refuses_unknown_ids_and_invalid_values_of_the_engine() {
    let failure = |sequences: &str| {
        failure_of("scores", Toy::new(), &format!(r#"{{"type":"score","id":3,"sequences":{sequences}}}"#))
    };
    let failure_after = |first: u32| failure(&format!("[[{first},6]]"));
    assert_eq!(failure("[[5,6],[7,64]]").message, "`sequences[1][1]`: id 64 is outside the vocabulary of 64");
    let (too_few, nan) = (failure_after(HAS_NO_SCORES), failure_after(HAS_NAN_SCORES));
    assert_eq!(too_few.message, "sequence 0: the engine returned 0 log-probabilities for 2 ids");
    assert_eq!(nan.message, "sequence 0: the engine returned a log-probability of NaN");
    assert!(nan.id.is_some());
    let mut toy = Toy::new();
    toy.capabilities.score = false;
    let failure = failure_of("scores", toy, r#"{"type":"score","sequences":[[5,6]]}"#);
    assert_eq!(failure.kind, FailureKind::Unsupported);
}

#[test]
fn shutdown_answers_earlier_requests_and_no_later_ones() {
    let lines = [r#"{"prompt_ids":[5],"max_new_tokens":1}"#, r#"{"type":"shutdown"}"#, r#"{"type":"facts"}"#];
    let answers = answers_to("shutdown", Toy::new(), &lines);
    assert!(matches!(answers.as_slice(), [Message::Generated(_), Message::Bye {}]), "{answers:?}");
}

#[test]
fn the_first_of_several_errors_is_the_answer() {
    let mut toy = Toy::new();
    (toy.capabilities.stream, toy.capabilities.batch) = (false, 1);
    for (line, kind, message) in [
        (r#"{"prompts":["a","b"],"max_new_tokens":0}"#, FailureKind::BadRequest, "`max_new_tokens`"),
        (r#"{"prompt_ids":[64],"stream":true,"max_new_tokens":999}"#, FailureKind::Unsupported, "`stream`"),
        (r#"{"prompts":["a","b"],"max_new_tokens":999}"#, FailureKind::Unsupported, "a batch of 2"),
        (
            r#"{"prompts_ids":[[64]],"max_new_tokens":999}"#,
            FailureKind::BadRequest,
            "`prompts_ids[0][0]`: id 64",
        ),
    ] {
        let failure = failure_of("first-error", toy.clone(), line);
        assert_eq!(failure.kind, kind, "{line}");
        assert!(failure.message.starts_with(message), "{failure:?}");
    }
    // This engine cannot stream with any model, so the first request causes no load.
    let environment = Environment { model: Some("/no/such/model".into()), ..Environment::default() };
    let session = converse(toy, environment, b"{\"prompt\":\"a\",\"stream\":true}\n{\"prompt\":\"a\"}");
    let kinds: Vec<FailureKind> = session.messages.iter().map(|message| failed(message).kind).collect();
    assert_eq!(kinds, [FailureKind::Unsupported, FailureKind::Model]);
}

#[test]
fn an_engine_without_a_tokenizer_refuses_text() {
    let mut toy = Toy::new();
    toy.capabilities.prompt = false;
    let answers = answers_to("ids", toy, &[r#"{"prompts":["a"]}"#, r#"{"prompt_ids":[5]}"#]);
    let failure = failed(&answers[0]);
    assert_eq!(
        (failure.kind, failure.message.as_str()),
        (FailureKind::Unsupported, "`prompts`: this engine takes ids")
    );
    assert!(matches!(answers[1], Message::Generated(_)), "{answers:?}");
}

#[test]
fn every_invalid_line_is_answered_once_and_the_engine_continues() {
    let mut input = Vec::new();
    let mut invalid: Vec<(&[u8], &str)> = vec![
        (br#"<"prompt":"Hello","iterations":50}"#, "column 1: expected `{`, found `<`"),
        (b"", "empty line"),
        (b"\xff\xfe{}", "byte 1: not UTF-8"),
        (br#"{"prompt":"w5","iterations":-1}"#, "`iterations`"),
        (br#"{"prompt":"w5","max_new_tokens":4294967295}"#, "exceed the context of 256"),
        (br#"{"prompt_ids":[5,64]}"#, "`prompt_ids[1]`: id 64 is outside the vocabulary of 64"),
        (br#"{"prompt_ids":[]}"#, "`prompt_ids`: no ids"),
        (br#"{"type":"dance"}"#, "unknown request type `dance`"),
        (br#"{"type":"load"}"#, "`model`"),
        (b" \t ", "empty line"),
        (br#"{"prompt":"w5","max_new_tokens":0}"#, "`max_new_tokens`"),
    ];
    let too_long = vec![b'a'; 20 << 20];
    invalid.push((&too_long, "line of 20971520 bytes is longer than 16777216"));
    for (line, _) in &invalid {
        input.extend_from_slice(line);
        input.extend_from_slice(b"\n{\"prompt_ids\":[5],\"max_new_tokens\":2,\"type\":\"generate\"}\n");
    }
    let session = converse(Toy::new(), environment("broken"), &input);
    assert_eq!(session.messages.len(), 2 * invalid.len());
    for ((_, message), answers) in invalid.iter().zip(session.messages.chunks(2)) {
        let failure = failed(&answers[0]);
        assert!(failure.message.contains(message), "expected `{message}`, found {failure:?}");
        assert!(matches!(&answers[1], Message::Generated(_)), "{:?}", answers[1]);
    }
    assert_eq!(session.stderr, "");
}

#[test]
fn an_invalid_environment_fails_the_request_and_not_the_engine() {
    let environment = Environment { threads: Some("many".into()), ..environment("threads") };
    let failure = last_failure(Toy::new(), environment, &[r#"{"prompt":"w5"}"#]);
    assert_eq!(failure.message, "`ORCHESTRATE_THREADS`: expected a number of threads, found `many`");
    let failure = last_failure(Toy::new(), environment_of(tiny::folder("nothing")), &[r#"{"prompt":"w5"}"#]);
    assert_eq!(failure.kind, FailureKind::Model);
}
