//! The output of this program: results on stdout, errors on stderr. No other code writes to stdout.

use std::io::{IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use paths::OwnPython;
use rustix::termios::tcgetwinsize;

use crate::cli::exit_code::DONE;
use crate::cli::{Verbosity, ViewArgs, verbosity};
use crate::report::{Content, Format, Report, ReportContent, Screen, View};
use crate::shell::{file_problem, this_program, with_program};
use crate::text;

/// Writes to stdout. A closed pipe, as after `head`, is no error.
pub fn print(text: impl AsRef<[u8]>) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to stdout"),
    }
}

/// Prints the result of a command that succeeded, for a program or a pipe, and returns its exit status.
pub fn succeed(text: impl AsRef<[u8]>) -> Result<u8> {
    print(text).map(|()| DONE)
}

/// Prints a text for a person: its commands can be pasted.
pub fn print_text(text: &str) -> Result<()> {
    print(with_this_program(text))
}

/// Prints a text for a person in lines of at most `WIDTH` columns.
pub fn print_lines(text: &str) -> Result<()> {
    print(text::break_lines(&with_this_program(text), WIDTH))
}

/// A text whose commands start this program as a person can start it here.
pub fn with_this_program(text: &str) -> String {
    with_program(text, this_program())
}

/// Prints the error chain, and its hints on lines of their own.
#[expect(clippy::print_stderr, reason = "the message of a program that failed")]
pub fn print_error(error: &anyhow::Error) {
    let chain = with_this_program(&format!("{error:#}"));
    // A hint deep in the chain still comes last.
    let (message, hints) = protocol::split_hints(&chain);
    let paint = |code: &str, word: &str| match has_colour(&std::io::stderr()) {
        true => format!("\u{1b}[{code}m{word}\u{1b}[0m"),
        false => word.to_string(),
    };
    // The message of another tool may begin with `error: ` already.
    eprintln!("{} {}", paint("31", "error:"), message.strip_prefix("error: ").unwrap_or(&message));
    for hint in hints.iter().flat_map(|hints| hints.lines()) {
        eprintln!("{} {hint}", paint("36", "hint:"));
    }
}

/// Prints a text that is no result to stderr. A closed stderr is no error.
pub fn print_notice(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(with_this_program(text).as_bytes()).and_then(|()| stderr.flush());
}

/// The content in a format, fitted into the width of the terminal if stdout is a terminal.
pub fn render(content: &dyn Content, format: &Format) -> Result<Vec<u8>> {
    let program = Some(this_program());
    let screen = Screen { width: width(), has_colour: has_colour(&std::io::stdout()), program };
    let bytes = format.render(content, screen);
    bytes.with_context(|| format!("cannot show this as `{}`", format.name))
}

pub fn show(content: &dyn Content, format: &Format) -> Result<()> {
    print(render(content, format)?)
}

/// A report with the parts that the command line selects.
pub fn with_view<'a>(report: &'a Report, view: &ViewArgs) -> ReportContent<'a> {
    let ViewArgs { full, pairs, price_per_hour, .. } = *view;
    let quiet = verbosity() == Verbosity::Quiet;
    let view = View {
        full,
        sort: view.sort.clone(),
        pairs,
        tables: view.tables.selected().into_iter().map(|(_, table)| table).collect(),
        price_per_hour,
        quiet,
    };
    ReportContent { report, view, judgement: None, saved: None }
}

/// A path as a user would type it: relative to the current folder, if it lies in that folder.
pub fn short_path(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let inside = here.and_then(|here| path.strip_prefix(here).ok());
    inside.unwrap_or(path).display().to_string()
}

/// Writes a file; `-` is stdout.
pub fn write(bytes: &[u8], path: &Path) -> Result<()> {
    if path == Path::new("-") {
        return print(bytes);
    }
    std::fs::write(path, bytes).map_err(|error| not_written(&error, path))
}

