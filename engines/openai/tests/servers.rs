//! The engine as a process, with a small server of the test in place of a real one: correct answers, and every way in which a
//! server fails.

#![expect(clippy::unwrap_used, reason = "tests panic")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use serde_json::{Value, json};

/// The answer of the test's server to a request for a completion.
type Answer = fn(&Value, &mut TcpStream) -> std::io::Result<()>;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Starts a server that answers completions in this way, and returns its URL. It ends with the test.
fn server(answer: Answer) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, answer) = (stream.unwrap(), answer.clone());
            thread::spawn(move || serve(stream, *answer));
        }
    });
    url
}

/// Answers the requests of one connection.
fn serve(mut stream: TcpStream, answer: Answer) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        reader.read_line(&mut first).ok().filter(|&read| read > 0)?;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let header = header.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        if first.starts_with("GET") {
            let body = json!({"data": [{"id": "test-model", "max_model_len": 4096}]}).to_string();
            let length = body.len();
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}").ok()?;
            continue;
        }
        answer(&serde_json::from_slice(&body).unwrap_or_default(), &mut stream).ok()?;
    }
}

fn chunk(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    write!(stream, "{:x}\r\n", bytes.len())?;
    stream.write_all(bytes)?;
    stream.write_all(b"\r\n")
}

fn event(stream: &mut TcpStream, event: &Value) -> std::io::Result<()> {
    chunk(stream, format!("data: {event}\n\n").as_bytes())
}

fn text_event(text: &str, tokens: u32, finish: Option<&str>) -> Value {
    json!({
        "choices": [{"text": text, "finish_reason": finish}],
        "usage": {"prompt_tokens": 3, "completion_tokens": tokens},
    })
}

/// Sends `max_tokens` words, each as an event.
fn words(request: &Value, stream: &mut TcpStream) -> std::io::Result<()> {
    let count = request["max_tokens"].as_u64().unwrap() as u32;
    stream.write_all(OK.as_bytes())?;
    for number in 1..=count {
        event(stream, &text_event(" word", number, (number == count).then_some("length")))?;
    }
    chunk(stream, b"data: [DONE]\n\n")?;
    stream.write_all(b"0\r\n\r\n")
}

/// The answers of the engine to these lines, after a load with these options.
fn answers(options: Value, lines: &[Value]) -> Vec<Value> {
    let load = json!({"type": "load", "model": "embedded", "options": options});
    let all = std::iter::once(&load).chain(lines);
    let input: String = all.map(|line| format!("{line}\n")).collect();
    let command = duct::cmd!(env!("CARGO_BIN_EXE_openai-engine"));
    let output = command.stdin_bytes(input).stderr_null().unchecked().read().unwrap();
    let messages = output.lines().map(|line| serde_json::from_str(line).unwrap());
    messages.filter(|message: &Value| message["type"] != "progress").collect()
}

fn generate() -> Value {
    json!({"type": "generate", "prompt_ids": [5, 6, 7], "max_new_tokens": 4, "ignore_eos": true})
}

/// The failure of one request to a server that answers in this way.
fn failure(answer: Answer) -> Value {
    let mut messages = answers(json!({"url": server(answer)}), &[generate(), generate()]);
    assert_eq!(messages[0]["type"], "loaded", "{}", messages[0]);
    // The engine itself goes on after a failure.
    assert_eq!(messages.len(), 3);
    messages.remove(1)
}

