//! Tests one `generate` at a time: clocks, ends of sequences, streams, refusals, panics, cancelling.
#![expect(clippy::unwrap_used, reason = "tests panic and print")]

mod toy;

use engine_kit::protocol::{FailureKind, Finish, Generated, Id, Message, Padding};
use toy::{
    CANCELS_REQUEST_7, ENDS_WITH_EOS, PANICS, PUSHES_AFTER_END, RUNS_OUT_OF_MEMORY, STOPS_EARLY, Toy,
    WRONG_SEQUENCE, answers_to, converse, environment, environment_of, failure_of, model,
};

fn generated(answer: &Message) -> &Generated {
    match answer {
        Message::Generated(generated) => generated,
        other => panic!("expected `generated`, found {other:?}"),
    }
}

/// Checks the times of an answer as the orchestrator does.
fn check_times(generated: &Generated) {
    for iteration in generated.warmup_iterations.iter().chain(&generated.iterations) {
        for sequence in &iteration.sequences {
            let (ids, ns) = (sequence.output_ids.as_ref().unwrap(), sequence.token_ns.as_ref().unwrap());
            assert_eq!(ids.len(), ns.len());
            assert!(ns.first().is_none_or(|&first| iteration.start_ns < first));
            assert!(ns.is_sorted() && ns.last().is_none_or(|&last| last <= iteration.end_ns));
        }
    }
}

fn generate(test: &str, line: &str) -> Generated {
    let answers = answers_to(test, Toy::new(), &[line]);
    assert_eq!(answers.len(), 1, "{answers:?}");
    let generated = generated(&answers[0]).clone();
    check_times(&generated);
    generated
}

/// The generated ids of a sequence in the first iteration.
fn ids(generated: &Generated, sequence: usize) -> &[u32] {
    generated.iterations[0].sequences[sequence].output_ids.as_ref().unwrap()
}

#[test]
fn warm_up_and_iterations_run_one_after_the_other() {
    let line = r#"{"prompt":"w5 w6","iterations":50,"warmup":3,"max_new_tokens":4}"#;
    let answer = generate("iterations", line);
    assert_eq!((answer.iterations.len(), answer.warmup_iterations.len()), (50, 3));
    assert!(answer.iterations.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns));
    assert!(answer.warmup_iterations[2].end_ns <= answer.iterations[0].start_ns);
    let sequence = &answer.iterations[0].sequences[0];
    assert_eq!((sequence.prompt_tokens, sequence.finish), (2, Finish::Length));
    assert_eq!(sequence.text.as_deref(), Some("w8 w9 w10 w11"));
}