pub fn create_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot create `{}`", path.display()))
}

/// Writes a file as a whole or not at all: a reader meanwhile sees the old file or the new one.
pub fn replace(bytes: &[u8], path: &Path) -> Result<()> {
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let written = std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, path));
    if written.is_err() {
        // An error of the removal is ignored: the first error is the one to report.
        let _ = std::fs::remove_file(&partial);
    }
    written.map_err(|error| not_written(&error, path))
}

fn not_written(error: &std::io::Error, path: &Path) -> anyhow::Error {
    anyhow!("cannot write `{}`: {}", path.display(), file_problem(error, path))
}

/// When this program writes colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless `NO_COLOR` is set; if `CLICOLOR_FORCE` is set, everywhere
    #[default]
    Auto,
    /// In files and pipes too
    Always,
    /// Nowhere
    Never,
}

/// The choice of the command line, which `Cli::dispatch` sets once.
static COLOR: OnceLock<ColorChoice> = OnceLock::new();

pub fn set_color(choice: ColorChoice) {
    // A second call would be an error of this program; the first choice stays.
    let _ = COLOR.set(choice);
}

fn has_colour(stream: &impl IsTerminal) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_forced =
        is_set("CLICOLOR_FORCE") && std::env::var_os("CLICOLOR_FORCE").is_some_and(|it| it != "0");
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    match COLOR.get().copied().unwrap_or_default() {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto if is_set("NO_COLOR") => false,
        ColorChoice::Auto => is_forced || stream.is_terminal() && !is_dumb,
    }
}

/// The size of a terminal. It may know its width and not its height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub columns: Option<usize>,
    pub rows: Option<usize>,
}

/// The width of the terminal on stdout. A terminal that does not know its width, such as one over a serial line, has that of
/// `COLUMNS`. Output into a file or a pipe has no such width, so it is the same wherever it is made.
pub fn width() -> Option<usize> {
    let of_variable = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|&columns| columns > 0);
    size_of(std::io::stdout())?.columns.or_else(of_variable)
}

/// Whether a person sees the results as they are printed.
pub fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Whether stdout and stderr are the same pipe, file or terminal, as with `2>&1`.
pub fn has_one_stream() -> bool {
    let identity = |stream: BorrowedFd| rustix::fs::fstat(stream).map(|it| (it.st_dev, it.st_ino)).ok();
    let stdout = identity(std::io::stdout().as_fd());
    stdout.is_some() && stdout == identity(std::io::stderr().as_fd())
}

/// The size of a terminal; `None` for anything else.
pub fn size_of(terminal: impl AsFd) -> Option<TerminalSize> {
    let size = tcgetwinsize(terminal).ok()?;
    let known = |count: u16| (count > 0).then_some(usize::from(count));
    Some(TerminalSize { columns: known(size.ws_col), rows: known(size.ws_row) })
}

/// The width of plain text, such as listings and messages of `setup`.
pub const WIDTH: usize = 80;

/// The text about a user's own Python. Only the engine can check it, when it starts.
pub fn unchecked_python(python: &OwnPython) -> String {
    format!("`{}` ({}; not checked)", python.interpreter.display(), python.variable)
}

#[cfg(test)]
mod tests {
    use rustix::pty::{OpenptFlags, openpt};
    use rustix::termios::tcsetwinsize;

    use super::*;

    #[test]
    fn a_terminal_of_unknown_height_has_a_width() {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        assert_eq!(size_of(&terminal), Some(TerminalSize { columns: None, rows: None }));
        let mut size = tcgetwinsize(&terminal).unwrap();
        size.ws_col = 80;
        tcsetwinsize(&terminal, size).unwrap();
        assert_eq!(size_of(&terminal), Some(TerminalSize { columns: Some(80), rows: None }));
    }

    #[test]
    fn output_into_a_file_has_no_terminal_width() {
        assert_eq!(size_of(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
