//! The facts in which servers differ: how each is started and asked for its health, the request that it takes, and the meaning of
//! an event of its answer.

use std::path::PathBuf;

use engine_kit::child_server::ChildServer;
use engine_kit::model_files::ModelFolder;
use engine_kit::protocol::{Facts, Failed, Finish, IgnoreEos, Sampling};
use engine_kit::{Job, Phases};
use serde_json::{Map, Value, json};

/// A kind of server.
#[derive(Clone, Copy)]
pub struct Kind {
    /// The name of the engine.
    pub name: &'static str,
    pub version: &'static str,
    /// The formats of models that the server reads. Empty: unknown.
    pub formats: &'static [&'static str],
    /// The dtypes of models that the server reads. Empty: unknown.
    pub dtypes: &'static [&'static str],
    pub ignore_eos: IgnoreEos,
    /// The command that starts the server. `None` if the user names a command, or the URL of a server.
    pub command: Option<Command>,
    pub health_path: &'static str,
    pub completions_path: &'static str,
    /// Whether each request switches the server's prefix cache on or off. Otherwise the server decides.
    pub prefix_cache_toggle: bool,
    /// The body of a request for one prompt to a model with this name.
    pub body: fn(&Job, &str) -> Value,
    /// The piece that an event of the answer holds. Fields of other types than expected count as absent.
    pub piece: fn(&Value) -> Piece,
    /// The facts that the server states about itself after its start.
    pub facts: fn(&Statements) -> Facts,
}

#[derive(Clone, Copy)]
pub struct Command {
    /// Finds the program.
    pub program: fn() -> Result<PathBuf, Failed>,
    /// The file or folder that the server reads: the model in a dtype, which may need a conversion.
    pub model: fn(&ModelFolder, Option<&str>, &mut Phases) -> Result<PathBuf, Failed>,
    /// The arguments, with places for the values of a load such as `{port}`.
    pub arguments: &'static str,
}

/// The places where a server states facts about itself.
pub struct Statements<'a> {
    /// The entry of the model in `/v1/models`.
    pub model: &'a Value,
    /// The JSON that the server answers for a path. `Null` if it has none.
    pub get: &'a dyn Fn(&str) -> Value,
    /// The process of the server, if the load started it.
    pub child: Option<&'a ChildServer>,
}

/// A piece of an answer.
#[derive(Debug, Default, PartialEq)]
pub struct Piece {
    pub text: String,
    /// The number of all tokens so far, as the server counts them.
    pub tokens_so_far: Option<u32>,
    pub prompt_tokens: Option<u32>,
    pub cached_prompt_tokens: Option<u32>,
    pub finish: Option<Finish>,
}

/// The fields of a request that most servers share.
pub fn prompt_and_sampling(job: &Job) -> Map<String, Value> {
    let mut body = Map::new();
    let mut set = |name: &str, value: Value| drop(body.insert(name.into(), value));
    set("prompt", json!(job.prompts[0]));
    set("stream", true.into());
    set("ignore_eos", job.ignore_eos.into());
    match &job.sampling {
        None => set("temperature", 0.into()),
        Some(Sampling { temperature, top_k, top_p, seed }) => {
            set("temperature", json!(temperature));
            set("top_k", json!(top_k));
            set("top_p", json!(top_p.unwrap_or(1.0)));
            set("seed", json!(seed));
        }
    }
    body
}

/// A count in an event.
pub fn number(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}
