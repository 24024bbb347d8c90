//! The GGUF file of a model, for engines that read only GGUF. An engine in Rust calls [`file_of`]. A Python worker calls the
//! commands of its engine's program:
//!
//! - `PROGRAM convert MODEL [DTYPE]` writes the model as a GGUF file into the cache of conversions. It prints its progress on
//!   stdout line by line (`0.250`), and then the path of the file.
//! - `PROGRAM tokenizer MODEL` prints the model's tokenizer as the text of a `tokenizer.json`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use model_files::{Dtype, Format, ModelFolder, OnProgress, check_writable, conversions, own_dtype};
use protocol::{Failed, FailureKind};

use crate::conversion::print_line;
use crate::{OrFail, Phases};

/// A command with its arguments.
#[derive(Debug, PartialEq)]
pub enum Command {
    Convert { model: String, dtype: Option<String> },
    Tokenizer { model: String },
}

impl Command {
    /// The command that the arguments of the program request. `None` for all other arguments.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        let (command, model) = (arguments.next()?, arguments.next()?);
        match command.as_str() {
            "convert" => Some(Self::Convert { model, dtype: arguments.next() }),
            "tokenizer" => Some(Self::Tokenizer { model }),
            _ => None,
        }
    }

    pub fn run(&self) -> ExitCode {
        let done = match self {
            Self::Convert { model, dtype } => convert(model, dtype.as_deref()),
            Self::Tokenizer { model } => tokenizer(model),
        };
        match done.and_then(|line| print_line(&line)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(io::stderr(), "error: {error:#}");
                ExitCode::FAILURE
            }
        }
    }
}

/// Returns the path of the converted file.
fn convert(model: &str, dtype: Option<&str>) -> Result<String> {
    let path = convert_cached(&ModelFolder::open(model)?, dtype, &|done, total| {
        // A closed stdout has no reader, so the error ends the conversion.
        print_line(&format!("{:.3}", done as f64 / total.max(1) as f64))
    })?;
    Ok(path.to_string_lossy().into_owned())
}

fn convert_cached(model: &ModelFolder, dtype: Option<&str>, on_progress: OnProgress) -> Result<PathBuf> {
    let dtype = match dtype {
        Some(name) => {
            let dtype = Dtype::named(name).with_context(|| format!("no dtype `{name}`"))?;
            check_writable(Format::Gguf, dtype)?;
            dtype
        }
        // The model's own dtype if GGUF has it, else f32, which keeps every number.
        None => Some(own_dtype(model)?)
            .filter(|own| check_writable(Format::Gguf, *own).is_ok())
            .unwrap_or(Dtype::F32),
    };
    conversions::convert_cached(model, Format::Gguf, dtype, on_progress)
}

/// The GGUF file of a model, for an engine in Rust that reads only GGUF. A model in another format, or in another dtype than the
/// requested one, is converted in a phase `conversion`.
pub fn file_of(model: &ModelFolder, dtype: Option<&str>, phases: &mut Phases) -> Result<PathBuf, Failed> {
    if let (Format::Gguf, Some(file)) = (model.format, model.weights.first()) {
        let own = own_dtype(model).or_fail(FailureKind::Model)?;
        if dtype.is_none_or(|dtype| Dtype::named(dtype) == Some(own)) {
            return Ok(file.clone());
        }
    }
    phases.begin("conversion");
    let path = convert_cached(model, dtype, &|done, total| {
        phases.progress(done as f64 / total.max(1) as f64, None);
        Ok(())
    });
    path.or_fail(FailureKind::Model)
}

fn tokenizer(model: &str) -> Result<String> {
    ModelFolder::open(model)?.tokenizer_tables()?.to_json()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_command_with_a_model_is_run() {
        let parse = |arguments: &[&str]| Command::parse(arguments.iter().map(|it| it.to_string()));
        let convert =
            |dtype: Option<&str>| Command::Convert { model: "/m".into(), dtype: dtype.map(str::to_string) };
        assert_eq!(parse(&["convert", "/m", "q8_0"]), Some(convert(Some("q8_0"))));
        assert_eq!(parse(&["convert", "/m"]), Some(convert(None)));
        assert_eq!(parse(&["tokenizer", "/m"]), Some(Command::Tokenizer { model: "/m".into() }));
        assert_eq!(parse(&["convert"]), None);
        assert_eq!(parse(&["serve", "/m"]), None);
        assert_eq!(parse(&[]), None);
    }

    #[test]
    fn the_tokenizer_of_a_model_is_printed_as_json() {
        let embedded = model_files::embedded::folder().unwrap();
        let text = tokenizer(&embedded.to_string_lossy()).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["model"]["type"], "BPE");
    }
}
