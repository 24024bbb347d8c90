//! `orchestrate explain`: why an engine or a case has its verdicts, its verification status or its warnings.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;

use super::output;
use super::records::no_record;
use crate::cli::exit_code::DONE;
use crate::cli::formats_where;
use crate::engines::registry::Registry;
use crate::record::{self, RunRecord, results_dir};
use crate::report::explain::{Detail, explain as explanation, explain_term, similar_term};
use crate::report::{FORMATS, Format};
use crate::shell::{Usage, pasteable};
use crate::text::line;

#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// An engine, a case such as `decode`, both, or a term; default: all terms. A record may follow; default: the latest one
    #[arg(value_name = "ENGINE|CASE|TERM|RECORD")]
    pub names: Vec<String>,
    /// Folder of the latest record; default: ORCHESTRATE_RESULTS, else `results` of the current folder
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Explain an engine with all evidence and the values of its output check; default: one screen
    #[arg(long)]
    pub full: bool,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = FORMATS[0].name, value_parser = formats_where(|it| !it.has_lines()))]
    pub format: &'static Format,
}

pub fn explain(arguments: &ExplainArgs) -> Result<u8> {
    let (names, named_record) = split(&arguments.names);
    let names = &as_typed(names);
    let results = results_dir(arguments.results.as_deref());
    let latest = if named_record.is_none() { record::latest_in(&results)? } else { None };
    let Some(path) = named_record.clone().or(latest.map(|it| it.path)) else {
        // A term needs no record.
        let Some(term) = explain_term(names) else { return Err(no_record_or_term(names, &results)) };
        output::show(&term, arguments.format)?;
        return Ok(DONE);
    };
    let record = record::read(&path)?;
    let names_a_part = |record: &RunRecord| explanation(record, names, Detail::Brief).is_ok();
    let newest = if named_record.is_none() { record::newest_in(&results)? } else { None };
    let (path, record) = match newest.filter(|newest| *newest != path) {
        // An engine that failed at its start has only a record without a measurement.
        Some(newest) if !names_a_part(&record) => match record::read(&newest) {
            Ok(failed) if names_a_part(&failed) => (newest, failed),
            _ => (path, record),
        },
        _ => (path, record),
    };
    // The commands in hints get the record as their last argument, unless it is the latest one of the usual folder.
    let is_latest_of_usual_folder = named_record.is_none() && arguments.results.is_none();
    let argument = match is_latest_of_usual_folder {
        true => String::new(),
        false => format!(" {}", pasteable(&[path.display().to_string()])),
    };
    let with_record = |error: String| if error.contains("\nhint: ") { error + &argument } else { error };
    // A program that reads JSON gets everything.
    let is_brief = !arguments.full && arguments.format.is_for_people();
    let explained = explanation(&record, names, if is_brief { Detail::Brief } else { Detail::Full });
    let explained = explained.or_else(|error| explain_term(names).ok_or(error));
    let mut explanation = explained.map_err(|error| Usage(with_record(error)))?;
    for command in explanation.more.iter_mut().filter(|it| it.starts_with("orchestrate explain ")) {
        command.push_str(&argument);
    }
    output::show(&explanation, arguments.format)?;
    Ok(DONE)
}

/// The error for words that are no term, if there is no record.
fn no_record_or_term(names: &[String], results: &Path) -> anyhow::Error {
    let name = names.join(" ");
    let is_engine = Registry::open().is_ok_and(|it| it.named(&name).is_some() || it.names_preset(&name));
    let command = match similar_term(names) {
        // The record of a run has this engine.
        _ if is_engine => return no_record(results),
        Some(command) => command,
        None => "orchestrate explain".into(),
    };
    let (name, folder) = (line(&name), results.display());
    Usage(format!("no term `{name}`, and no run record in the folder `{folder}`\nhint: {command}")).into()
}

/// Splits the words into names and the record: the last word, if it ends in `.jsonl` or is the path of a file.
fn split(words: &[String]) -> (&[String], Option<PathBuf>) {
    match words {
        [names @ .., last] if last.ends_with(".jsonl") || is_file_path(last) => (names, Some(last.into())),
        names => (names, None),
    }
}

/// The words as the user typed them: a shell replaces `~` by the user's folder.
fn as_typed(names: &[String]) -> Vec<String> {
    let home = std::env::var("HOME").unwrap_or_default();
    let typed = |name: &String| if *name == home { "~".to_string() } else { name.clone() };
    names.iter().map(typed).collect()
}

/// Whether a word is the path of a file. A name without a slash is an engine or a case, even if a file has this name.
fn is_file_path(word: &str) -> bool {
    word.contains('/') && Path::new(word).is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_argument_of_explain_is_the_record_if_it_ends_in_jsonl_or_is_the_path_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("record").display().to_string();
        std::fs::write(&file, "").unwrap();
        let parsed = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| word.to_string()).collect();
            let (names, record) = split(&words);
            (names.join(" "), record.map(|path| path.display().to_string()))
        };
        assert_eq!(parsed(&["ttft", "512"]), ("ttft 512".into(), None));
        assert_eq!(parsed(&["toy", "a.jsonl"]), ("toy".into(), Some("a.jsonl".into())));
        assert_eq!(parsed(&["a.jsonl"]), ("".into(), Some("a.jsonl".into())));
        assert_eq!(parsed(&["toy", "decode", &file]), ("toy decode".into(), Some(file.clone())));
        // The name of a model from a hub has a slash.
        assert_eq!(parsed(&["toy", "owner/name"]), ("toy owner/name".into(), None));
    }
}