#[test]
fn a_text_has_a_time_for_each_piece_and_the_counts_of_the_server() {
    let messages = answers(json!({"url": server(words)}), &[generate()]);
    assert_eq!(messages[0]["context_tokens"], 4096);
    let iteration = &messages[1]["iterations"][0];
    let sequence = &iteration["sequences"][0];
    assert_eq!((&sequence["output_tokens"], &sequence["prompt_tokens"]), (&json!(4), &json!(3)));
    assert_eq!((&sequence["count_source"], &sequence["finish"]), (&json!("usage"), &json!("length")));
    let chunks = sequence["chunks"].as_array().unwrap();
    assert!(chunks.iter().all(|chunk| chunk["text"] == " word" && chunk["tokens"] == 1), "{chunks:?}");
    let times: Vec<u64> = chunks.iter().map(|chunk| chunk["ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted() && times[0] > iteration["start_ns"].as_u64().unwrap());
}

#[test]
fn two_tokens_in_one_piece_are_counted_as_two() {
    let two_pieces: Answer = |_, stream| {
        stream.write_all(OK.as_bytes())?;
        event(stream, &text_event(" one two", 2, None))?;
        event(stream, &text_event(" three four", 4, Some("length")))?;
        chunk(stream, b"data: [DONE]\n\n")?;
        stream.write_all(b"0\r\n\r\n")
    };
    let messages = answers(json!({"url": server(two_pieces)}), &[generate()]);
    let sequence = &messages[1]["iterations"][0]["sequences"][0];
    let tokens: Vec<_> =
        sequence["chunks"].as_array().unwrap().iter().map(|it| it["tokens"].clone()).collect();
    assert_eq!((tokens, &sequence["output_tokens"]), (vec![json!(2), json!(2)], &json!(4)));
}

#[test]
fn a_token_without_text_counts_and_so_does_an_incomplete_character_at_the_end() {
    let special: Answer = |_, stream| {
        stream.write_all(OK.as_bytes())?;
        event(stream, &text_event("", 1, None))?;
        event(stream, &text_event(" word", 2, None))?;
        event(stream, &text_event("", 4, Some("length")))?;
        chunk(stream, b"data: [DONE]\n\n")?;
        stream.write_all(b"0\r\n\r\n")
    };
    let messages = answers(json!({"url": server(special)}), &[generate()]);
    let sequence = &messages[1]["iterations"][0]["sequences"][0];
    let chunks = sequence["chunks"].as_array().unwrap().iter();
    let chunks: Vec<_> = chunks.map(|it| (it["text"].clone(), it["tokens"].clone())).collect();
    assert_eq!(chunks, [(json!(""), json!(1)), (json!(" word"), json!(1)), (json!(""), json!(2))]);
    assert_eq!(sequence["output_tokens"], 4);
}

#[test]
fn a_count_at_the_end_of_an_answer_is_no_piece() {
    let counted_at_the_end: Answer = |_, stream| {
        stream.write_all(OK.as_bytes())?;
        event(stream, &json!({"choices": [{"text": " one"}]}))?;
        event(stream, &json!({"choices": [{"text": " two", "finish_reason": "length"}]}))?;
        event(stream, &json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}))?;
        chunk(stream, b"data: [DONE]\n\n")?;
        stream.write_all(b"0\r\n\r\n")
    };
    let messages = answers(json!({"url": server(counted_at_the_end)}), &[generate()]);
    let sequence = &messages[1]["iterations"][0]["sequences"][0];
    let chunks = sequence["chunks"].as_array().unwrap();
    assert!(chunks.len() == 2 && chunks.iter().all(|it| it["tokens"].is_null()), "{chunks:?}");
    assert_eq!((&sequence["output_tokens"], &sequence["finish"]), (&json!(2), &json!("length")));
}

#[test]
fn overlapping_requests_are_answered_each_with_its_own_output() {
    let numbered = |id: u32| json!({"type": "generate", "id": id, "prompt_ids": [5, 6, 7], "max_new_tokens": id, "ignore_eos": true});
    let requests: Vec<Value> = (1..=16).map(numbered).collect();
    let messages = answers(json!({"url": server(words)}), &requests);
    let mut outputs: Vec<(u64, u64)> = messages[1..]
        .iter()
        .map(|message| {
            let tokens = &message["iterations"][0]["sequences"][0]["output_tokens"];
            (message["id"].as_u64().unwrap(), tokens.as_u64().unwrap())
        })
        .collect();
    outputs.sort_unstable();
    assert_eq!(outputs, (1..=16).map(|id| (id, id)).collect::<Vec<_>>());
}

#[test]
fn a_cancel_ends_a_request_whose_server_sends_nothing() {
    let silence: Answer = |_, stream| {
        stream.write_all(OK.as_bytes())?;
        // Returns when the engine closes the connection.
        stream.read(&mut [0]).map(drop)
    };
    let request = json!({"type": "generate", "id": 1, "prompt_ids": [5, 6, 7], "max_new_tokens": 4});
    let cancel = json!({"type": "cancel", "id": 1});
    let messages = answers(json!({"url": server(silence)}), &[request, cancel]);
    assert_eq!(messages[1]["iterations"][0]["sequences"][0]["finish"], "cancelled", "{}", messages[1]);
}

