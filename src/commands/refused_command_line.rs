//! The error for a command line that clap refuses: its message, and a hint that can be pasted.

use std::ffi::OsString;
use std::path::Path;

use anyhow::anyhow;
use clap::Command;
use clap::error::{ContextKind, ErrorKind};

use super::output;
use crate::cli::exit_code::USAGE;
use crate::cli::refusal::{excluded, message, option, subcommand, text_of, texts_of};
use crate::engines::registry::Registry;
use crate::plan::selection::scenario_names;
use crate::shell::{
    PROGRAM, corrected_command, did_you_mean, did_you_mean_file, listed, pasteable, similar_name,
    this_command_with_value, this_command_without,
};

/// Prints the error, or the help or version that the user requested. Returns the exit code. `words`: the command line that clap
/// refused, with the name of the program.
pub fn print(error: &clap::Error, command: &Command, words: &[OsString]) -> u8 {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help || !error.use_stderr() {
        // If nothing reads the output, there is nothing to do.
        drop(error.print());
    } else {
        let refused = Refused::of(error, command, words);
        let (message, hint) = match refused.other_name() {
            // Another command with a similar name would be a wrong guess.
            Some(found) => found,
            None => (message(error), refused.hint()),
        };
        let hint = if message.contains("\nhint: ") { String::new() } else { format!("\nhint: {hint}") };
        output::print_error(&anyhow!("{message}{hint}"));
    }
    u8::try_from(error.exit_code()).unwrap_or(USAGE)
}

/// A refused command line, and the command that it names.
struct Refused<'a> {
    error: &'a clap::Error,
    command: &'a Command,
    /// The names of the command: `["model", "info"]`. Empty for a run.
    path: Vec<&'a str>,
}

impl<'a> Refused<'a> {
    fn of(error: &'a clap::Error, mut command: &'a Command, words: &[OsString]) -> Self {
        let mut path = Vec::new();
        for word in words.iter().skip(1) {
            let Some(found) = word.to_str().and_then(|word| command.find_subcommand(word)) else { break };
            command = found;
            path.push(found.get_name());
        }
        Self { error, command, path }
    }

    /// The command that helps.
    fn hint(&self) -> String {
        let option = option(self.error).unwrap_or_default();
        let value = text_of(self.error, ContextKind::InvalidValue).unwrap_or_default();
        let found = match self.error.kind() {
            ErrorKind::InvalidSubcommand => {
                let known = self.command.get_subcommands().filter(|it| !it.is_hide_set());
                let known: Vec<&str> = known.map(Command::get_name).collect();
                let similar = did_you_mean(&subcommand(self.error).unwrap_or_default(), &known);
                // The short help has all commands.
                Some(similar.unwrap_or_else(|| self.help("-h")))
            }
            ErrorKind::UnknownArgument => self
                .without_engine_option(&option)
                .or_else(|| self.comparison(&option))
                .or_else(|| self.similar_option(&option)),
            ErrorKind::InvalidValue => match texts_of(self.error, ContextKind::ValidValue) {
                known if known.is_empty() || value.is_empty() => Some(self.values_of(&option)),
                known => Some(did_you_mean(value, &known).unwrap_or_else(|| listed(&known))),
            },
            ErrorKind::ValueValidation => {
                // The message about a file quotes a line of it, which is no value of the option.
                self.another_file(&option, value).or_else(|| {
                    let right = accepted(&message(self.error), value)?;
                    Some(this_command_with_value(&option, Some(value), &right))
                })
            }
            ErrorKind::MissingRequiredArgument => {
                text_of(self.error, ContextKind::InvalidArg).map(|argument| self.values_of(argument))
            }
            ErrorKind::ArgumentConflict => Some(self.without_conflict(&option)),
            _ => None,
        };
        found.unwrap_or_else(|| self.help("--help"))
    }

    fn help(&self, option: &str) -> String {
        let name: String = self.path.iter().map(|name| format!(" {name}")).collect();
        format!("{PROGRAM}{name} {option}")
    }

