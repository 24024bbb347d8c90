//! The facts of the engine, and its load: finds or starts the server.

use std::time::Duration;

use engine_kit::child_server::{ChildServer, FreePort};
use engine_kit::model_files::ModelFolder;
use engine_kit::protocol::{Capabilities, Facts, Failed, FailureKind, HelloFacts, Load, Output, Stamp};
use engine_kit::{Engine, Options, Phases, facts};
use serde_json::Value;

use crate::client::Server;
use crate::http::Address;
use crate::kind::{Kind, Statements};
use crate::model::ServerModel;

/// The most requests that may overlap.
pub const SLOTS: u32 = 64;
/// The requests that a server which the engine starts can compute together, unless the option `slots` names another number. It is
/// the number that llama.cpp's server has by itself.
const DEFAULT_SLOTS: u64 = 4;
/// The time that a server has to become healthy, unless the option `start_seconds` names another one.
const DEFAULT_START_SECONDS: u64 = 600;
/// The context of a server that the engine starts, if the load names none.
const DEFAULT_CONTEXT: u32 = 4096;

/// The options of every server that the engine starts.
const START_OPTIONS: [&str; 2] = ["slots", "start_seconds"];
/// The options of a server that the user names.
const SERVER_OPTIONS: [&str; 5] = ["url", "command", "health_path", "model", "key_variable"];

/// The engine: a client of this kind of server.
pub struct Client {
    pub kind: Kind,
}

impl Engine for Client {
    type Model = ServerModel;

    fn hello(&self) -> Result<HelloFacts, Failed> {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
        let hello = engine_kit::hello(self.kind.name, self.kind.version);
        let capabilities = Capabilities {
            dtypes: names(self.kind.dtypes),
            options: Some(names(&self.option_names())),
            formats: names(self.kind.formats),
            concurrency: SLOTS,
            prefix_cache_toggle: self.kind.prefix_cache_toggle,
            ignore_eos: self.kind.ignore_eos,
            sampling: true,
            // Only ids can be streamed.
            stream: false,
            ..hello.capabilities
        };
        // The requests that a server computes together may change each other's numbers.
        let deterministic = false;
        Ok(HelloFacts { output: Output::Text, stamp: Stamp::Chunk, deterministic, capabilities, ..hello })
    }

    /// A model for a server of this engine is converted by `Command::model`, and a server of the user has its model already.
    fn converts_formats(&self) -> bool {
        true
    }

    fn load(
        &mut self,
        folder: &ModelFolder,
        load: &Load,
        phases: &mut Phases,
    ) -> Result<ServerModel, Failed> {
        let settings = Settings::read(&load.options)?;
        let health_path = settings.health_path.unwrap_or(self.kind.health_path);
        let server = if let Some(url) = settings.url {
            self.running_server(url, settings.key()?.as_deref(), health_path, phases)?
        } else {
            self.started_server(folder, load, &settings, health_path, phases)?
        };
        let facts = self.facts(&server);
        if let (Some(requested), Some(found)) = (&load.dtype, &facts.weights_dtype)
            && requested != found
        {
            let message = format!("the server has weights in `{found}`, and `{requested}` was requested");
            return Err(Failed::new(FailureKind::Unsupported, message));
        }
        let RunningServer { server, child, served } = server;
        let model = settings.model.or(served["id"].as_str()).unwrap_or("default").to_string();
        phases.phase("connections", || server.open_connections(settings.slots as usize, health_path));
        Ok(ServerModel::new(self.kind, server, child, model, facts))
    }
}

/// A healthy server.
struct RunningServer {
    server: Server,
    child: Option<(ChildServer, FreePort)>,
    /// The first entry of `/v1/models`, or null.
    served: Value,
}

impl RunningServer {
    fn new(server: Server, child: Option<(ChildServer, FreePort)>) -> Self {
        let models = server.status("/v1/models").unwrap_or_default();
        let served = models.pointer("/data/0").cloned().unwrap_or_default();
        Self { server, child, served }
    }
}

