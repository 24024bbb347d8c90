//! The message of a command line or of a run file that clap refuses, in the form of this program's own errors.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::shell::pasteable;
use crate::text::{line, quoted};

/// The reason in one line, without the word `error:`. A hint of the value's parser is on a line of its own.
pub fn message(error: &clap::Error) -> String {
    let option = option(error).unwrap_or_default();
    let value = text_of(error, ContextKind::InvalidValue).map(line);
    match (error.kind(), value) {
        // `-5` is a value of another option by mistake.
        (ErrorKind::UnknownArgument, _) if option.starts_with('-') && !is_number(&option) => {
            format!("no option named `{option}`")
        }
        (ErrorKind::UnknownArgument, _) => format!("unexpected word `{option}`"),
        (ErrorKind::InvalidSubcommand, _) => {
            format!("no command named `{}`", subcommand(error).unwrap_or_default())
        }
        (ErrorKind::InvalidValue, None) => format!("{option}: the value is missing"),
        (ErrorKind::InvalidValue, Some(value)) if value.is_empty() => {
            format!("{option}: the value is missing")
        }
        (ErrorKind::InvalidValue, Some(value)) => format!("{option}: no value named `{value}`"),
        (ErrorKind::ValueValidation, Some(value)) => {
            let why = error.source().map_or_else(|| "not a valid value".to_string(), ToString::to_string);
            format!("{option} {}: {why}", pasteable(&[value]))
        }
        (ErrorKind::MissingRequiredArgument, _) => {
            format!("missing: {}", texts_of(error, ContextKind::InvalidArg).join(", "))
        }
        (ErrorKind::ArgumentConflict, _) => {
            let name = subcommand(error).unwrap_or(option);
            let others = excluded(error);
            match others.iter().all(|other| *other == name) {
                true => format!("`{name}` can be given only once"),
                false => format!("`{name}` cannot be used with {}", quoted(&others)),
            }
        }
        _ => first_paragraph(error),
    }
}

/// The name of the option, or of the argument without a name: `--budget`, `<SHAPE>`.
pub fn option(error: &clap::Error) -> Option<String> {
    text_of(error, ContextKind::InvalidArg).map(name_of)
}

/// The word that is no command, or that cannot be one here.
pub fn subcommand(error: &clap::Error) -> Option<String> {
    text_of(error, ContextKind::InvalidSubcommand).map(line)
}

/// The options that exclude the refused one.
pub fn excluded(error: &clap::Error) -> Vec<String> {
    texts_of(error, ContextKind::PriorArg).into_iter().map(name_of).collect()
}

pub fn text_of(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    texts_of(error, kind).first().copied()
}

pub fn texts_of(error: &clap::Error, kind: ContextKind) -> Vec<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text],
        Some(ContextValue::Strings(texts)) => texts.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

/// `--budget` for `--budget <TIME>`.
fn name_of(argument: &str) -> String {
    let name = if argument.starts_with('-') { argument.split(' ').next() } else { None };
    line(name.unwrap_or(argument))
}

fn is_number(word: &str) -> bool {
    word.trim_start_matches('-').starts_with(|it: char| it.is_ascii_digit())
}

/// The text of clap without its usage, for kinds of errors that are rare.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    first.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ")
}