#[test]
fn an_error_of_the_server_is_the_failure_of_its_request() {
    let failed = failure(|_, stream| {
        let body = r#"{"error":{"message":"the model crashed"}}"#;
        write!(stream, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    });
    assert_eq!((&failed["type"], &failed["kind"]), (&json!("failed"), &json!("internal")));
    let message = "the server answered 500 Internal Server Error: the model crashed";
    assert_eq!(failed["message"], message);
}

#[test]
fn a_refusal_of_the_server_is_a_bad_request() {
    let failed = failure(|_, stream| {
        let body = r#"{"message":"max_tokens is too large"}"#;
        write!(stream, "HTTP/1.1 400 Bad Request\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    });
    assert_eq!(failed["kind"], "bad_request");
    assert_eq!(failed["message"], "the server answered 400 Bad Request: max_tokens is too large");
}

#[test]
fn an_answer_without_a_stream_fails_the_request() {
    let failed = failure(|_, stream| {
        let body = r#"{"choices":[{"text":" word"}]}"#;
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    });
    assert_eq!(failed["message"], r#"the server sent no stream of events: {"choices":[{"text":" word"}]}"#);
}

#[test]
fn a_connection_that_breaks_off_fails_the_request() {
    let failed = failure(|_, stream| {
        stream.write_all(OK.as_bytes())?;
        event(stream, &text_event(" word", 1, None))?;
        stream.shutdown(std::net::Shutdown::Both)
    });
    assert_eq!(failed["kind"], "internal", "{failed}");
}

#[test]
fn half_a_character_fails_the_request() {
    let failed = failure(|_, stream| {
        stream.write_all(OK.as_bytes())?;
        chunk(stream, b"data: {\"choices\":[{\"text\":\"\xc3\"}]}\n\n")
    });
    assert_eq!(failed["message"], "the server sent a line that is no UTF-8");
}

#[test]
fn an_error_inside_the_stream_fails_the_request() {
    let failed = failure(|_, stream| {
        stream.write_all(OK.as_bytes())?;
        event(stream, &text_event(" word", 1, None))?;
        event(stream, &json!({"error": {"message": "out of memory"}}))
    });
    assert_eq!(failed["message"], "the server reports an error: out of memory");
}

#[test]
fn a_server_without_counts_fails_the_request() {
    let failed = failure(|_, stream| {
        stream.write_all(OK.as_bytes())?;
        event(stream, &json!({"choices": [{"text": " word", "finish_reason": "length"}]}))?;
        chunk(stream, b"data: [DONE]\n\n")?;
        stream.write_all(b"0\r\n\r\n")
    });
    assert_eq!(failed["message"], "the server does not say how many tokens its answer has");
}

#[test]
fn no_server_is_reported_with_its_url() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let messages = answers(json!({"url": format!("http://{unused}")}), &[]);
    assert_eq!((&messages[0]["type"], &messages[0]["kind"]), (&json!("failed"), &json!("unavailable")));
    let message = messages[0]["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("no healthy server at `http://{unused}/v1/models`: ")), "{message}");
}

#[test]
fn a_command_that_ends_is_reported_with_its_output() {
    let messages = answers(json!({"command": "ls /no/such/folder"}), &[]);
    let message = messages[0]["message"].as_str().unwrap();
    assert!(message.contains("the server `ls` has ended"), "{message}");
    assert!(message.contains("/no/such/folder"), "{message}");
}

#[test]
fn a_server_that_needs_longer_is_reported_with_the_option_for_it() {
    // A program that runs and opens no port.
    let messages = answers(json!({"command": "tail -f /dev/null", "start_seconds": 1}), &[]);
    assert_eq!(messages[0]["message"], "the server `tail` was not healthy after 1 s");
    assert_eq!(messages[0]["hint"], "--set start_seconds=2");
}

#[test]
fn a_planted_delay_is_refused_because_it_would_not_hold_back_the_server() {
    let messages = answers(json!({"url": server(words), "planted_delay_us": 100}), &[]);
    assert_eq!(messages[0]["kind"], "unsupported");
    let expected = "`planted_delay_us`: an engine that gives text cannot delay its tokens";
    assert_eq!(messages[0]["message"], expected);
}

#[test]
fn a_load_without_a_server_says_how_to_name_one() {
    let messages = answers(json!({}), &[]);
    assert_eq!(messages[0]["message"], "no server is named");
    assert!(messages[0]["hint"].as_str().unwrap().starts_with("--set url=http://127.0.0.1:8000"));
}
