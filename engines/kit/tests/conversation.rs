//! Tests hello, load, facts, score, shutdown, and invalid lines.
#![expect(clippy::unwrap_used, reason = "tests panic and print")]

mod toy;

use engine_kit::Environment;
use engine_kit::protocol::{FailureKind, Id, Message};
use toy::{Toy, ask, converse, environment, model, refusal, tiny};

fn load(model: &str, more: &str) -> String {
    format!(r#"{{"type":"load","model":"{model}"{more}}}"#)
}

fn failed(message: &Message) -> (FailureKind, &str, Option<&str>) {
    match message {
        Message::Failed(failed) => (failed.kind, &failed.message, failed.hint.as_deref()),
        other => panic!("expected `failed`, heard {other:?}"),
    }
}

#[test]
fn hello_is_answered_without_a_model_and_says_how_the_engine_was_built() {
    let heard = converse(Toy::new(), Environment::default(), br#"{"type":"hello","protocol":1}"#);
    let [Message::Hello(hello)] = heard.messages.as_slice() else { panic!("{}", heard.raw) };
    assert_eq!((hello.protocol, hello.engine.as_str(), hello.version.as_str()), (1, "toy", "1.2.3"));
    assert!(hello.capabilities.stream && hello.capabilities.prompt_ids);
    assert!(hello.build.is_some());
    assert_eq!(heard.log, [""; 0]);
}

#[test]
fn load_tells_its_progress_and_then_the_configuration_in_effect() {
    let path = model("load");
    let heard = converse(
        Toy::new(),
        Environment::default(),
        load(&path, r#","device":"cpu","threads":3"#).as_bytes(),
    );
    let phases: Vec<_> = heard
        .messages
        .iter()
        .filter_map(|message| match message {
            Message::Progress(progress) => Some(progress.phase.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(phases, ["headers", "weights"]);
    let Some(Message::Loaded(loaded)) = heard.messages.last() else { panic!("{}", heard.raw) };
    assert_eq!(loaded.phases.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>(), phases);
    assert!(loaded.load_ns >= loaded.phases.iter().map(|phase| phase.ns).sum());
    let facts = &loaded.facts;
    assert_eq!((facts.threads, facts.context_tokens, facts.hidden_size), (Some(3), Some(256), Some(4)));
    assert_eq!((facts.architecture.as_deref(), facts.vocabulary_size), (Some("llama"), Some(64)));
    assert_eq!(
        (facts.parameters, facts.weights_bytes),
        (Some(259), Some(259 * 4)),
        "f32 in effect, bf16 on disk"
    );
    assert_eq!((facts.eos_ids.as_deref(), facts.bos_id), (Some([1].as_slice()), Some(0)));
}

#[test]
fn a_second_load_replaces_the_first_and_one_that_makes_no_sense_leaves_it() {
    let (first, second) = (model("first"), model("second"));
    let lines = [
        load(&first, ""),
        load("/no/such/model", ""),
        load(&second, r#","device":"tpu""#),
        r#"{"prompt_ids":[5],"max_new_tokens":1}"#.into(),
        load(&second, ""),
        r#"{"prompt_ids":[5],"max_new_tokens":1}"#.into(),
    ];
    let heard = converse(Toy::new(), Environment::default(), lines.join("\n").as_bytes());
    let log: Vec<_> = heard.log.iter().map(|line| line.split('-').next().unwrap()).collect();
    assert_eq!(log, ["load first", "generate [[5]]", "drop", "load second", "generate [[5]]", "drop"]);
    let refused: Vec<_> =
        heard.messages.iter().filter(|message| matches!(message, Message::Failed(_))).map(failed).collect();
    assert_eq!(refused[0].0, FailureKind::Model);
    assert!(refused[0].1.contains("no model at `/no/such/model`") && refused[0].2.is_some());
    assert_eq!((refused[1].0, refused[1].1), (FailureKind::Unsupported, "device `tpu`: offered are `cpu`"));
}

#[test]
fn a_numbered_device_is_offered_by_its_kind() {
    let heard = converse(
        Toy::new(),
        Environment::default(),
        load(&model("numbered"), r#","device":"cpu:0""#).as_bytes(),
    );
    assert!(matches!(heard.messages.last(), Some(Message::Loaded(_))), "{:?}", heard.messages);
}

#[test]
fn a_load_is_refused_for_a_value_that_the_engine_does_not_offer_or_know() {
    let path = model("refused");
    for (more, kind, says) in [
        (r#","dtype":"f16""#, FailureKind::Unsupported, "dtype `f16`: offered are `f32`, `bf16`"),
        (r#","device":"cpu:1""#, FailureKind::Unsupported, "device `cpu:1`: offered are `cpu`"),
        (r#","threads":0"#, FailureKind::BadRequest, "`threads`: expected at least 1"),
        (r#","context_tokens":257"#, FailureKind::Context, "257 is more than the 256"),
        (r#","options":{"speed":"high"}"#, FailureKind::BadRequest, "unknown option `speed`"),
        (
            r#","options":{"panics":"maybe"}"#,
            FailureKind::BadRequest,
            "option `panics`: expected true or false",
        ),
        (r#","options":{"fails":"the fan fell off"}"#, FailureKind::Device, "the fan fell off"),
        (r#","options":{"panics":true}"#, FailureKind::Internal, "the engine panicked: "),
    ] {
        let heard = converse(Toy::new(), Environment::default(), load(&path, more).as_bytes());
        let refused = failed(heard.messages.last().unwrap());
        assert!(refused.0 == kind && refused.1.contains(says), "{more}: {refused:?}");
    }
    let mut toy = Toy::new();
    toy.can.architectures = vec!["mamba".into()];
    let heard = converse(toy, Environment::default(), load(&path, "").as_bytes());
    assert_eq!(failed(heard.messages.last().unwrap()).1, "architecture `llama`: offered are `mamba`");
}

#[test]
fn after_a_load_that_failed_no_other_model_takes_its_place() {
    let path = model("lost");
    let lines = [load(&path, r#","options":{"panics":true}"#), r#"{"prompt_ids":[5]}"#.into()];
    let heard = converse(Toy::new(), environment("other"), lines.join("\n").as_bytes());
    let refused = failed(heard.messages.last().unwrap());
    assert_eq!(refused.0, FailureKind::Model);
    assert!(refused.1.contains("the model was dropped after a panic"), "{refused:?}");
    assert!(heard.log.iter().all(|line| !line.contains("other")), "{:?}", heard.log);

    let lines = [load("/no/such/model", ""), r#"{"prompt_ids":[5]}"#.into()];
    let heard = converse(Toy::new(), environment("other"), lines.join("\n").as_bytes());
    assert_eq!(failed(heard.messages.last().unwrap()).1, "no model: the load of `/no/such/model` failed");
}

#[test]
fn the_requested_context_is_in_effect_and_limits_prompts() {
    let path = model("context");
    let lines = [load(&path, r#","context_tokens":8"#), r#"{"prompt_ids":[5],"max_new_tokens":8}"#.into()];
    let heard = converse(Toy::new(), Environment::default(), lines.join("\n").as_bytes());
    let refused = failed(heard.messages.last().unwrap());
    assert_eq!(
        (refused.0, refused.1),
        (FailureKind::Context, "prompt of 1 tokens and 8 new ones exceed the context of 8")
    );
}

#[test]
fn facts_are_known_before_and_after_a_load() {
    let path = model("facts");
    let lines = [r#"{"type":"facts"}"#.into(), load(&path, ""), r#"{"type":"facts"}"#.into()];
    let heard = converse(Toy::new(), Environment::default(), lines.join("\n").as_bytes());
    let facts: Vec<_> = heard
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
fn score_gives_a_value_for_every_id_but_the_first_and_null_for_the_impossible() {
    let line = r#"{"type":"score","id":"s","sequences":[[5,6,50],[7,8]]}"#;
    let answers = ask("score", Toy::new(), &[line]);
    let [Message::Scored(scored)] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(scored.logprobs, [vec![Some(-6.0), None], vec![Some(-8.0)]]);
    assert!(scored.id.is_some());
}

#[test]
fn a_score_as_long_as_the_context_is_computed_and_a_longer_one_is_refused_by_name() {
    let line = |ids: usize| {
        let long = vec!["5"; ids].join(",");
        format!(r#"{{"type":"score","id":3,"sequences":[[5,6],[{long}]]}}"#)
    };
    let answers = ask("long-score", Toy::new(), &[&line(256)]);
    let [Message::Scored(scored)] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(scored.logprobs[1].len(), 255);
    let refused = refusal("long-score", Toy::new(), &line(257));
    assert_eq!((refused.kind, refused.id), (FailureKind::Context, Some(Id::Number(3))));
    assert_eq!(refused.message, "`sequences[1]`: 257 tokens exceed the context of 256");
}

#[test]
fn score_refuses_ids_out_of_the_vocabulary_and_engines_that_give_nonsense() {
    let refused = |sequences: &str| {
        refusal("scores", Toy::new(), &format!(r#"{{"type":"score","id":3,"sequences":{sequences}}}"#))
    };
    assert_eq!(refused("[[5,6],[7,64]]").message, "`sequences[1][1]`: id 64 is outside the vocabulary of 64");
    assert_eq!(refused("[[53,6]]").message, "sequence 0: the engine gave 0 log-probabilities for 2 ids");
    assert_eq!(refused("[[51,6]]").message, "sequence 0: the engine gave a log-probability of NaN");
    assert!(refused("[[51,6]]").id.is_some());
    let mut toy = Toy::new();
    toy.can.score = false;
    assert_eq!(
        refusal("scores", toy, r#"{"type":"score","sequences":[[5,6]]}"#).kind,
        FailureKind::Unsupported
    );
}

#[test]
fn shutdown_answers_earlier_requests_and_no_later_ones() {
    let lines = [r#"{"prompt_ids":[5],"max_new_tokens":1}"#, r#"{"type":"shutdown"}"#, r#"{"type":"facts"}"#];
    let answers = ask("shutdown", Toy::new(), &lines);
    assert!(matches!(answers.as_slice(), [Message::Generated(_), Message::Bye {}]), "{answers:?}");
}

#[test]
fn every_broken_line_is_answered_once_and_the_engine_lives_on() {
    let mut input = Vec::new();
    let mut broken: Vec<(&[u8], &str)> = vec![
        (br#"<"prompt":"Hello","iterations":50}"#, "column 1: expected `{`, found `<`"),
        (b"", "empty line"),
        (b" \t ", "empty line"),
        (b"\xff\xfe{}", "byte 1: not UTF-8"),
        (b"\0\x01\x02", "column 1: expected `{`"),
        (br#"{"prompt":"Hello""#, "column 17"),
        (br#"{"prompt":5}"#, "`prompt`"),
        (br#"{"prompt":"w5"} {}"#, "more after the object"),
        (br#"{"prompt":"w5","iterations":-1}"#, "`iterations`"),
        (br#"{"prompt":"w5","iterations":1e400}"#, "`iterations`"),
        (br#"{"prompt":"w5","max_new_tokens":99999999999999999999}"#, "`max_new_tokens`"),
        (br#"{"prompt":"w5","max_new_tokens":4294967295}"#, "exceed the context of 256"),
        (br#"{"prompt":"w5","max_new_tokens":0}"#, "`max_new_tokens`"),
        (br#"{"prompt_ids":[5,64]}"#, "`prompt_ids[1]`: id 64 is outside the vocabulary of 64"),
        (br#"{"prompt_ids":[]}"#, "`prompt_ids`: no tokens"),
        (br#"{"type":"dance"}"#, "unknown request type `dance`"),
        (br#"{"type":"load"}"#, "`model`"),
        (br#"{}"#, "no prompt"),
    ];
    let endless = vec![b'a'; 20 << 20];
    broken.push((&endless, "line of 20971520 bytes is longer than 16777216"));
    for (line, _) in &broken {
        input.extend_from_slice(line);
        input.extend_from_slice(b"\n{\"prompt_ids\":[5],\"max_new_tokens\":2,\"type\":\"generate\"}\n");
    }
    let heard = converse(Toy::new(), environment("broken"), &input);
    assert_eq!(heard.messages.len(), 2 * broken.len());
    for ((_, says), answers) in broken.iter().zip(heard.messages.chunks(2)) {
        let refused = failed(&answers[0]);
        assert!(refused.1.contains(says), "expected `{says}`, heard {refused:?}");
        assert!(matches!(&answers[1], Message::Generated(_)), "{:?}", answers[1]);
    }
    assert_eq!(heard.people, "");
}

#[test]
fn an_environment_that_makes_no_sense_fails_the_request_and_not_the_engine() {
    let environment = Environment { threads: Some("many".into()), ..environment("threads") };
    let heard = converse(Toy::new(), environment, br#"{"prompt":"w5"}"#);
    assert_eq!(
        failed(&heard.messages[0]).1,
        "`ORCHESTRATE_THREADS`: expected a number of threads, found `many`"
    );
    let path = tiny::folder("nothing").into_os_string().into_string().unwrap();
    let heard = converse(
        Toy::new(),
        Environment { model: Some(path), ..Environment::default() },
        br#"{"prompt":"w5"}"#,
    );
    assert_eq!(failed(&heard.messages[0]).0, FailureKind::Model);
}
