//! The engine `openai`: a client of any server with the OpenAI API.

use std::process::ExitCode;

use engine_kit::Job;
use engine_kit::protocol::{Facts, Finish, IgnoreEos};
use serde_json::{Value, json};
use server_client::{Kind, Piece, Statements, number, prompt_and_sampling};

/// Any server with `/v1/completions` that takes ids as prompts.
const OPENAI: Kind = Kind {
    name: "openai",
    version: env!("CARGO_PKG_VERSION"),
    formats: &[],
    dtypes: &[],
    // Some servers make EOS unreachable, and the text of others does not show it.
    ignore_eos: IgnoreEos::Masked,
    command: None,
    health_path: "/v1/models",
    completions_path: "/v1/completions",
    prefix_cache_toggle: false,
    body: completions_body,
    piece: completions_piece,
    facts: completions_facts,
};

fn main() -> ExitCode {
    server_client::serve(OPENAI)
}

/// The body of a request to `/v1/completions`. Some servers know more fields than the API, and ignore others.
fn completions_body(job: &Job, model: &str) -> Value {
    let mut body = prompt_and_sampling(job);
    body.insert("model".into(), model.into());
    body.insert("max_tokens".into(), job.max_new_tokens.into());
    // Each event has the number of tokens so far: in `usage` from vLLM and others, in `timings` from llama.cpp's server.
    let usage = json!({ "include_usage": true, "continuous_usage_stats": true });
    body.insert("stream_options".into(), usage);
    body.insert("timings_per_token".into(), true.into());
    Value::Object(body)
}

fn completions_piece(event: &Value) -> Piece {
    let (choice, usage) = (&event["choices"][0], &event["usage"]);
    let finish = match choice["finish_reason"].as_str() {
        None => None,
        Some("length") => Some(Finish::Length),
        Some(_) => Some(Finish::Eos),
    };
    Piece {
        text: choice["text"].as_str().unwrap_or_default().into(),
        tokens_so_far: number(&usage["completion_tokens"]).or(number(&event["timings"]["predicted_n"])),
        prompt_tokens: number(&usage["prompt_tokens"]),
        cached_prompt_tokens: number(&usage["prompt_tokens_details"]["cached_tokens"]),
        finish,
    }
}

/// vLLM reports `max_model_len`, and llama.cpp's server the context of a request in `meta`.
fn completions_facts(statements: &Statements) -> Facts {
    let model = statements.model;
    let context_tokens = number(&model["max_model_len"]).or(number(&model["meta"]["n_ctx"]));
    Facts { context_tokens, ..Facts::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_the_count_of_usage_or_of_timings() {
        let event = |more: Value| {
            let mut event = json!({"choices": [{"text": "a", "finish_reason": null}]});
            event.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
            completions_piece(&event)
        };
        let counted = |count| Piece { text: "a".into(), tokens_so_far: count, ..Piece::default() };
        assert_eq!(event(json!({"usage": {"completion_tokens": 3}})), counted(Some(3)));
        assert_eq!(event(json!({"timings": {"predicted_n": 2}})), counted(Some(2)));
        assert_eq!(event(json!({"usage": null, "timings": {"predicted_n": "2"}})), counted(None));
    }
}
