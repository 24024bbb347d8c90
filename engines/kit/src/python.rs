//! Runs an engine that is written in Python: its worker reads and writes the protocol itself, on the very stdin and stdout
//! that this process was given, so that nothing relays a line while a clock runs.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;

use anyhow::{Context, Result};
use places::{NoProgram, Python};
use protocol::{Failed, FailureKind, Message, Request};

use crate::inbox::{Inbox, Line, id_of};
use crate::{Output, serve};

/// A worker, what it needs, and its files as compiled into this program.
pub struct PythonEngine {
    /// As `orchestrate setup` knows it.
    pub name: &'static str,
    /// The name of its environment: the engine's own, or the folder's of one that several share.
    pub environment: &'static str,
    /// All that its environment is made from: the pinned requirements, and after them the files of its manifest's
    /// `[environment] build`, in their order.
    pub requirements: &'static str,
    /// The Python that its environment is made with: `3.11`.
    pub python: &'static str,
    /// How else it is to be had, as in its manifest's `[environment] otherwise`: the hint in place of setting it up.
    pub otherwise: Option<&'static str>,
    /// What the machine lacks for it, whatever is set up: said beside a missing environment.
    pub lacks: Option<fn() -> Option<&'static str>>,
    /// Name and content of each file. The first is the one to run. The Python kit is put beside them.
    pub files: &'static [(&'static str, &'static str)],
}

/// The Python kit, which every worker imports as `engine_kit`.
const KIT: [(&str, &str); 9] = [
    ("engine_kit.py", include_str!("../python/engine_kit.py")),
    ("engine_kit_checks.py", include_str!("../python/engine_kit_checks.py")),
    ("engine_kit_conversation.py", include_str!("../python/engine_kit_conversation.py")),
    ("engine_kit_fields.py", include_str!("../python/engine_kit_fields.py")),
    ("engine_kit_run.py", include_str!("../python/engine_kit_run.py")),
    ("engine_kit_summary.py", include_str!("../python/engine_kit_summary.py")),
    ("engine_kit_tokens.py", include_str!("../python/engine_kit_tokens.py")),
    ("engine_kit_wire.py", include_str!("../python/engine_kit_wire.py")),
    ("model_folder.py", include_str!("../python/model_folder.py")),
];

/// Tells a worker which program started it, for what that program does better than Python.
pub const PROGRAM_VARIABLE: &str = "ORCHESTRATE_ENGINE_PROGRAM";

/// All of a Python engine's `main`.
pub fn host(engine: PythonEngine) -> ExitCode {
    match start(&engine) {
        Ok(status) => after(status),
        Err(failed) => {
            serve::greet();
            let inbox = Arc::new(Inbox::default());
            let reading = inbox.clone();
            let reader = std::thread::Builder::new().name("stdin".into());
            if let Err(error) = reader.spawn(move || reading.read_from(io::stdin().lock())) {
                return serve::ending(Err(error));
            }
            serve::ending(refuse_all(&inbox, &Output::new(io::stdout()), &failed))
        }
    }
}

/// Runs the worker to its end. `Err` is why there is none.
fn start(engine: &PythonEngine) -> Result<ExitStatus, Failed> {
    let unavailable = |message: String| Failed::new(FailureKind::Unavailable, message);
    let setup = || match engine.otherwise {
        Some(otherwise) => otherwise.to_string(),
        None => setup_command(engine.name, places::checkout().is_some()),
    };
    let found = places::python(engine.name, engine.environment, engine.requirements).map_err(no_python)?;
    let interpreter = match &found {
        Python::Own(own) if is_something_else(&own.interpreter) => {
            let message = format!("`{}` names no Python: `{}`", own.variable, own.interpreter.display());
            let no_program = NoProgram { variable: own.variable.clone(), value: String::new() };
            return Err(unavailable(message).hint(no_program.hint()));
        }
        Python::Own(own) => &own.interpreter,
        Python::Pinned(interpreter) => interpreter,
        Python::NotSetUp => {
            let mut message =
                format!("the Python {} environment of `{}` is not set up", engine.python, engine.name);
            if let Some(lack) = engine.lacks.and_then(|lacks| lacks()) {
                message += &format!(", and {lack}");
            }
            return Err(unavailable(message).hint(setup()));
        }
    };
    let worker = write_files(engine).map_err(|error| unavailable(format!("{error:#}")))?;
    let mut python = match &found {
        // By whatever a user's own Python finds its packages, a folder on PYTHONPATH or in the user's home, it finds them here.
        Python::Own(_) => duct::cmd!(interpreter, "-u", &worker),
        // The worker's modules are its own folder's and its environment's: nothing of the caller's may come before them.
        Python::Pinned(_) | Python::NotSetUp => {
            duct::cmd!(interpreter, "-u", "-s", &worker).env_remove("PYTHONPATH").env_remove("PYTHONHOME")
        }
    };
    python = python
        .env_remove("PYTHONSTARTUP")
        .env_remove("PYTHONDONTWRITEBYTECODE")
        // It would keep the worker from the modules beside it.
        .env_remove("PYTHONSAFEPATH")
        .unchecked();
    if let Ok(program) = std::env::current_exe() {
        python = python.env(PROGRAM_VARIABLE, program);
    }
    // The worker cannot unpack the embedded model, so it is told where that lies. A name that leads nowhere is left to it.
    let named = std::env::var(protocol::environment::MODEL).ok();
    if let Ok(model) = model_files::resolve(named.as_deref()) {
        python = python.env(protocol::environment::MODEL, model);
    }
    let ended = python.run().map_err(|error| {
        let message =
            format!("cannot start the Python of `{}` (`{}`): {error}", engine.name, interpreter.display());
        unavailable(message).hint(match &found {
            Python::Own(own) => format!("unset {}", own.variable),
            _ => setup(),
        })
    })?;
    Ok(ended.status)
}

