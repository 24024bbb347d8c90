//! The steps of set-up: each is one command, and its output goes to the displays line by line.

use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};

use crate::engines::manifest::Engine;
use crate::shell::{Unavailable, pasteable};

/// The maximum number of lines that are shown of a failed command's output.
const MAX_OUTPUT_LINES: usize = 6;

#[derive(Debug, Clone, PartialEq)]
pub enum SetUpEvent {
    /// A build, an installation or the reading of a large model began. `note` is for the user, as in `1.2 GB to download`.
    Started {
        subject: String,
        step: String,
        note: Option<String>,
    },
    /// A line of the builder's or installer's output.
    Output {
        subject: String,
        line: String,
    },
    /// The step waits for another program.
    Waiting {
        subject: String,
        reason: String,
    },
    Finished {
        subject: String,
        /// The cause of a failure.
        failed: Option<String>,
    },
    /// A command that set-up runs, for a display that shows all.
    Detail(String),
    Warned(String),
}

pub struct Steps<'a> {
    /// The name and value of a variable that marks every process of this run, so that `run::process::keeper` can end them.
    pub run_mark: (&'static str, &'a str),
    pub listener: &'a mut dyn FnMut(SetUpEvent),
}

impl Steps<'_> {
    /// Runs one command, and passes every line of its output to the displays.
    pub fn run(
        &mut self,
        engine: &Engine,
        step: &str,
        note: Option<String>,
        command: &[String],
        dir: &Path,
    ) -> Result<()> {
        let engine = engine.manifest.name.clone();
        (self.listener)(SetUpEvent::Started { subject: engine.clone(), step: step.into(), note });
        (self.listener)(SetUpEvent::Detail(format!("{engine}: {}", pasteable(command))));
        let (program, arguments) = command.split_first().context("an empty command")?;
        let expression = duct::cmd(program, arguments).dir(dir).env(self.run_mark.0, self.run_mark.1);
        let reader = expression.stdin_null().stderr_to_stdout().unchecked().reader();
        let reader = reader.map_err(|error| {
            anyhow!(
                "`{program}` cannot be started: {error}\nhint: install `{program}`, or add its folder to PATH"
            )
        })?;
        let mut last_lines: Vec<String> = Vec::new();
        for line in BufReader::new(&reader).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).trim().to_string();
            let (subject, line_of_output) = (engine.clone(), line.clone());
            (self.listener)(match waits_for(&line) {
                Some(reason) => SetUpEvent::Waiting { subject, reason },
                None => SetUpEvent::Output { subject, line: line_of_output },
            });
            last_lines.push(line);
            last_lines.drain(..last_lines.len().saturating_sub(MAX_OUTPUT_LINES));
        }
        let status = reader.try_wait()?.context("the command closed its output and kept running")?.status;
        last_lines.retain(|line| !line.is_empty());
        let output = last_lines.join("\n");
        let failed = (!status.success()).then(|| cause(&output).to_string());
        (self.listener)(SetUpEvent::Finished { subject: engine, failed });
        // Commands of this project print their own hint.
        let has_hint = last_lines.iter().any(|line| line.starts_with("hint: "));
        match status.success() {
            true => Ok(()),
            false if has_hint => bail!("{output}"),
            false => bail!("{output}\nhint: {}", pasteable(command)),
        }
    }
}

/// The beginning of cargo's line while another cargo uses the same folder. Its end names what is locked.
const CARGO_WAITS: &str = "Blocking waiting for file lock on ";

/// The reason why a tool waits, if this line of its output says that it waits.
fn waits_for(line: &str) -> Option<String> {
    let locked = line.strip_prefix(CARGO_WAITS)?;
    Some(format!("another cargo uses the {locked}; the build continues when the other cargo ends"))
}

/// The line of a tool's output that has the cause. Tools state it in their first error line; advice follows, and earlier lines do
/// not matter.
pub fn cause(output: &str) -> &str {
    let is_error = |line: &&str| line.trim_start().to_ascii_lowercase().starts_with("error");
    let names_error = |line: &&str| line.to_ascii_lowercase().contains("error");
    let line = output.lines().find(is_error).or(output.lines().find(names_error)).or(output.lines().last());
    let line = line.unwrap_or_default().trim();
    match line.get(..7) {
        Some(start) if start.eq_ignore_ascii_case("error: ") => &line[7..],
        _ => line,
    }
}

/// The text of an error without its hint, because the caller adds another hint.
pub fn without_hint(error: &anyhow::Error) -> String {
    Unavailable::of_error(error).reason
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cargo_that_waits_for_another_one_is_recognized() {
        let waits = waits_for("Blocking waiting for file lock on build directory");
        let expected =
            "another cargo uses the build directory; the build continues when the other cargo ends";
        assert_eq!(waits.as_deref(), Some(expected));
        assert_eq!(waits_for("Compiling file-lock v1.0.0"), None);
    }

    #[test]
    fn the_cause_is_the_first_error_line_of_a_tool() {
        let pip = "Looking in links: /wheels\nWARNING: Retrying after ProxyError\nERROR: No matching distribution found for uv";
        assert_eq!(cause(pip), "No matching distribution found for uv");
        let uv = "Resolved 3 packages\nerror: Failed to fetch: `x`\n  Caused by: dns error";
        assert_eq!(cause(uv), "Failed to fetch: `x`");
        assert_eq!(cause("warning: x\ncould not compile: linker error"), "could not compile: linker error");
        assert_eq!(cause("gave up"), "gave up");
    }
}
