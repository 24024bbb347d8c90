//! Conversions of a model by a program of another project, for example an exporter in Python. The result is a folder in the cache of
//! conversions (`orchestrate model cache`).
//!
//! The program of every Python engine has this command, and its worker calls it (`conversion.py`):
//! `PROGRAM convert-with MODEL FORMAT DTYPE CONVERTER COMMAND...`. CONVERTER is the name and version of the converter. COMMAND runs
//! only if the cache lacks the conversion. Its last argument is the path of the folder to write. The program prints the progress
//! on stdout (`0.250`), and then the path of the converted folder.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use model_files::ModelFolder;
use model_files::conversions::{ExternalConverter, convert_cached_by};

const COMMAND: &str = "convert-with";
const USAGE: &str = "usage: convert-with MODEL FORMAT DTYPE CONVERTER COMMAND [ARGUMENT...]";

/// The most bytes of the converter's last output that an error quotes.
const QUOTED_BYTES: usize = 1000;

/// Converts, if the arguments of this program are those of a conversion. `None` for other arguments.
pub fn convert_with(arguments: &[OsString]) -> Option<ExitCode> {
    let (_, arguments) = arguments.split_first().filter(|(command, _)| *command == COMMAND)?;
    Some(match find_or_convert(arguments).and_then(|path| print_line(&path.to_string_lossy())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    })
}

fn find_or_convert(arguments: &[OsString]) -> Result<PathBuf> {
    let [model, format, dtype, converter, program, arguments @ ..] = arguments else { bail!(USAGE) };
    let model = ModelFolder::open(model)?;
    let text = |argument: &OsString| argument.to_string_lossy().into_owned();
    let (format, dtype, converter) = (text(format), text(dtype), text(converter));
    let by = ExternalConverter { format: &format, dtype: &dtype, converter: &converter };
    convert_cached_by(&model, by, &|folder| run(program, arguments, folder))
}

/// Runs the converter, which creates and fills `folder`. The fractions that it prints are passed on; an error quotes its last
/// other output.
fn run(program: &OsStr, arguments: &[OsString], folder: &Path) -> Result<()> {
    let command = duct::cmd(program, arguments.iter().map(OsString::as_os_str).chain([folder.as_os_str()]));
    let program = program.display();
    let command = command.stdin_null().stderr_to_stdout().unchecked();
    let reader = command.reader().with_context(|| format!("cannot start `{program}`"))?;
    let (mut lines, mut last_output) = (BufReader::new(&reader), String::new());
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).context("cannot read the converter's output")? > 0 {
        let text = String::from_utf8_lossy(&line);
        let is_fraction = text.trim().parse().is_ok_and(|fraction: f64| (0.0..=1.0).contains(&fraction));
        if is_fraction {
            // A closed stdout has no reader, so the error ends the conversion: dropping the reader kills the converter.
            print_line(text.trim())?;
        } else {
            last_output.push_str(&text);
            last_output.drain(..start_of_end(&last_output));
        }
        line.clear();
    }
    let status = reader.try_wait()?.context("the converter has not ended")?.status;
    ensure!(status.success(), "the converter `{program}` failed ({status}): {}", last_output.trim());
    ensure!(folder.is_dir(), "the converter `{program}` wrote no folder: {}", last_output.trim());
    Ok(())
}

/// The first character of the part of a text that an error quotes.
fn start_of_end(text: &str) -> usize {
    text.ceil_char_boundary(text.len().saturating_sub(QUOTED_BYTES))
}

/// Prints a line for the worker.
pub fn print_line(line: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    if writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_err() {
        bail!("stdout is closed");
    }
    Ok(())
}
