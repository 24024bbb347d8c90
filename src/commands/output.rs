//! What a person or a pipe asked for, on stdout; what went wrong, on stderr. Nothing else writes a report.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::termios::tcgetwinsize;

use crate::cli::ViewArgs;
use crate::report::{Content, Format, Report, View, Viewed};

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

/// For a terminal of its width or for a file.
pub fn rendered(content: &dyn Content, format: &Format) -> Result<Vec<u8>> {
    let bytes = format.render(content, width());
    bytes.with_context(|| format!("cannot show this as `{}`", format.name))
}

pub fn show(content: &dyn Content, format: &Format) -> Result<()> {
    print(&rendered(content, format)?)
}

/// A report, and what of it the command line names.
pub fn viewed<'a>(report: &'a Report, view: &ViewArgs) -> Viewed<'a> {
    let ViewArgs { pairs, wall_time, resources, .. } = *view;
    Viewed { report, view: View { pairs, wall_time, resources }, judged: None }
}

/// To a file; `-` is stdout.
pub fn write(bytes: &[u8], path: &Path) -> Result<()> {
    if path == Path::new("-") {
        return print(bytes);
    }
    std::fs::write(path, bytes).with_context(|| format!("cannot write `{}`", path.display()))
}

/// To a file, all of it or nothing: whoever reads it meanwhile reads what it was or what it is.
pub fn replace(bytes: &[u8], path: &Path) -> Result<()> {
    let half = path.with_extension(format!("{}.half", std::process::id()));
    let written = std::fs::write(&half, bytes).and_then(|()| std::fs::rename(&half, path));
    if written.is_err() {
        // Best effort: the error that matters is the one already in hand.
        let _ = std::fs::remove_file(&half);
    }
    written.with_context(|| format!("cannot write `{}`", path.display()))
}

/// How many columns the reader has, where stdout is a terminal that says so. One that does not know its height still knows
/// its width.
pub fn width() -> Option<usize> {
    width_of(std::io::stdout())
}

fn width_of(terminal: impl AsFd) -> Option<usize> {
    let size = tcgetwinsize(terminal).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

#[cfg(test)]
mod tests {
    use rustix::pty::{OpenptFlags, openpt};
    use rustix::termios::tcsetwinsize;

    use super::*;

    #[test]
    fn a_terminal_that_does_not_know_its_height_has_a_width_all_the_same() {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        assert_eq!(width_of(&terminal), None);
        let mut size = tcgetwinsize(&terminal).unwrap();
        size.ws_col = 80;
        tcsetwinsize(&terminal, size).unwrap();
        assert_eq!((size.ws_row, width_of(&terminal)), (0, Some(80)));
    }

    #[test]
    fn a_file_has_no_width() {
        assert_eq!(width_of(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
