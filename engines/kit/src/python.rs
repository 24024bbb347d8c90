//! Runs an engine that is written in Python. The worker inherits stdin and stdout and speaks the protocol on them, so no
//! relay adds time.

use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};

use anyhow::{Context, Result};
use paths::{NoProgram, Python};
use protocol::{Failed, FailureKind, Message, Request};

use crate::inbox::{Inbox, Line, id_of};
use crate::{Output, serve};

/// A worker, its requirements, and its files as compiled into this program.
pub struct PythonEngine {
    /// The name that `orchestrate setup` uses.
    pub name: &'static str,
    /// The name of the engine's environment: the engine's name, or the folder of an environment that several engines share.
    pub environment: &'static str,
    /// The text that identifies the engine's environment: the pinned requirements, then the contents of the files of the
    /// manifest's `[environment] build`, in their order.
    pub requirements: &'static str,
    /// The Python version of the engine's environment: `3.11`.
    pub python: &'static str,
    /// The manifest's `[environment] install_hint`: another way to get the environment, shown if it is missing.
    pub install_hint: Option<&'static str>,
    /// Returns another requirement that the machine lacks. The message of a missing environment names it too.
    pub find_missing_requirement: Option<fn() -> Option<&'static str>>,
    /// The name and content of each file. The first file is the script to run. The files of the Python kit are added.
    pub files: &'static [(&'static str, &'static str)],
}

/// The files of the Python kit. Every worker imports `engine_kit`.
const KIT: [(&str, &str); 12] = [
    ("checkpoint.py", include_str!("../python/checkpoint.py")),
    ("conversion.py", include_str!("../python/conversion.py")),
    ("engine_kit.py", include_str!("../python/engine_kit.py")),
    ("engine_kit_checks.py", include_str!("../python/engine_kit_checks.py")),
    ("engine_kit_conversation.py", include_str!("../python/engine_kit_conversation.py")),
    ("engine_kit_fields.py", include_str!("../python/engine_kit_fields.py")),
    ("engine_kit_run.py", include_str!("../python/engine_kit_run.py")),
    ("engine_kit_summary.py", include_str!("../python/engine_kit_summary.py")),
    ("engine_kit_tokens.py", include_str!("../python/engine_kit_tokens.py")),
    ("engine_kit_wire.py", include_str!("../python/engine_kit_wire.py")),
    ("gguf_model.py", include_str!("../python/gguf_model.py")),
    ("model_folder.py", include_str!("../python/model_folder.py")),
];

/// The variable with the path of the program that started a worker. The worker starts this program for functions that only
/// Rust has.
pub const PROGRAM_VARIABLE: &str = "ORCHESTRATE_ENGINE_PROGRAM";

/// The complete `main` of a Python engine.
pub fn host(engine: PythonEngine) -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(code) = crate::conversion::convert_with(&arguments) {
        return code;
    }
    match start(&engine) {
        Ok(status) => exit_code_of(status),
        Err(failed) => serve::exit_code(
            serve::read_stdin().and_then(|inbox| fail_all(&inbox, &Output::new(io::stdout()), &failed)),
        ),
    }
}

/// Runs the worker to its end. `Err` is the reason why it could not start.
fn start(engine: &PythonEngine) -> Result<ExitStatus, Failed> {
    let unavailable = |message: String| Failed::new(FailureKind::Unavailable, message);
    let setup_hint = || match engine.install_hint {
        Some(install_hint) => install_hint.to_string(),
        None => setup_command(engine.name, paths::checkout().is_some()),
    };
    let python = paths::python(engine.name, engine.environment, engine.requirements).map_err(no_python)?;
    let interpreter = match &python {
        Python::Own(user_python) if is_not_python(&user_python.interpreter) => {
            let (variable, interpreter) = (&user_python.variable, user_python.interpreter.display());
            let message = format!("`{variable}` names no Python: `{interpreter}`");
            let no_program = NoProgram { variable: variable.clone(), value: String::new() };
            return Err(unavailable(message).hint(no_program.hint()));
        }
        Python::Own(user_python) => &user_python.interpreter,
        Python::Pinned(interpreter) => interpreter,
        Python::NotSetUp => {
            let mut message =
                format!("the Python {} environment of `{}` is not set up", engine.python, engine.name);
            if let Some(requirement) = engine.find_missing_requirement.and_then(|find| find()) {
                message += &format!(", and {requirement}");
            }
            return Err(unavailable(message).hint(setup_hint()));
        }
    };
    let worker = write_files(engine).map_err(|error| unavailable(format!("{error:#}")))?;
    let mut command = match &python {
        // A user's own Python keeps its search path: PYTHONPATH and the packages in the user's home.
        Python::Own(_) => duct::cmd!(interpreter, "-u", &worker),
        // The worker imports only from its folder and its environment, so the caller's search path is removed.
        Python::Pinned(_) | Python::NotSetUp => {
            duct::cmd!(interpreter, "-u", "-s", &worker).env_remove("PYTHONPATH").env_remove("PYTHONHOME")
        }
    };
    command = command
        .env_remove("PYTHONSTARTUP")
        .env_remove("PYTHONDONTWRITEBYTECODE")
        // PYTHONSAFEPATH would hide the modules beside the worker.
        .env_remove("PYTHONSAFEPATH")
        .unchecked();
    if let Ok(program) = std::env::current_exe() {
        command = command.env(PROGRAM_VARIABLE, program);
    }
    // The worker knows paths only, so the kit passes the path of the embedded or a pulled model. The worker itself reports a
    // path that does not exist.
    let requested = std::env::var(protocol::environment::MODEL).ok();
    if let Ok(model) = model_files::resolve(requested.as_deref()) {
        command = command.env(protocol::environment::MODEL, model);
    }
    let output = command.run().map_err(|error| {
        let message =
            format!("cannot start the Python of `{}` (`{}`): {error}", engine.name, interpreter.display());
        unavailable(message).hint(match &python {
            Python::Own(user_python) => format!("unset {}", user_python.variable),
            _ => setup_hint(),
        })
    })?;
    Ok(output.status)
}

