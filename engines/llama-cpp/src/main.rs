//! `llama-cpp`: llama.cpp through its library. The engine itself is `worker.py`. This program starts the worker with the
//! engine's pinned Python packages, or with the user's own Python. The worker inherits stdin and stdout.
//!
//! `llama-cpp-engine convert MODEL [DTYPE]` writes the model as a GGUF file into the cache of conversions. It prints its
//! progress on stdout line by line (`0.250`), and then the path of the file. The worker calls this command.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use engine_kit::conversion::print_line;
use engine_kit::python::{PythonEngine, host};
use model_files::{Dtype, Format, ModelFolder, check_writable, conversions, own_dtype};

fn main() -> ExitCode {
    if let Some(conversion) = Conversion::parse(std::env::args().skip(1)) {
        return conversion.run();
    }
    host(PythonEngine {
        name: "llama-cpp",
        environment: "llama-cpp",
        requirements: concat!(
            include_str!("../requirements.txt"),
            include_str!("../build-requirements.txt"),
            include_str!("../build-settings.txt"),
            include_str!("../build-fixes.cmake"),
        ),
        python: "3.11",
        install_hint: None,
        find_missing_requirement: None,
        files: &[
            ("worker.py", include_str!("../worker.py")),
            ("loading.py", include_str!("../loading.py")),
            ("library.py", include_str!("../library.py")),
            ("context.py", include_str!("../context.py")),
            ("model.py", include_str!("../model.py")),
        ],
    })
}

/// The arguments of `convert`.
#[derive(Debug, PartialEq)]
struct Conversion {
    model: String,
    dtype: Option<String>,
}

impl Conversion {
    /// The conversion that the arguments request. `None` unless they begin with `convert` and a model.
    fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        let command = arguments.next()?;
        let model = arguments.next()?;
        (command == "convert").then(|| Self { model, dtype: arguments.next() })
    }

    fn run(&self) -> ExitCode {
        match self.write_gguf().and_then(|path| print_line(&path.to_string_lossy())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(io::stderr(), "error: {error:#}");
                ExitCode::FAILURE
            }
        }
    }

    fn write_gguf(&self) -> Result<PathBuf> {
        let model = ModelFolder::open(&self.model)?;
        let dtype = match self.dtype.as_deref() {
            Some(name) => {
                let dtype = Dtype::named(name).with_context(|| format!("no dtype `{name}`"))?;
                check_writable(Format::Gguf, dtype)?;
                dtype
            }
            // The model's own dtype if GGUF has it, else f32, which keeps every number.
            None => Some(own_dtype(&model)?)
                .filter(|own| check_writable(Format::Gguf, *own).is_ok())
                .unwrap_or(Dtype::F32),
        };
        conversions::convert_cached(&model, Format::Gguf, dtype, &|done, total| {
            // A closed stdout has no reader, so the error ends the conversion.
            print_line(&format!("{:.3}", done as f64 / total.max(1) as f64))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_argument_convert_with_a_model_starts_a_conversion() {
        let parse = |arguments: &[&str]| Conversion::parse(arguments.iter().map(|it| it.to_string()));
        let conversion =
            |dtype: Option<&str>| Conversion { model: "/m".into(), dtype: dtype.map(str::to_string) };
        assert_eq!(parse(&["convert", "/m", "q8_0"]), Some(conversion(Some("q8_0"))));
        assert_eq!(parse(&["convert", "/m"]), Some(conversion(None)));
        assert_eq!(parse(&["convert"]), None);
        assert_eq!(parse(&[]), None);
    }

    #[test]
    fn the_error_for_an_unknown_dtype_has_the_name_of_the_dtype() {
        let embedded = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/embedded");
        let conversion = Conversion { model: embedded.into(), dtype: Some("q99".into()) };
        assert_eq!(conversion.write_gguf().unwrap_err().to_string(), "no dtype `q99`");
    }
}