#[test]
fn a_planted_delay_precedes_every_token_after_the_first() {
    let path = model("planted");
    let load =
        |us: &str| format!(r#"{{"type":"load","model":"{path}","options":{{"planted_delay_us":{us}}}}}"#);
    let batch = r#"{"prompts_ids":[[5],[7]],"max_new_tokens":3}"#;
    // The toy would refuse this option, so the kit removes it.
    let answers = answers_to("planted", Toy::new(), &[&load("\"3000\""), batch]);
    let generated = generated(answers.last().unwrap());
    check_times(generated);
    for sequence in &generated.iterations[0].sequences {
        let ns = sequence.token_ns.as_ref().unwrap();
        assert!(ns.windows(2).all(|pair| pair[1] - pair[0] >= 3_000_000), "{ns:?}");
    }
    let failure = failure_of("planted", Toy::new(), &load("-1"));
    assert_eq!(failure.message, "option `planted_delay_us`: expected a whole number, found `-1`");
}

#[test]
fn a_generate_before_any_load_loads_the_model_of_the_environment() {
    let session = converse(Toy::new(), environment("unloaded"), b"{\"prompt\":\"w5\"}\n{\"prompt\":\"w5\"}");
    let [first, second] = session.messages.as_slice() else { panic!("{}", session.raw) };
    let loaded = generated(first).loaded.as_ref().unwrap();
    assert!(loaded.load_ns > 0 && loaded.facts.vocabulary_size == Some(64));
    let start_ns = generated(first).iterations[0].start_ns;
    assert!(start_ns >= loaded.load_ns, "the time to the first token must not include the load");
    assert!(generated(second).loaded.is_none());
}

#[test]
fn a_request_without_a_type_gets_a_summary_on_stderr_and_at_the_end_of_the_answer() {
    let session =
        converse(Toy::new(), environment("summary"), br#"{"prompt":"w5","iterations":2,"max_new_tokens":3}"#);
    assert!(session.stderr.starts_with("2 iterations, 6 tokens; first token "), "{}", session.stderr);
    for part in ["decode ", "wrote: \"w8 w9 w10\""] {
        assert!(session.stderr.contains(part), "{}", session.stderr);
    }
    let position = |field: &str| session.raw.find(field).unwrap();
    let summary_position = position(r#","summary":{"#);
    assert!(position(r#""iterations":["#) < summary_position && position(r#""loaded":"#) < summary_position);
    let summary = generated(&session.messages[0]).summary.as_ref().unwrap();
    for (name, count) in [("iterations", 2), ("output_tokens", 6), ("prompt_tokens", 2)] {
        assert_eq!(summary[name], count, "{name}");
    }
    for name in ["first_token_ms", "decode_tokens_per_s"] {
        assert!(summary[name].as_f64().unwrap() > 0.0, "{name}");
    }
    let with_type = br#"{"type":"generate","prompt":"w5"}"#;
    assert_eq!(converse(Toy::new(), environment("summary"), with_type).stderr, "");
}

#[test]
fn eos_ends_a_sequence_unless_it_is_ignored() {
    // The third token is EOS, also if it is the last requested token.
    for (fields, count, finish) in [
        (r#""max_new_tokens":5"#, 3, Finish::Eos),
        (r#""max_new_tokens":5,"ignore_eos":true"#, 5, Finish::Length),
        (r#""max_new_tokens":3"#, 3, Finish::Eos),
    ] {
        let answer = generate("eos", &format!(r#"{{"prompt_ids":[{ENDS_WITH_EOS}],{fields}}}"#));
        assert_eq!((ids(&answer, 0).len(), ids(&answer, 0)[2]), (count, toy::tiny::EOS), "{fields}");
        assert_eq!(answer.iterations[0].sequences[0].finish, finish, "{fields}");
    }
}

#[test]
fn the_sequences_of_a_batch_end_independently() {
    let line = format!(r#"{{"prompts_ids":[[5,6],[{ENDS_WITH_EOS},6],[7,8]],"max_new_tokens":4}}"#);
    let answer = generate("batch", &line);
    let sequences = answer.iterations[0].sequences.iter().enumerate();
    let ends: Vec<_> = sequences.map(|(index, s)| (ids(&answer, index).len(), s.finish)).collect();
    assert_eq!(ends, [(4, Finish::Length), (3, Finish::Eos), (4, Finish::Length)]);
}

#[test]
fn streamed_ids_equal_the_ids_of_the_answer_and_warm_up_is_not_streamed() {
    let line = format!(
        r#"{{"id":"x","prompts_ids":[[5],[{ENDS_WITH_EOS}]],"max_new_tokens":4,"iterations":2,"warmup":1,"stream":true}}"#
    );
    let answers = answers_to("stream", Toy::new(), &[&line]);
    let (answer, streamed) = answers.split_last().unwrap();
    // Two iterations, each with four tokens of the first sequence and three of the second.
    assert_eq!(streamed.len(), 2 * (4 + 3));
    let answer = generated(answer);
    let mut streamed_by_iteration = vec![vec![Vec::new(); 2]; 2];
    for message in streamed {
        let Message::Token(token) = message else { panic!("{message:?}") };
        assert_eq!(token.id, Some(Id::Text("x".into())));
        let streamed_tokens: &mut Vec<(u32, u64)> =
            &mut streamed_by_iteration[token.iteration as usize][token.sequence as usize];
        assert_eq!(token.index as usize, streamed_tokens.len());
        streamed_tokens.extend(token.ids.iter().map(|&id| (id, token.ns)));
    }
    for (iteration, streamed) in answer.iterations.iter().zip(streamed_by_iteration) {
        for (sequence, tokens) in iteration.sequences.iter().zip(streamed) {
            let (ids, ns): (Vec<_>, Vec<_>) = tokens.into_iter().unzip();
            assert_eq!((Some(ids), Some(ns)), (sequence.output_ids.clone(), sequence.token_ns.clone()));
        }
    }
}

#[test]
fn an_empty_prompt_becomes_bos_and_is_refused_if_the_model_has_none() {
    assert_eq!(generate("empty", r#"{"prompt":""}"#).iterations[0].sequences[0].prompt_tokens, 1);
    let path = toy::tiny::model("no-bos");
    let mut config = toy::tiny::config();
    config["bos_token_id"] = serde_json::Value::Null;
    toy::tiny::write_json(&path.join("config.json"), &config);
    let session = converse(Toy::new(), environment_of(path), br#"{"prompt":""}"#);
    assert!(session.raw.contains("the model has no BOS"), "{}", session.raw);
}

#[test]
fn a_prompt_of_text_needs_a_tokenizer_and_a_prompt_of_ids_does_not() {
    let path = toy::tiny::model("no-tokenizer");
    std::fs::remove_file(path.join("tokenizer.json")).unwrap();
    let session = converse(Toy::new(), environment_of(path), b"{\"prompt\":\"w5\"}\n{\"prompt_ids\":[5]}");
    let [Message::Failed(failed), Message::Generated(generated)] = session.messages.as_slice() else {
        panic!("{}", session.raw)
    };
    assert_eq!((failed.kind, failed.hint.as_deref()), (FailureKind::Model, Some("send `prompt_ids`")));
    assert_eq!(generated.iterations[0].sequences[0].text, None);
}

#[test]
fn a_broken_tokenizer_fails_texts_but_not_ids() {
    let path = toy::tiny::model("broken-tokenizer");
    std::fs::write(path.join("tokenizer.json"), "{}").unwrap();
    let model = environment_of(path);
    let lines = "{\"prompt_ids\":[5]}\n{\"id\":1,\"prompt\":\"w5\"}\n{\"id\":2,\"prompt_ids\":[5]}";
    for toy in [Toy::new(), Toy::overlapping()] {
        let session = converse(toy, model.clone(), lines);
        let [Message::Generated(first), Message::Failed(failed), Message::Generated(last)] =
            session.messages.as_slice()
        else {
            panic!("{}", session.raw)
        };
        assert_eq!((failed.kind, &failed.id), (FailureKind::Model, &Some(Id::Number(1))));
        assert!(failed.message.contains("tokenizer.json`: "), "{}", failed.message);
        let texts = [first, last].map(|generated| generated.iterations[0].sequences[0].text.clone());
        assert_eq!(texts, [None, None]);
    }
}

#[test]
fn a_request_in_ids_is_answered_in_ids_after_a_request_in_text() {
    let answers = answers_to("in-ids", Toy::new(), &[r#"{"prompt":"w5"}"#, r#"{"prompt_ids":[5]}"#]);
    let has_text = |answer| generated(answer).iterations[0].sequences[0].text.is_some();
    assert_eq!(answers.iter().map(has_text).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_request_may_fill_the_context_and_not_exceed_it() {
    let prompt = "5,".repeat(199) + "5";
    let line = |new: u32| format!(r#"{{"id":1,"prompt_ids":[{prompt}],"max_new_tokens":{new}}}"#);
    assert_eq!(ids(&generate("full", &line(56)), 0).len(), 56);
    let failure = failure_of("full", Toy::new(), &line(57));
    assert_eq!((failure.kind, failure.id), (FailureKind::Context, Some(Id::Number(1))));
    assert_eq!(failure.message, "prompt of 200 tokens and 57 new ones exceed the context of 256");
}

#[test]
fn an_unsupported_request_is_refused_before_the_engine_generates() {
    let mut toy = Toy::new();
    toy.capabilities = engine_kit::protocol::Capabilities { batch: 2, concurrency: 1, ..Default::default() };
    for (line, message) in [
        (r#"{"prompts":["w5","w5","w5"]}"#, "a batch of 3: the largest is 2"),
        (r#"{"prompt_ids":[5]}"#, "`prompt_ids`"),
        (r#"{"prompt":"w5","stream":true}"#, "`stream`"),
        (r#"{"prompt":"w5","ignore_eos":true}"#, "`ignore_eos`"),
        (r#"{"prompt":"w5","sampling":{"temperature":1}}"#, "`sampling`"),
        (r#"{"prompt":"w5","use_cache":false}"#, "`use_cache`"),
        (r#"{"prompt":"w5","speculation":"prompt_lookup"}"#, "`speculation`"),
        (r#"{"prompts":["w5","w5 w6"]}"#, "this engine does not pad"),
    ] {
        let failure = failure_of("unsupported", toy.clone(), line);
        assert!(failure.kind == FailureKind::Unsupported && failure.message.contains(message), "{failure:?}");
    }
    assert!(toy.log.lock().unwrap().iter().all(|line| !line.starts_with("generate")));
    let failure = failure_of("unsupported", Toy::new(), r#"{"prompts":["w5","w5 w6"],"padding":"packed"}"#);
    assert_eq!(failure.message, "padding `packed`: expected one of `left`");
    toy.capabilities.padding_sides = vec![Padding::Left];
    // Equal lengths need no padding, and a temperature of 0 is greedy.
    let request = r#"{"prompts":["w5","w6"],"padding":"right","sampling":{"temperature":0}}"#;
    generated(&answers_to("unsupported", toy, &[request])[0]);
}

#[test]
fn a_request_with_speculation_reports_drafted_and_accepted_tokens() {
    let drafts = |request: &str| {
        let answers = answers_to("speculation", Toy::new(), &[request]);
        let sequence = &generated(&answers[0]).iterations[0].sequences[0];
        (sequence.drafted_tokens, sequence.accepted_tokens)
    };
    assert_eq!(drafts(r#"{"prompt":"w5","speculation":"prompt_lookup"}"#), (Some(2), Some(1)));
    assert_eq!(drafts(r#"{"prompt":"w5"}"#), (None, None));
}

#[test]
fn an_engine_that_breaks_the_contract_causes_an_internal_failure() {
    for (first, message) in [
        (STOPS_EARLY, "the engine returned 2 of 4 tokens of sequence 0 and stopped"),
        (PUSHES_AFTER_END, "the engine returned a token for sequence 0 after it was done"),
        (WRONG_SEQUENCE, "the engine returned a token for sequence 1, but the number of sequences is 1"),
    ] {
        let lines =
            [&format!(r#"{{"id":2,"prompt_ids":[{first}],"max_new_tokens":4}}"#), r#"{"prompt_ids":[5]}"#];
        let answers = answers_to("contract", Toy::new(), &lines);
        let [Message::Failed(failed), Message::Generated(_)] = answers.as_slice() else {
            panic!("{answers:?}")
        };
        assert_eq!((failed.kind, failed.message.as_str()), (FailureKind::Internal, message));
        assert_eq!(failed.id, Some(Id::Number(2)));
    }
}

#[test]
fn an_engine_that_runs_out_of_memory_causes_an_out_of_memory_failure() {
    let line = format!(r#"{{"prompt_ids":[{RUNS_OUT_OF_MEMORY}]}}"#);
    let failure = failure_of("memory", Toy::new(), &line);
    assert_eq!((failure.kind, failure.message.as_str()), (FailureKind::OutOfMemory, "12 bytes are too many"));
}

#[test]
fn after_a_panic_the_model_is_loaded_again_and_the_engine_continues() {
    let line = format!("{{\"id\":4,\"prompt_ids\":[{PANICS}]}}\n{{\"prompt_ids\":[5]}}");
    let session = converse(Toy::new(), environment("panic"), line);
    let [Message::Failed(failed), Message::Generated(after)] = session.messages.as_slice() else {
        panic!("{}", session.raw)
    };
    assert_eq!((failed.kind, &failed.id), (FailureKind::Internal, &Some(Id::Number(4))));
    assert_eq!(failed.message, "the engine panicked: a requested panic");
    assert!(after.loaded.is_some(), "the model must be loaded again");
    let log: Vec<_> = session.log.iter().map(|line| line.split([' ', '-']).next().unwrap()).collect();
    assert_eq!(log, ["load", "generate", "drop", "load", "generate", "drop"]);
}

#[test]
fn a_cancel_ends_a_running_request_after_its_current_token() {
    let line =
        format!(r#"{{"id":7,"prompt_ids":[{CANCELS_REQUEST_7}],"max_new_tokens":200,"iterations":9}}"#);
    let answer = generate("cancel", &line);
    assert_eq!(answer.iterations.len(), 1);
    assert_eq!((ids(&answer, 0).len(), answer.iterations[0].sequences[0].finish), (4, Finish::Cancelled));
    let warmup = generate("cancel", &line.replace("\"iterations\":9", "\"warmup\":9"));
    assert_eq!((warmup.warmup_iterations.len(), warmup.iterations.len()), (1, 1));
    assert_eq!(warmup.iterations[0].sequences[0].finish, Finish::Cancelled);
}

#[test]
fn a_request_cancelled_before_its_start_has_no_tokens_and_no_work() {
    let lines = [
        r#"{"id":1,"prompt_ids":[5],"max_new_tokens":2}"#,
        r#"{"id":7,"prompts_ids":[[5,6],[7,8]]}"#,
        r#"{"type":"cancel","id":7}"#,
        r#"{"type":"cancel","id":"unknown"}"#,
    ];
    let session = converse(Toy::new(), environment("waiting"), lines.join("\n"));
    let [Message::Generated(first), Message::Generated(cancelled)] = session.messages.as_slice() else {
        panic!("{}", session.raw)
    };
    assert_eq!(ids(first, 0).len(), 2);
    check_times(cancelled);
    let sequences = &cancelled.iterations[0].sequences;
    assert_eq!((cancelled.id.clone(), sequences.len()), (Some(Id::Number(7)), 2));
    assert!(sequences.iter().all(|s| s.finish == Finish::Cancelled && s.output_ids.as_deref() == Some(&[])));
    assert_eq!(session.log.iter().filter(|line| line.starts_with("generate")).count(), 1);
}

#[test]
fn an_id_is_in_use_until_its_request_is_answered() {
    let line = r#"{"id":1,"prompt_ids":[5],"max_new_tokens":2}"#;
    let answers = answers_to("ids", Toy::new(), &[line, line]);
    let [Message::Generated(first), Message::Failed(second)] = answers.as_slice() else {
        panic!("{answers:?}")
    };
    assert_eq!((&first.id, &second.id), (&Some(Id::Number(1)), &None), "only the first answer has the id");
    assert_eq!(second.message, "`id`: 1 belongs to a request that is not answered yet");
}
