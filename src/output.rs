//! What a person or a pipe asked for, on stdout; what went wrong, on stderr. Nothing else writes a report.

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::cli::ReportArgs;
use crate::exit_code::DONE;
use crate::record::RunRecord;
use crate::report::{self, Report};

/// Writes to stdout. A reader that has gone away, as `head` does, is no error.
pub fn print(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to stdout"),
    }
}

/// The error chain, and what to do about it on a line of its own.
#[expect(clippy::print_stderr, reason = "the last word of a program that failed")]
pub fn complain(error: &anyhow::Error) {
    let text = format!("{error:#}");
    // A hint deep in the chain still comes last.
    let (hints, said): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("hint: "));
    let said = said.join("\n");
    // What a tool said of its own failure may begin so already.
    eprintln!("error: {}", said.strip_prefix("error: ").unwrap_or(&said));
    hints.iter().for_each(|hint| eprintln!("{hint}"));
}

/// A report in the named format, for a terminal of its width or for a file.
pub fn render(report: &Report, format: &str) -> Vec<u8> {
    let width = std::io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
    report::named(format).map_or_else(Vec::new, |format| {
        (format.render)(report, width.map(|(terminal_size::Width(width), _)| usize::from(width)))
    })
}

pub fn report_again(arguments: &ReportArgs) -> Result<u8> {
    let report = Report::of(&RunRecord::read(&arguments.record)?);
    print(&render(&report, &arguments.format))?;
    Ok(DONE)
}

/// The report as JSON, in place of the table when the file is `-`.
pub fn write_json(report: &Report, path: &Path) -> Result<()> {
    let bytes = render(report, "json");
    if path == Path::new("-") {
        return print(&bytes);
    }
    std::fs::write(path, bytes).with_context(|| format!("cannot write `{}`", path.display()))
}

pub fn schema() -> Result<u8> {
    let mut text = serde_json::to_vec_pretty(&protocol::schema())?;
    text.push(b'\n');
    print(&text)?;
    Ok(DONE)
}
