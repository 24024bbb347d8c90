//! Tests requests with ids on an engine that has slots.
#![expect(clippy::unwrap_used, reason = "tests panic and print")]

mod toy;

use engine_kit::protocol::{FailureKind, Finish, Generated, Id, Message};
use toy::{
    CANCELS_REQUEST_7, ENDS_WITH_EOS, FAILS_ONE_REQUEST, PANICS, RUNS_OUT_OF_MEMORY, Toy, converse,
    environment,
};

/// The id of each answer, with the answer or the kind of its failure.
fn answers(messages: &[Message]) -> Vec<(Option<Id>, Result<&Generated, FailureKind>)> {
    messages
        .iter()
        .filter(|message| !matches!(message, Message::Token(_)))
        .map(|message| match message {
            Message::Generated(generated) => (generated.id.clone(), Ok(generated)),
            Message::Failed(failed) => (failed.id.clone(), Err(failed.kind)),
            other => panic!("unexpected {other:?}"),
        })
        .collect()
}

fn answered_ids(messages: &[Message]) -> Vec<Option<Id>> {
    answers(messages).into_iter().map(|(id, _)| id).collect()
}

fn numeric_id(number: u64) -> Option<Id> {
    Some(Id::Number(number))
}

#[test]
fn requests_with_ids_overlap_and_a_free_slot_is_used_at_once() {
    let lines = [
        r#"{"id":1,"prompt_ids":[5],"max_new_tokens":6}"#,
        r#"{"id":2,"prompt_ids":[6],"max_new_tokens":2}"#,
        r#"{"id":3,"prompts_ids":[[7],[8]],"max_new_tokens":2,"iterations":2}"#,
    ];
    let session = converse(Toy::overlapping(), environment("slots"), lines.join("\n"));
    assert_eq!(answered_ids(&session.messages), [numeric_id(2), numeric_id(1), numeric_id(3)]);
    let answers = answers(&session.messages);
    assert!(answers[1].1.unwrap().loaded.is_some(), "the first request caused the load");
    for iteration in answers.iter().flat_map(|(_, generated)| &generated.unwrap().iterations) {
        for sequence in &iteration.sequences {
            let ns = sequence.token_ns.as_ref().unwrap();
            assert!(iteration.start_ns < ns[0] && ns.is_sorted() && ns[ns.len() - 1] <= iteration.end_ns);
        }
    }
    let third = answers[2].1.unwrap();
    assert_eq!((third.iterations.len(), third.iterations[1].sequences.len()), (2, 2));
    let log: Vec<_> = session.log.iter().skip(1).map(String::as_str).collect();
    // `admit SLOT PROMPTS`, `step NUMBER_OF_REQUESTS`, `leave SLOT`.
    let expected = [
        "admit 0 [[5]]",
        "admit 1 [[6]]",
        "step 2",
        "step 2",
        "leave 1",
        "admit 1 [[7], [8]]",
        "step 2",
        "step 2",
        "leave 1",
        "admit 1 [[7], [8]]",
        "step 2",
        "step 2",
        "leave 0",
        "leave 1",
        "drop",
    ];
    assert_eq!(log, expected);
}

#[test]
fn the_next_iteration_of_a_request_begins_after_the_answers_to_others() {
    let lines = [
        r#"{"id":1,"prompt_ids":[5],"max_new_tokens":2,"iterations":2}"#,
        r#"{"id":2,"prompt_ids":[6],"max_new_tokens":2}"#,
    ];
    let session = converse(Toy::overlapping(), environment("after-answers"), lines.join("\n"));
    assert_eq!(answered_ids(&session.messages), [numeric_id(2), numeric_id(1)]);
    let log: Vec<_> = session.log.iter().skip(1).map(String::as_str).collect();
    let second_iteration = ["leave 0", "leave 1", "admit 0 [[5]]", "step 1", "step 1", "leave 0", "drop"];
    assert!(log.ends_with(&second_iteration), "{log:?}");
}

#[test]
fn the_first_text_waits_because_it_opens_the_tokenizer_and_later_texts_overlap() {
    let lines = [
        r#"{"id":1,"prompt_ids":[5],"max_new_tokens":3}"#,
        r#"{"id":2,"prompt":"w6","max_new_tokens":3}"#,
        r#"{"id":3,"prompt":"w7","max_new_tokens":3}"#,
    ];
    let session = converse(Toy::overlapping(), environment("first-text"), lines.join("\n"));
    let steps: Vec<_> = session.log.iter().filter(|it| it.starts_with("step")).map(String::as_str).collect();
    assert_eq!(steps, ["step 1", "step 1", "step 1", "step 2", "step 2", "step 2"], "{:?}", session.log);
}

