//! Why a program cannot be started, with a hint.

use std::fs::File;
use std::io::{Error, Read};
use std::path::Path;
use std::process::ExitStatus;

use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::error::Cause;
use crate::shell::{Unavailable, pasteable};
use crate::text;

/// The maximum number of bytes of a script's first line. The kernel reads as many.
const MAX_LINE_BYTES: u64 = 256;

pub fn why_not_started(program: &str, error: &Error) -> Unavailable {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    // A script is as startable as the interpreter of its first line, and the error does not say which of the two it concerns.
    if let Some(Errno::ACCESS | Errno::NOENT) = errno
        && let Some(interpreter) = interpreter_of(Path::new(program))
        && let Some(why) = why_not_run(&interpreter)
    {
        return why;
    }
    let hint = match errno {
        Some(Errno::ACCESS) if !is_executable(program) => Some(format!("chmod +x {}", quoted(program))),
        Some(Errno::NOEXEC) => Some("a script needs a first line such as `#!/usr/bin/env python3`".into()),
        _ => None,
    };
    Unavailable { reason: error.to_string(), hint }
}

/// The statuses of `env`, the usual interpreter of a script, for a program that it cannot run or does not find.
const ENV_STATUSES: [i32; 2] = [126, 127];

/// The cause if `env` ended with this status, because it could not run the interpreter that a script's first line gives it.
pub fn env_failure(status: ExitStatus, stderr: &[String]) -> Option<Cause> {
    status.code().filter(|code| ENV_STATUSES.contains(code))?;
    // `env: 'python9': No such file or directory`; the quotes depend on the locale, and some systems print the path of `env`.
    let (name, problem) = stderr.iter().rev().find_map(|line| {
        let (start, rest) = line.split_once(": ")?;
        let (name, problem) = rest.rsplit_once(": ").filter(|_| start.rsplit('/').next() == Some("env"))?;
        let name = name.strip_prefix("can't execute ").unwrap_or(name);
        Some((name.trim_matches(['\'', '‘', '’', '"']), problem.trim()))
    })?;
    let name = text::line(name);
    let (problem, hint) = match problem {
        "No such file or directory" => (
            "which is not in PATH",
            format!("install `{name}`, or name another interpreter in the first line"),
        ),
        "Permission denied" => ("which is not executable", format!("chmod +x \"$(command -v {name})\"")),
        _ => return None,
    };
    Some(Cause::Start { message: format!("its first line names `{name}`, {problem}"), hint: Some(hint) })
}

/// The reason why the interpreter of a script cannot be run, with a hint; `None` if it can be run.
fn why_not_run(interpreter: &str) -> Option<Unavailable> {
    let (problem, hint) = match Path::new(interpreter).metadata() {
        Err(_) => (
            "which does not exist",
            format!("install `{interpreter}`, or name another interpreter in the first line"),
        ),
        Ok(metadata) if metadata.is_dir() => {
            ("which is a folder", "name the interpreter's program in the first line".into())
        }
        Ok(_) if !is_executable(interpreter) => {
            ("which is not executable", format!("chmod +x {}", quoted(interpreter)))
        }
        Ok(_) => return None,
    };
    let reason = format!("its first line names `{}`, {problem}", text::line(interpreter));
    Some(Unavailable { reason, hint: Some(hint) })
}

fn is_executable(path: &str) -> bool {
    access(path, Access::EXEC_OK).is_ok()
}

fn quoted(path: &str) -> String {
    pasteable(&[path.to_string()])
}

/// The interpreter in the first line of a script.
fn interpreter_of(program: &Path) -> Option<String> {
    let mut start = Vec::new();
    File::open(program).ok()?.take(MAX_LINE_BYTES).read_to_end(&mut start).ok()?;
    let text = String::from_utf8_lossy(&start);
    let interpreter = text.lines().next()?.strip_prefix("#!")?.split_whitespace().next()?;
    Some(interpreter.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_program_that_env_does_not_find_is_named() {
        let message =
            |code: i32, line: &str| match env_failure(ExitStatus::from_raw(code << 8), &[line.into()]) {
                Some(Cause::Start { message, .. }) => message,
                _ => String::new(),
            };
        let missing = "its first line names `python9`, which is not in PATH";
        assert_eq!(message(127, "/usr/bin/env: ‘python9’: No such file or directory"), missing);
        assert_eq!(message(127, "env: can't execute 'python9': No such file or directory"), missing);
        assert_eq!(
            message(126, "env: 'python9': Permission denied"),
            "its first line names `python9`, which is not executable"
        );
        assert_eq!(message(127, "sh: 1: python9: not found"), "");
        assert_eq!(message(3, "env: 'python9': No such file or directory"), "");
    }
}