/// Why nobody can say which Python it would be.
fn no_python(error: anyhow::Error) -> Failed {
    let failed = Failed::new(FailureKind::Unavailable, format!("{error:#}"));
    match error.downcast_ref::<NoProgram>() {
        Some(no_program) => failed.hint(no_program.hint()),
        None => failed,
    }
}

/// A program that is no Python would leave every request without an answer, or answer with its own words. What cannot be
/// started at all is told of when it is.
fn is_something_else(interpreter: &Path) -> bool {
    let asked = duct::cmd!(interpreter, "-S", "-c", "print('py' + 'thon')");
    let Ok(answer) = asked.stdin_null().stderr_null().unchecked().reader() else { return false };
    let mut said = Vec::new();
    // It may never end; it is ended when the reader is dropped.
    let read = answer.take(64).read_to_end(&mut said);
    read.is_err() || said.trim_ascii() != b"python"
}

/// What sets the environment up, to paste. In a checkout `orchestrate` need not be on PATH.
fn setup_command(name: &str, in_checkout: bool) -> String {
    match in_checkout {
        true => format!("cargo run --release -- setup {name}"),
        false => format!("orchestrate setup {name}"),
    }
}

/// A worker that fell over could not say so itself.
fn after(status: ExitStatus) -> ExitCode {
    if status.success() {
        return ExitCode::SUCCESS;
    }
    let (how, code) = match (status.code(), signal(status)) {
        (Some(code), _) => (format!("ended with exit code {code}"), code),
        (None, Some(signal)) => (format!("was killed by signal {signal}"), 128 + signal),
        (None, None) => ("ended without saying how".into(), 1),
    };
    let failed = Failed::new(FailureKind::Internal, format!("the Python worker {how}"));
    // It may have died in the middle of a line, which must not swallow this one.
    let mut line = b"\n".to_vec();
    line.extend(protocol::encode(&Message::Failed(failed)));
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn signal(_: ExitStatus) -> Option<i32> {
    None
}

/// Stays up and gives the same reason to every request, so that a missing environment is a row and not a dead engine.
fn refuse_all(inbox: &Inbox, output: &Output, reason: &Failed) -> io::Result<()> {
    while let Some(arrived) = inbox.next() {
        let failed = match arrived.line {
            Line::Refused(failed) => failed,
            Line::Request { request: Request::Shutdown {}, .. } => {
                output.send(&Message::Bye {});
                return output.check();
            }
            Line::Request { request, .. } => {
                inbox.forget(id_of(&request));
                Failed { id: id_of(&request).cloned(), ..reason.clone() }
            }
        };
        output.send(&Message::Failed(failed));
        output.check()?;
    }
    Ok(())
}

/// Puts the worker's files where a Python can run them, in a folder named by their content. A file that is there and the
/// same is left alone; any other is replaced whole, so that a worker that starts beside this one never reads half of it.
fn write_files(engine: &PythonEngine) -> Result<PathBuf> {
    let files = || engine.files.iter().chain(&KIT);
    let all: String = files().flat_map(|(name, content)| [*name, "\0", *content, "\0"]).collect();
    let folder = format!("{}-{}", engine.name, places::digest(all.as_bytes()));
    let folder = places::data_dir()?.join("workers").join(folder);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create `{}`", folder.display()))?;
    for (name, content) in files() {
        write_file(&folder, name, content)
            .with_context(|| format!("cannot write `{}`", folder.join(name).display()))?;
    }
    let (worker, _) = engine.files.first().context("the engine has no worker")?;
    Ok(folder.join(worker))
}

fn write_file(folder: &Path, name: &str, content: &str) -> io::Result<()> {
    let path = folder.join(name);
    if std::fs::read(&path).is_ok_and(|there| there == content.as_bytes()) {
        return Ok(());
    }
    let half = folder.join(format!(".{name}.{}", std::process::id()));
    std::fs::write(&half, content)?;
    std::fs::rename(&half, &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_can_be_pasted_where_it_is_read() {
        assert_eq!(setup_command("snake", true), "cargo run --release -- setup snake");
        assert_eq!(setup_command("snake", false), "orchestrate setup snake");
    }
}