#[test]
fn a_request_gets_the_same_tokens_alone_and_with_other_requests() {
    let line = |id: u64, first: u32| format!(r#"{{"id":{id},"prompt_ids":[{first}],"max_new_tokens":9}}"#);
    let alone = converse(Toy::new(), environment("alone"), line(1, 5));
    let together = [line(1, 5), line(2, ENDS_WITH_EOS), line(3, 9)].join("\n");
    let together = converse(Toy::overlapping(), environment("among"), together);
    let ids = |messages: &[Message]| {
        let (_, answer) = answers(messages).into_iter().find(|(id, _)| *id == numeric_id(1)).unwrap();
        answer.unwrap().iterations[0].sequences[0].output_ids.clone()
    };
    assert!(ids(&alone.messages).is_some_and(|ids| ids.len() == 9));
    assert_eq!(ids(&alone.messages), ids(&together.messages));
}

#[test]
fn streams_of_overlapping_requests_carry_their_ids() {
    let lines = [
        r#"{"id":1,"prompt_ids":[5],"max_new_tokens":3,"stream":true}"#,
        r#"{"id":2,"prompt_ids":[9],"max_new_tokens":3,"stream":true}"#,
    ];
    let session = converse(Toy::overlapping(), environment("streams"), lines.join("\n"));
    for (id, generated) in answers(&session.messages) {
        let streamed: Vec<u32> = session
            .messages
            .iter()
            .filter_map(|message| match message {
                Message::Token(token) if token.id == id => Some(token.ids[0]),
                _ => None,
            })
            .collect();
        assert_eq!(Some(streamed), generated.unwrap().iterations[0].sequences[0].output_ids);
    }
}

#[test]
fn a_request_without_an_id_waits_for_running_requests_and_delays_later_requests() {
    let lines = [
        r#"{"id":1,"prompt_ids":[5],"max_new_tokens":3}"#,
        r#"{"prompt_ids":[6],"max_new_tokens":1}"#,
        r#"{"id":2,"prompt_ids":[7],"max_new_tokens":1}"#,
        r#"{"type":"shutdown"}"#,
    ];
    let session = converse(Toy::overlapping(), environment("order"), lines.join("\n"));
    let (bye, generated) = session.messages.split_last().unwrap();
    assert!(matches!(bye, Message::Bye {}));
    assert_eq!(answered_ids(generated), [numeric_id(1), None, numeric_id(2)]);
    assert!(session.log.iter().all(|line| line != "step 2"), "{:?}", session.log);
}

#[test]
fn a_cancel_ends_only_its_request() {
    let lines = [
        r#"{"id":7,"prompt_ids":[5],"max_new_tokens":200}"#.to_string(),
        format!(r#"{{"id":8,"prompt_ids":[{CANCELS_REQUEST_7}],"max_new_tokens":12}}"#),
    ];
    let session = converse(Toy::overlapping(), environment("one"), lines.join("\n"));
    let answers = answers(&session.messages);
    let finish = |index: usize| answers[index].1.unwrap().iterations[0].sequences[0].finish;
    assert_eq!((answers[0].0.clone(), finish(0)), (numeric_id(7), Finish::Cancelled));
    assert_eq!((answers[1].0.clone(), finish(1)), (numeric_id(8), Finish::Length));
}

#[test]
fn an_invalid_request_is_refused_while_others_run() {
    let lines =
        [r#"{"id":1,"prompt_ids":[5],"max_new_tokens":4}"#, "nonsense", r#"{"id":2,"prompt_ids":[9999]}"#];
    let session = converse(Toy::overlapping(), environment("neighbours"), lines.join("\n"));
    assert_eq!(answered_ids(&session.messages), [None, numeric_id(2), numeric_id(1)]);
    let answers = answers(&session.messages);
    assert_eq!((answers[0].1, answers[1].1), (Err(FailureKind::BadRequest), Err(FailureKind::BadRequest)));
    assert!(answers[2].1.is_ok());
}

#[test]
fn after_a_failed_step_every_request_is_answered_once_and_the_engine_continues() {
    for (first, kind) in [(RUNS_OUT_OF_MEMORY, FailureKind::OutOfMemory), (PANICS, FailureKind::Internal)] {
        let lines = [
            r#"{"id":1,"prompt_ids":[5],"max_new_tokens":9}"#.to_string(),
            format!(r#"{{"id":2,"prompt_ids":[{first}]}}"#),
            r#"{"id":3,"prompt_ids":[5],"max_new_tokens":2}"#.to_string(),
        ];
        let session = converse(Toy::overlapping(), environment("step"), lines.join("\n"));
        assert_eq!(answered_ids(&session.messages), [numeric_id(1), numeric_id(2), numeric_id(3)]);
        let answers = answers(&session.messages);
        assert_eq!((answers[0].1, answers[1].1), (Err(kind), Err(kind)));
        let third = answers[2].1.unwrap();
        assert_eq!(third.loaded.is_some(), first == PANICS, "only a panic drops the model");
    }
}

#[test]
fn a_request_that_fails_alone_frees_its_slot() {
    let lines = [
        r#"{"id":1,"prompt_ids":[5],"max_new_tokens":6}"#.to_string(),
        format!(r#"{{"id":2,"prompts_ids":[[{FAILS_ONE_REQUEST}],[7]],"max_new_tokens":6}}"#),
        r#"{"id":3,"prompt_ids":[6],"max_new_tokens":2}"#.to_string(),
    ];
    let session = converse(Toy::overlapping(), environment("by itself"), lines.join("\n"));
    let answers = answers(&session.messages);
    assert_eq!((answers[0].0.clone(), answers[0].1), (numeric_id(2), Err(FailureKind::Model)));
    assert!(answers[1..].iter().all(|(_, answer)| answer.is_ok()) && answers.len() == 3);
}

#[test]
fn an_engine_without_slots_runs_requests_one_after_the_other() {
    let mut toy = Toy::overlapping();
    toy.has_slots = false;
    let lines = [
        r#"{"id":1,"prompt_ids":[5],"max_new_tokens":6}"#,
        r#"{"id":2,"prompt_ids":[6],"max_new_tokens":2}"#,
    ];
    let session = converse(toy, environment("sequential"), lines.join("\n"));
    assert_eq!(answered_ids(&session.messages), [numeric_id(1), numeric_id(2)]);
}