impl Client {
    fn option_names(&self) -> Vec<&'static str> {
        let of_server = if self.kind.command.is_none() { &SERVER_OPTIONS[..] } else { &[] };
        [of_server, &START_OPTIONS].concat()
    }

    /// Finds a server that runs already.
    fn running_server(
        &self,
        url: &str,
        key: Option<&str>,
        health_path: &str,
        phases: &mut Phases,
    ) -> Result<RunningServer, Failed> {
        let Some(address) = Address::of(url) else {
            let message =
                format!("option `url`: expected a URL such as http://127.0.0.1:8000, found `{url}`");
            return Err(Failed::new(FailureKind::BadRequest, message));
        };
        let server = Server::new(address, key);
        phases.phase("health", || server.status(health_path)).map_err(|reason| {
            let message = format!("no healthy server at `{}`: {reason}", server.url(health_path));
            Failed::new(FailureKind::Unavailable, message)
        })?;
        Ok(RunningServer::new(server, None))
    }

    /// Starts a server, and waits until it is healthy.
    fn started_server(
        &self,
        folder: &ModelFolder,
        load: &Load,
        settings: &Settings,
        health_path: &str,
        phases: &mut Phases,
    ) -> Result<RunningServer, Failed> {
        let (program, arguments, model) = match (settings.command, self.kind.command) {
            (Some(command), _) => (None, command, folder.path.clone()),
            (None, Some(command)) => {
                let program = (command.program)()?;
                (Some(program), command.arguments, (command.model)(folder, load.dtype.as_deref(), phases)?)
            }
            (None, None) => {
                let hint = "--set url=http://127.0.0.1:8000, or --set command='PROGRAM --port {port}'";
                return Err(Failed::new(FailureKind::BadRequest, "no server is named").hint(hint));
            }
        };
        let context = load.context_tokens.or(folder.config.context_tokens.map(|it| it.min(DEFAULT_CONTEXT)));
        let context = context.unwrap_or(DEFAULT_CONTEXT);
        let port = FreePort::find()?;
        let places = [
            ("{model}", model.display().to_string()),
            ("{port}", port.number.to_string()),
            ("{threads}", load.threads.unwrap_or_else(facts::default_threads).to_string()),
            ("{slots}", settings.slots.to_string()),
            ("{context}", context.to_string()),
            ("{all_context}", (u64::from(context) * settings.slots).to_string()),
        ];
        let fill = |word: &str| {
            places.iter().fold(word.to_string(), |word, (place, value)| word.replace(place, value))
        };
        let program = program.map(|program| program.display().to_string());
        let command: Vec<String> =
            program.into_iter().chain(arguments.split_whitespace().map(fill)).collect();
        phases.begin("server start");
        let child = ChildServer::start(&command)?;
        let server = Server::new(Address::local(port.number), settings.key()?.as_deref());
        let limit = Duration::from_secs(settings.start_seconds);
        child.wait_until_healthy(limit, phases, || server.is_healthy(health_path)).map_err(|failed| {
            // A server that still runs may need more time.
            let longer = format!("--set start_seconds={}", settings.start_seconds.saturating_mul(2));
            if child.failure().is_none() { failed.hint(longer) } else { failed }
        })?;
        Ok(RunningServer::new(server, Some((child, port))))
    }

    /// The facts of a server, as it states them.
    fn facts(&self, server: &RunningServer) -> Facts {
        let statements = Statements {
            model: &server.served,
            get: &|path| server.server.status(path).unwrap_or_default(),
            child: server.child.as_ref().map(|(child, _)| child),
        };
        let prefix_cache = self.kind.prefix_cache_toggle.then_some(false);
        Facts { prefix_cache, ..(self.kind.facts)(&statements) }
    }
}

/// The options of a load.
struct Settings<'a> {
    url: Option<&'a str>,
    command: Option<&'a str>,
    health_path: Option<&'a str>,
    model: Option<&'a str>,
    slots: u64,
    start_seconds: u64,
    key_variable: Option<&'a str>,
}

impl<'a> Settings<'a> {
    fn read(options: &'a serde_json::Map<String, Value>) -> Result<Self, Failed> {
        let options = Options::new(options);
        let settings = Self {
            url: options.text("url")?,
            command: options.text("command")?,
            health_path: options.text("health_path")?,
            model: options.text("model")?,
            slots: options.u64("slots")?.unwrap_or(DEFAULT_SLOTS),
            start_seconds: options.u64("start_seconds")?.unwrap_or(DEFAULT_START_SECONDS),
            key_variable: options.text("key_variable")?,
        };
        options.finish()?;
        let problem = match &settings {
            Self { url: Some(_), command: Some(_), .. } => {
                "`url` and `command` exclude each other".to_string()
            }
            Self { slots, .. } if !(1..=u64::from(SLOTS)).contains(slots) => {
                format!("option `slots`: expected a number from 1 to {SLOTS}, found `{slots}`")
            }
            Self { start_seconds: 0, .. } => {
                "option `start_seconds`: expected 1 or more, found `0`".to_string()
            }
            _ => return Ok(settings),
        };
        Err(Failed::new(FailureKind::BadRequest, problem))
    }

    /// The key for the server, from the variable that the user names.
    fn key(&self) -> Result<Option<String>, Failed> {
        let Some(variable) = self.key_variable else { return Ok(None) };
        let key = std::env::var(variable).map_err(|_| {
            let message = format!("no variable `{variable}` with a key for the server");
            Failed::new(FailureKind::Unavailable, message).hint(format!("--pass-env {variable}"))
        })?;
        Ok(Some(key))
    }
}
