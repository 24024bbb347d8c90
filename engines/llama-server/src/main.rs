//! The engine `llama-server`: llama.cpp's server, by its own `/completion`, which takes more settings than its `/v1/completions`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use engine_kit::protocol::{Facts, Failed, FailureKind, Finish, IgnoreEos};
use engine_kit::{Job, gguf};
use serde_json::Value;
use server_client::{Command, Kind, Piece, Statements, number, prompt_and_sampling};

const LLAMA_SERVER: Kind = Kind {
    name: "llama-server",
    version: env!("CARGO_PKG_VERSION"),
    formats: &["gguf"],
    dtypes: &["bf16", "f16", "f32", "q8_0", "q4_0", "q4_k", "q6_k"],
    // The server makes EOS unreachable.
    ignore_eos: IgnoreEos::Masked,
    command: Some(Command { program: find_program, model: gguf::file_of, arguments: ARGUMENTS }),
    health_path: "/health",
    completions_path: "/completion",
    prefix_cache_toggle: true,
    body,
    piece,
    facts,
};

/// The context of the server is divided among its slots. `--cache-ram 0`: else the server copies the keys and values of each
/// request into a second cache of up to 8 GiB, and few requests allow a prefix cache. Those of a slot are always kept.
const ARGUMENTS: &str = "--model {model} --host 127.0.0.1 --port {port} --threads {threads} --threads-batch {threads} \
    --parallel {slots} --ctx-size {all_context} --cache-type-k f16 --cache-type-v f16 --no-cache-prompt --cache-ram 0";
/// The dtype of keys and values in `ARGUMENTS`, which is also the server's own default.
const KV_DTYPE: &str = "f16";

/// The text that identifies the environment whose set-up builds the server.
const DEFINITION: &str = concat!(
    include_str!("../../llama-cpp/requirements.txt"),
    include_str!("../../llama-cpp/build-requirements.txt"),
    include_str!("../build-settings.txt"),
    include_str!("../../llama-cpp/build-fixes.cmake"),
    include_str!("../build-server.cmake"),
);

fn main() -> ExitCode {
    server_client::serve(LLAMA_SERVER)
}

/// The server of the environment, else the one on PATH.
fn find_program() -> Result<PathBuf, Failed> {
    let environment = paths::environment("llama-server", DEFINITION).ok();
    let built = environment.filter(|folder| paths::interpreter(folder).is_some());
    let built = built.and_then(|folder| installed(&folder));
    built.or_else(|| which::which("llama-server").ok()).ok_or_else(|| {
        let message = "no `llama-server`, neither in the environment of this engine nor on PATH";
        Failed::new(FailureKind::Unavailable, message).hint("orchestrate setup llama-server")
    })
}

/// The program in the packages of an environment, whose path has the version of Python.
fn installed(environment: &Path) -> Option<PathBuf> {
    let folders = std::fs::read_dir(environment.join("lib")).ok()?.flatten();
    let mut programs = folders.map(|folder| folder.path().join("site-packages/bin/llama-server"));
    programs.find(|program| program.is_file())
}

fn body(job: &Job, _: &str) -> Value {
    let mut body = prompt_and_sampling(job);
    body.insert("n_predict".into(), job.max_new_tokens.into());
    body.insert("cache_prompt".into(), job.prefix_cache.into());
    // The server's defaults remove unlikely tokens, which no request asks for.
    body.insert("min_p".into(), 0.into());
    Value::Object(body)
}

/// The server states its weights in `/v1/models`, its version in `/props`, and its threads in its log.
fn facts(statements: &Statements) -> Facts {
    let meta = &statements.model["meta"];
    let dtype = meta["ftype"].as_str().and_then(weights_dtype);
    let props = (statements.get)("/props");
    let version = props["build_info"].as_str().map(|version| ("llama.cpp".to_string(), version.to_string()));
    let child = statements.child;
    Facts {
        device: Some("cpu".into()),
        compute_dtype: dtype.as_deref().map(compute_dtype),
        weights_dtype: dtype,
        kv_dtype: Some(KV_DTYPE.into()),
        threads: child.and_then(|child| child.find_in_log(threads)),
        context_tokens: number(&meta["n_ctx"]),
        use_cache: Some(true),
        weights_bytes: meta["size"].as_u64(),
        parameters: meta["n_params"].as_u64(),
        vocabulary_size: number(&meta["n_vocab"]),
        hidden_size: number(&meta["n_embd"]),
        libraries: version.into_iter().collect(),
        ..Facts::default()
    }
}

/// The dtype in llama.cpp's name of a file's type: `f32` in `all F32`, `q4_k` in `Q4_K - Medium`.
fn weights_dtype(file_type: &str) -> Option<String> {
    let name = file_type.trim_start_matches("(guessed) ").trim_start_matches("all ");
    let name = name.split_whitespace().next().filter(|_| !name.starts_with("unknown"));
    name.map(str::to_ascii_lowercase)
}

/// The dtype to which llama.cpp rounds activations before a product with weights of this dtype.
fn compute_dtype(weights_dtype: &str) -> String {
    match weights_dtype {
        "f32" | "f16" | "bf16" => weights_dtype,
        quantized if quantized.contains("_k") => "q8_k",
        _ => "q8_0",
    }
    .into()
}

/// The number of threads in the line of the log that states it.
fn threads(line: &str) -> Option<u32> {
    let (_, rest) = line.split_once("n_threads = ")?;
    rest.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok()
}

fn piece(event: &Value) -> Piece {
    let is_last = event["stop"].as_bool() == Some(true);
    let finish = if event["stop_type"].as_str() == Some("limit") { Finish::Length } else { Finish::Eos };
    Piece {
        text: event["content"].as_str().unwrap_or_default().into(),
        tokens_so_far: number(&event["tokens_predicted"]),
        prompt_tokens: number(&event["tokens_evaluated"]),
        cached_prompt_tokens: number(&event["timings"]["cache_n"]),
        finish: is_last.then_some(finish),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_event_has_the_counts_and_the_reason_of_the_end() {
        let event = json!({"content": "", "stop": true, "stop_type": "limit", "tokens_predicted": 8,
            "tokens_evaluated": 5, "timings": {"cache_n": 0}});
        let expected = Piece {
            text: String::new(),
            tokens_so_far: Some(8),
            prompt_tokens: Some(5),
            cached_prompt_tokens: Some(0),
            finish: Some(Finish::Length),
        };
        assert_eq!(piece(&event), expected);
        let at_eos = json!({"content": "a", "stop": true, "stop_type": "eos"});
        assert_eq!(piece(&at_eos).finish, Some(Finish::Eos));
        let partial = json!({"content": "a", "stop": false, "tokens_predicted": 1});
        assert_eq!((piece(&partial).finish, piece(&partial).tokens_so_far), (None, Some(1)));
    }

    #[test]
    fn the_servers_own_words_become_dtypes_and_threads() {
        let dtypes = ["all F32", "BF16", "Q8_0", "Q4_K - Medium", "(guessed) Q6_K"].map(weights_dtype);
        assert_eq!(dtypes.map(Option::unwrap), ["f32", "bf16", "q8_0", "q4_k", "q6_k"]);
        assert_eq!(weights_dtype("unknown, may not work"), None);
        assert_eq!(["bf16", "q4_0", "q4_k"].map(compute_dtype), ["bf16", "q8_0", "q8_k"]);
        assert_eq!(threads("I cmn  init: llama threadpool init, n_threads = 2"), Some(2));
        assert_eq!(threads("srv load_model: loading model"), None);
    }
}