    /// The command line with the option that the user probably meant.
    fn similar_option(&self, wrong: &str) -> Option<String> {
        let known: Vec<&str> = self
            .command
            .get_arguments()
            .filter(|it| !it.is_hide_set())
            .filter_map(clap::Arg::get_long)
            .collect();
        let right = similar_name(wrong.strip_prefix("--")?, &known)?;
        corrected_command(wrong, &format!("--{right}"))
    }

    /// The command line without `-e`, if the command takes the engine as a word.
    fn without_engine_option(&self, option: &str) -> Option<String> {
        let is_engine = |name: &str| name.starts_with("ENGINE") || name == "NAME|PATH";
        let names = self.command.get_positionals().filter_map(clap::Arg::get_value_names).flatten();
        let takes_engine = names.map(|name| name.as_str()).any(is_engine);
        let is_given = ["-e", "--engine"].contains(&option) && std::env::args().any(|word| word == option);
        (takes_engine && is_given).then(|| this_command_without(&[(option, false)], &[]))
    }

    /// The command that compares two records, if `report` got two.
    fn comparison(&self, second: &str) -> Option<String> {
        let is_record = self.path == ["report"] && !second.starts_with('-');
        let mut words: Vec<String> = std::env::args().skip(1).filter(|_| is_record).collect();
        let command = words.iter_mut().find(|word| word.as_str() == "report")?;
        *command = "compare".into();
        Some(format!("{PROGRAM} {}", pasteable(&words)))
    }

    /// The command that lists the values of an option or an argument.
    fn values_of(&self, argument: &str) -> String {
        let is = |names: &[&str]| names.iter().any(|name| argument.starts_with(name));
        match () {
            () if is(&["--scenario", "<SCENARIO"]) => format!("{PROGRAM} scenarios"),
            () if is(&["--engine", "--reference", "--verifier", "<NAME|PATH>", "<ENGINE"]) => {
                format!("{PROGRAM} engines")
            }
            // `--model-` begins other options.
            () if is(&["<SHAPE", "<MODEL"]) || argument == "--model" => format!("{PROGRAM} model list"),
            () if is(&["<BASE>", "<RECORD", "--like"]) => format!("{PROGRAM} report --list"),
            () => self.help("--help"),
        }
    }

    /// The options of which one must be left out. Options of a command may stand before its name by mistake: then the command
    /// line with the name in its place.
    fn without_conflict(&self, option: &str) -> String {
        let others = excluded(self.error);
        let list: Vec<String> = others.iter().map(|it| format!("`{it}`")).collect();
        match subcommand(self.error) {
            Some(name) => self
                .command_first(&name, &others)
                .unwrap_or_else(|| format!("leave out {}", list.join(" and "))),
            None if others.iter().all(|other| other == option) => format!("leave out one `{option}`"),
            // Either option may be the one that the user means.
            None => {
                let without = |names: &[String]| {
                    let spellings: Vec<_> = names.iter().flat_map(|it| self.spellings(it)).collect();
                    let options: Vec<(&str, bool)> =
                        spellings.iter().map(|(name, takes_value)| (name.as_str(), *takes_value)).collect();
                    this_command_without(&options, &[])
                };
                // Without a word that is no option, such as the name of a file, the other options stand alone.
                let without_or_alone = |names: &[String], alone: &[String]| match names
                    .iter()
                    .any(|it| it.starts_with(['<', '[']))
                {
                    true => self.help(&alone.join(" ")),
                    false => without(names),
                };
                let option = [option.to_string()];
                format!(
                    "{}\nhint: {}",
                    without_or_alone(&others, &option),
                    without_or_alone(&option, &others)
                )
            }
        }
    }

    /// The long and the short name of an option, each with whether it takes a value.
    fn spellings(&self, option: &str) -> Vec<(String, bool)> {
        let takes_value = self.takes_value(option);
        let short = self.argument(option).and_then(clap::Arg::get_short).map(|short| format!("-{short}"));
        std::iter::once(option.to_string()).chain(short).map(|name| (name, takes_value)).collect()
    }

    fn takes_value(&self, option: &str) -> bool {
        self.argument(option).is_some_and(|it| it.get_action().takes_values())
    }

