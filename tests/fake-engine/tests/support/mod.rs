//! Shared parts of the fake engine's tests: the program, its streams, and checks of its answers.

#![allow(dead_code, reason = "each test binary uses a part of this module")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use serde_json::{Value, json};

pub const HELLO: &str = r#"{"type":"hello","protocol":1}"#;
pub const LOAD: &str = r#"{"type":"load","model":"m"}"#;
pub const GENERATE: &str = r#"{"prompt_ids":[1,5,7],"max_new_tokens":6,"ignore_eos":true}"#;
pub const EOS: u64 = 2;
pub const SHUTDOWN: &str = r#"{"type":"shutdown"}"#;

pub struct Fake {
    pub child: Child,
    pub stdin: Option<ChildStdin>,
    pub stdout: BufReader<ChildStdout>,
    pub stderr: BufReader<ChildStderr>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command that starts a program, without the fake engine's settings of the environment.
pub fn command_of(program: &str) -> Command {
    #[expect(clippy::disallowed_methods, reason = "these tests start processes and kill them at their end")]
    let mut command = Command::new(program);
    command.env_remove("FAKE_ENGINE");
    command
}

impl Fake {
    pub fn start(settings: &Value) -> Self {
        let mut command = command_of(env!("CARGO_BIN_EXE_fake-engine"));
        command.env("FAKE_ENGINE", settings.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            stderr: BufReader::new(child.stderr.take().unwrap()),
            child,
        }
    }

    pub fn with_fault(fault: &str) -> Self {
        Self::start(&json!({ "fault": fault }))
    }

    pub fn send(&mut self, line: &str) {
        let _ = self.stdin.as_mut().unwrap().write_all(format!("{line}\n").as_bytes());
    }

    /// The next line of stdout, as bytes. It is empty at the end of stdout.
    pub fn line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.stdout.read_until(b'\n', &mut line).unwrap();
        line
    }

    /// The next line of stdout, which the crate `protocol` must accept.
    pub fn valid_message(&mut self) -> Value {
        let line = self.line();
        protocol::parse_message(&line).unwrap_or_else(|refused| panic!("{}", refused.message));
        serde_json::from_slice(&line).unwrap()
    }

    pub fn message(&mut self) -> Value {
        let line = self.line();
        serde_json::from_slice(&line)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&line)))
    }

    pub fn ask(&mut self, line: &str) -> Value {
        self.send(line);
        self.message()
    }

    pub fn stderr_line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).unwrap();
        line
    }

    pub fn close_stdin_and_wait(&mut self) -> ExitStatus {
        self.stdin = None;
        self.child.wait().unwrap()
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// The grandchild whose process id is the last word of the next line on stderr.
    pub fn grandchild(&mut self) -> Orphan {
        let line = self.stderr_line();
        assert!(line.contains("grandchild"), "{line}");
        Orphan(line.split_whitespace().last().unwrap().to_owned())
    }
}

/// A process that outlives its parent. Dropping it kills the process.
pub struct Orphan(pub String);

impl Orphan {
    pub fn is_alive(&self) -> bool {
        Path::new("/proc").join(&self.0).exists()
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = command_of("kill").args(["-KILL", &self.0]).status();
    }
}

pub fn iteration(generated: &Value) -> &Value {
    assert_eq!(generated["type"], "generated", "{generated}");
    &generated["iterations"][0]
}

pub fn ids(generated: &Value) -> Vec<u64> {
    let ids = iteration(generated)["sequences"][0]["output_ids"].as_array().unwrap();
    ids.iter().map(|id| id.as_u64().unwrap()).collect()
}

pub fn times(generated: &Value) -> Vec<u64> {
    let times = iteration(generated)["sequences"][0]["token_ns"].as_array().unwrap();
    times.iter().map(|ns| ns.as_u64().unwrap()).collect()
}
