//! Tests that `tests/smallest-engine.py`, the example in `protocol/README.md`, follows the protocol.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue panics")]

mod support;

use std::io::Write;
use std::process::Stdio;

use protocol::{FailureKind, Message, parse_message};

use support::command_of;

fn answers(lines: &str) -> Vec<Message> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../smallest-engine.py");
    let mut child = command_of(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    let parse = |line: &[u8]| parse_message(line).unwrap_or_else(|refused| panic!("{}", refused.message));
    output.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).map(parse).collect()
}

#[test]
fn the_smallest_engine_supports_only_generate() {
    let answers = answers("{\"type\":\"hello\",\"protocol\":1}\n{\"type\":\"load\",\"model\":\"m\"}\n");
    let kinds: Vec<_> = answers
        .iter()
        .map(|answer| if let Message::Failed(failed) = answer { Some(failed.kind) } else { None })
        .collect();
    assert_eq!(kinds, [Some(FailureKind::Unsupported); 2]);
}

#[test]
fn the_smallest_engine_reports_plausible_facts() {
    let answers = answers(
        "{\"prompt\":\"Hello\",\"iterations\":3}\n{\"id\":7,\"prompt_ids\":[1,2],\"max_new_tokens\":5}\n",
    );
    let [Message::Generated(text), Message::Generated(ids)] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((text.id.as_ref(), text.iterations.len()), (None, 3));
    assert_eq!((ids.id.as_ref(), ids.iterations.len()), (Some(&protocol::Id::Number(7)), 1));
    let mut previous_end_ns = 0;
    for iteration in &text.iterations {
        let [sequence] = &iteration.sequences[..] else { panic!("{iteration:?}") };
        let (ids, times) = (sequence.output_ids.as_ref().unwrap(), sequence.token_ns.as_ref().unwrap());
        // The default is 32 output tokens. The engine counts each byte of `Hello` as a token.
        assert_eq!((ids.len(), times.len(), sequence.prompt_tokens), (32, 32, 5));
        assert_eq!(Some(ids), text.iterations[0].sequences[0].output_ids.as_ref());
        assert!(previous_end_ns <= iteration.start_ns && iteration.start_ns < times[0]);
        assert!(times.is_sorted() && times[31] <= iteration.end_ns);
        previous_end_ns = iteration.end_ns;
    }
}

#[test]
fn the_smallest_engine_survives_invalid_lines() {
    let answers = answers("<\n\n[]\n{\"prompt\":5}\n{\"prompt\":\"a\",\"max_new_tokens\":1}\n");
    assert!(answers[..4].iter().all(|answer| matches!(answer, Message::Failed(_))), "{answers:?}");
    assert!(matches!(&answers[4..], [Message::Generated(_)]), "{answers:?}");
}
