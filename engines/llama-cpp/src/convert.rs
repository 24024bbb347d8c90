//! `llama-cpp-engine convert MODEL [DTYPE]`: writes the model as a GGUF file into the cache of conversions. It prints its
//! progress on stdout line by line (`0.25`), and the file last. The worker calls it on the program that started it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use model_files::{Dtype, Format, ModelFolder, check_writable, conversions, own_dtype};

pub struct Request {
    model: String,
    dtype: Option<String>,
}

/// The parsed request; `None` for other arguments.
pub fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Request> {
    let verb = arguments.next()?;
    let model = arguments.next()?;
    (verb == "convert").then(|| Request { model, dtype: arguments.next() })
}

pub fn answer(request: &Request) -> ExitCode {
    match gguf(request).and_then(|path| print_line(&path.to_string_lossy())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn gguf(request: &Request) -> Result<PathBuf> {
    let model = ModelFolder::open(&request.model)?;
    let dtype = match request.dtype.as_deref() {
        Some(name) => {
            let dtype = Dtype::named(name).with_context(|| format!("no dtype `{name}`"))?;
            check_writable(Format::Gguf, dtype)?;
            dtype
        }
        // The model's own dtype if GGUF has it, else one that keeps every number.
        None => Some(own_dtype(&model)?)
            .filter(|own| check_writable(Format::Gguf, *own).is_ok())
            .unwrap_or(Dtype::F32),
    };
    conversions::convert_cached(&model, Format::Gguf, dtype, &|done, total| {
        // A closed stdout ends the conversion: it has no reader.
        print_line(&format!("{:.3}", done as f64 / total.max(1) as f64))
    })
}

fn print_line(line: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    if writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_err() {
        bail!("stdout is closed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &[&str]) -> Option<(String, Option<String>)> {
        let request = parse(arguments.iter().map(|it| it.to_string()))?;
        Some((request.model, request.dtype))
    }

    #[test]
    fn only_convert_with_a_model_is_a_conversion() {
        assert_eq!(of(&["convert", "/m", "q8_0"]), Some(("/m".into(), Some("q8_0".into()))));
        assert_eq!(of(&["convert", "/m"]), Some(("/m".into(), None)));
        assert_eq!(of(&["convert"]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn an_unknown_dtype_is_refused_by_its_name() {
        let embedded = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/embedded");
        let error = gguf(&Request { model: embedded.into(), dtype: Some("q99".into()) }).unwrap_err();
        assert_eq!(error.to_string(), "no dtype `q99`");
    }
}