/// The failure when the Python to use cannot be determined.
fn no_python(error: anyhow::Error) -> Failed {
    let failed = Failed::new(FailureKind::Unavailable, format!("{error:#}"));
    match error.downcast_ref::<NoProgram>() {
        Some(no_program) => failed.hint(no_program.hint()),
        None => failed,
    }
}

/// Whether the program starts but is not Python, so that its output would not be the protocol. `start` reports a program
/// that cannot start.
fn is_not_python(interpreter: &Path) -> bool {
    // The argument does not contain `python`, so a program that repeats its arguments fails the test.
    let command = duct::cmd!(interpreter, "-S", "-c", "print('py' + 'thon')");
    let Ok(reader) = command.stdin_null().stderr_null().unchecked().reader() else { return false };
    let mut output = Vec::new();
    // The program may print without end; dropping the reader ends it.
    let read = reader.take(64).read_to_end(&mut output);
    read.is_err() || output.trim_ascii() != b"python"
}

/// The command that sets the environment up, to paste. In a checkout `orchestrate` may not be on PATH.
fn setup_command(name: &str, in_checkout: bool) -> String {
    match in_checkout {
        true => format!("cargo run --release -- setup {name}"),
        false => format!("orchestrate setup {name}"),
    }
}

/// The exit code for the status of the worker. Reports every unsuccessful end, because a crashed worker cannot report it.
fn exit_code_of(status: ExitStatus) -> ExitCode {
    if status.success() {
        return ExitCode::SUCCESS;
    }
    let (ending, code) = match (status.code(), status.signal()) {
        (Some(code), _) => (format!("ended with exit code {code}"), code),
        (None, Some(signal)) => (format!("was killed by signal {signal}"), 128 + signal),
        (None, None) => ("ended without an exit code".into(), 1),
    };
    let failed = Failed::new(FailureKind::Internal, format!("the Python worker {ending}"));
    // The worker may have ended in the middle of a line, so the failure begins with a newline.
    let mut line = b"\n".to_vec();
    line.extend(protocol::encode(&Message::Failed(failed)));
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Answers every request except `shutdown` with the same failure, so that the engine's row in a table shows the reason.
fn fail_all(inbox: &Inbox, output: &Output, reason: &Failed) -> io::Result<()> {
    while let Some(queued_line) = inbox.next() {
        let failed = match queued_line.line {
            Line::Invalid(failed) => failed,
            Line::Request { request: Request::Shutdown {}, .. } => {
                output.send(&Message::Bye {});
                return output.check();
            }
            Line::Request { request, .. } => {
                inbox.release_id(id_of(&request));
                Failed { id: id_of(&request).cloned(), ..reason.clone() }
            }
        };
        output.send(&Message::Failed(failed));
        output.check()?;
    }
    Ok(())
}

/// Writes the worker's files into a folder named by their content. Identical files stay. Other files are replaced atomically,
/// so that a worker that starts at the same time never reads half a file.
fn write_files(engine: &PythonEngine) -> Result<PathBuf> {
    let files = || engine.files.iter().chain(&KIT);
    let content: String = files().flat_map(|(name, content)| [*name, "\0", *content, "\0"]).collect();
    let folder = format!("{}-{}", engine.name, paths::digest(content.as_bytes()));
    let folder = paths::data_dir()?.join("workers").join(folder);
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
    if std::fs::read(&path).is_ok_and(|current| current == content.as_bytes()) {
        return Ok(());
    }
    let temporary = folder.join(format!(".{name}.{}", std::process::id()));
    std::fs::write(&temporary, content)?;
    std::fs::rename(&temporary, &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setup_command_uses_cargo_in_a_checkout_and_the_installed_program_elsewhere() {
        assert_eq!(setup_command("snake", true), "cargo run --release -- setup snake");
        assert_eq!(setup_command("snake", false), "orchestrate setup snake");
    }
}
