//! The error for a command line that clap refuses, with a hint that can be pasted.

use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::output;
use crate::cli::exit_code::USAGE;
use crate::engines::registry::Registry;
use crate::shell::pasteable;

/// The end of clap's own errors, in place of which the hint stands.
const CLAP_HINT: &str = "For more information, try '--help'.\n";

/// Prints the error, or the help or version that the user requested. Returns the exit code.
pub fn print(error: &clap::Error) -> u8 {
    let hint = hint(error).filter(|_| error.use_stderr());
    match (engine_in_place_of_command(error), hint) {
        // Without clap's text, which may suggest a command with a similar name.
        (Some((engine, command)), _) => {
            output::print_notice(&format!(
                "error: `{engine}` is an engine, not a command\nhint: {command}\n"
            ));
        }
        (None, Some(hint)) => {
            let text = error.render().to_string();
            let text = text.strip_suffix(CLAP_HINT).unwrap_or(&text).trim_end();
            output::print_notice(&format!("{text}\nhint: {hint}\n"));
        }
        // If nothing reads the output, there is nothing to do.
        (None, None) => drop(error.print()),
    }
    u8::try_from(error.exit_code()).unwrap_or(USAGE)
}

/// The command that helps. `None` where clap suggests a similar name, or explains the values itself.
fn hint(error: &clap::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let is_similar = error.get(ContextKind::SuggestedSubcommand).is_some();
            (!is_similar).then(|| "orchestrate -h".into())
        }
        // An option without its value.
        ErrorKind::InvalidValue if text(error, ContextKind::InvalidValue).is_none_or(str::is_empty) => {
            let words = values_of(text(error, ContextKind::InvalidArg)?);
            Some(format!("orchestrate {words}"))
        }
        _ => None,
    }
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        _ => None,
    }
}

/// The word in place of a command if it is no command, but names a known engine or is the path of a file. With it, the
/// command line with `-e`.
fn engine_in_place_of_command(error: &clap::Error) -> Option<(&str, String)> {
    // After an option of a run, such as `--all`, clap does not look for a command of this name.
    let is_refused = matches!(error.kind(), ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict);
    let name = is_refused.then(|| text(error, ContextKind::InvalidSubcommand)).flatten()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let engine = name.split(':').next().unwrap_or_default();
    let is_known = Registry::open().ok()?.with_manifest(engine).is_ok();
    let is_path = name.contains('/') && Path::new(name).is_file();
    let at = words.iter().position(|word| word == name).filter(|_| is_known || is_path)?;
    let (before, after) = words.split_at(at);
    // A named engine takes the place of `--all`.
    let before = before.iter().filter(|word| *word != "--all").cloned();
    let words: Vec<String> = before.chain(["-e".into()]).chain(after.iter().cloned()).collect();
    Some((name, format!("orchestrate {}", pasteable(&words))))
}

/// The command that lists the values of an option.
fn values_of(option: &str) -> &'static str {
    let is = |name: &str| option.starts_with(name);
    match () {
        () if is("--scenario") => "scenarios",
        () if is("--engine") || is("--reference") || is("--verifier") => "engines",
        () if is("--model ") => "model list",
        () => "--help",
    }
}