    fn argument(&self, option: &str) -> Option<&clap::Arg> {
        let name = option.strip_prefix("--")?;
        self.command.get_arguments().find(|it| it.get_long() == Some(name))
    }

    /// The command line with another file of a similar name, or else with the word `FILE`.
    fn another_file(&self, option: &str, path: &str) -> Option<String> {
        const FILE: &str = "FILE";
        let name = self.argument(option)?.get_value_names()?.first()?;
        let any = || this_command_with_value(option, Some(path), FILE);
        name.ends_with(FILE).then(|| did_you_mean_file(Path::new(path)).unwrap_or_else(any))
    }

    /// The command line with the command's name first, if this command has these options.
    fn command_first(&self, name: &str, options: &[String]) -> Option<String> {
        let command = self.command.find_subcommand(name)?;
        let has = |option: &String| {
            command.get_arguments().any(|it| it.get_long().is_some_and(|long| *option == format!("--{long}")))
        };
        let mut words: Vec<String> = std::env::args().skip(1).collect();
        let at = words.iter().position(|word| word == name).filter(|_| options.iter().all(has))?;
        words[..=at].rotate_right(1);
        Some(format!("{PROGRAM} {}", pasteable(&words)))
    }

    /// The message and the hint if the word in place of a command is the path of a file, a known engine or a scenario.
    fn other_name(&self) -> Option<(String, String)> {
        const SCENARIO: &str = "a scenario or a suite";
        // After an option of a run, such as `--all`, clap does not look for a command of this name.
        let kinds = [ErrorKind::InvalidSubcommand, ErrorKind::ArgumentConflict];
        let is_refused = self.path.is_empty() && kinds.contains(&self.error.kind());
        let name = subcommand(self.error).filter(|_| is_refused)?;
        let engine = name.split(':').next().unwrap_or_default();
        let is_known = || Registry::open().is_ok_and(|it| it.with_manifest(engine).is_ok());
        let is_scenario = || Registry::open().is_ok_and(|it| scenario_names(&it).any(|known| known == name));
        let path = Path::new(&name);
        let extension = path.extension().and_then(|it| it.to_str()).filter(|_| path.is_file());
        let (kind, before): (_, &[&str]) = match extension {
            Some("toml") => ("a run file", &["run"]),
            Some("jsonl") => ("a file of a record", &["report"]),
            _ if is_known() || name.contains('/') && path.is_file() => ("an engine", &["-e"]),
            _ if is_scenario() => (SCENARIO, &["-s"]),
            _ => return None,
        };
        let words: Vec<String> = std::env::args().skip(1).collect();
        let at = words.iter().position(|word| *word == name)?;
        let (options, rest) = words.split_at(at);
        // A named engine takes the place of `--all`. A command stands before its options.
        let options = options.iter().filter(|word| kind == SCENARIO || *word != "--all").cloned();
        let before = before.iter().map(ToString::to_string);
        let words: Vec<String> = match kind {
            "an engine" | SCENARIO => options.chain(before).chain(rest.iter().cloned()).collect(),
            _ => before.chain(options).chain(rest.iter().cloned()).collect(),
        };
        Some((format!("`{name}` is {kind}, not a command"), format!("{PROGRAM} {}", pasteable(&words))))
    }
}

/// The value that a message names, as in `expected a time, as in `90s``; or else the nearest number of those in a message such as
/// `expected a whole number from 1 to 8`.
fn accepted(message: &str, value: &str) -> Option<String> {
    if let Some((_, rest)) = message.split_once("as in `") {
        return rest.split('`').next().map(String::from);
    }
    let numbers = ["expected a whole number", "expected a number from"];
    let (_, rest) = numbers.iter().find_map(|it| message.split_once(it))?;
    let numbers: Vec<&str> = rest.split(' ').filter(|word| word.parse::<u64>().is_ok()).collect();
    let is_more = |most: &&&str| most.parse::<f64>().ok() < value.parse::<f64>().ok();
    numbers.get(1).filter(is_more).or(numbers.first()).map(ToString::to_string)
}
