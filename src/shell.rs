//! Text for a person at a shell: errors with hints, commands that can be pasted, sizes; and parsers of an option's values.

use std::fmt::Display;
use std::io::ErrorKind;
use std::path::Path;
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::{Deserialize, Serialize};

use crate::text;

/// The name of this program in every message, record and page.
pub const PROGRAM: &str = "orchestrate";

/// A user's error, such as a name on the command line that does not exist.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Turns an error into a user's error.
pub fn usage(error: anyhow::Error) -> anyhow::Error {
    Usage(format!("{error:#}")).into()
}

/// The error for a name that does not exist. If one of the known names is similar, the hint is the user's command line with that
/// name. Otherwise the hint lists the known names.
pub fn unknown_name(kind: &str, name: &str, known: &[&str]) -> Usage {
    unknown_name_or(kind, name, known, || listed(known))
}

/// Like `unknown_name`, with another hint if no known name is similar.
pub fn unknown_name_or(kind: &str, name: &str, known: &[&str], hint: impl FnOnce() -> String) -> Usage {
    let hint = did_you_mean(name, known).unwrap_or_else(hint);
    Usage(format!("no {kind} named `{}`\nhint: {hint}", text::line(name)))
}

/// The most names of equal likeness in a hint.
const MAX_NEAR_NAMES: usize = 4;

/// The hint for a mistyped name, if known names are similar: the command line of this process with the nearest one, or a choice of
/// several that are equally near.
pub fn did_you_mean(name: &str, known: &[&str]) -> Option<String> {
    match similar_names(name, known).as_slice() {
        [] => None,
        // The name may come from an environment variable or from a file.
        [one] => Some(corrected_command(name, one).unwrap_or_else(|| format!("did you mean `{one}`?"))),
        // These are not all known names.
        several => Some(format!("did you mean {}?", text::either(several)))
            .filter(|_| several.len() <= MAX_NEAR_NAMES),
    }
}

/// The command line of this process with `right` in place of the name `wrong`. `None` if it does not have this name.
pub fn corrected_command(wrong: &str, right: &str) -> Option<String> {
    corrected(std::env::args().skip(1), wrong, right)
}

/// The hint for a file that does not exist: the command line of this process with a file of a similar name, with the same
/// extension, in the same folder.
pub fn did_you_mean_file(path: &Path) -> Option<String> {
    if path.exists() {
        return None;
    }
    let (name, extension) = (path.file_name()?.to_str()?, path.extension());
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let files = std::fs::read_dir(folder).ok()?.flatten().map(|file| file.file_name());
    let files = files.filter(|file| Path::new(file).extension() == extension);
    let files: Vec<String> = files.filter_map(|file| file.into_string().ok()).collect();
    did_you_mean(name, &files.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The command line of this process with more words before this one. `None` if it does not have the word.
pub fn this_command_with_before(word: &str, more: &[&str]) -> Option<String> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let at = words.iter().position(|it| it == word)?;
    words.splice(at..at, more.iter().map(ToString::to_string));
    Some(format!("{PROGRAM} {}", pasteable(&words)))
}

/// `choose one of `a`, `b``.
pub fn listed(known: &[&str]) -> String {
    match known {
        [] => "there are none".into(),
        [only] => format!("the only one is `{only}`"),
        known => format!("choose one of {}", text::quoted(known)),
    }
}

/// The one known name that the user probably meant. Two names that are equally near give `None`, because a guess could select
/// another model.
pub fn similar_name<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    match similar_names(name, known).as_slice() {
        [one] => Some(one),
        _ => None,
    }
}

/// The known names that the user may have meant. These are the nearest ones, if at most a third of the letters of the longer name
/// differ. Otherwise they are those that begin with the name, if it has two letters or more. Otherwise the name is compared
/// without its last part: `itl` for `itl_p99`, `decode` for `decoed=3`. A known name may have the name as a word: `peak mem` for
/// `mem`.
pub fn similar_names<'a>(name: &str, known: &[&'a str]) -> Vec<&'a str> {
    let name = name.to_lowercase();
    let near = nearest_names(&name, known);
    let has_word = |known: &&&'a str| known.to_lowercase().split(' ').any(|word| word == name);
    let with_word = || known.iter().filter(has_word).copied().collect::<Vec<_>>();
    let begins = |known: &&&'a str| name.len() >= 2 && known.to_lowercase().starts_with(&name);
    let longer = || known.iter().filter(begins).copied().collect::<Vec<_>>();
    let without_part = || {
        let cuts = name.rmatch_indices([':', '_', '=', ' ', '@']).map(|(at, _)| &name[..at]);
        cuts.map(|cut| nearest_names(cut, known)).find(|near| !near.is_empty()).unwrap_or_default()
    };
    [near]
        .into_iter()
        .chain(std::iter::once_with(with_word))
        .chain(std::iter::once_with(longer))
        .chain(std::iter::once_with(without_part))
        .find(|found| !found.is_empty())
        .unwrap_or_default()
}

/// The known names with the fewest letters that differ from the name, if they are at most a third of the letters.
fn nearest_names<'a>(name: &str, known: &[&'a str]) -> Vec<&'a str> {
    let distance = |known: &str| {
        let known = known.to_lowercase();
        let longer = known.chars().count().max(name.chars().count());
        // Two letters in the wrong order are one error.
        Some(strsim::osa_distance(name, &known)).filter(|distance| 3 * distance <= longer)
    };
    let near: Vec<_> = known.iter().filter_map(|known| Some((distance(known)?, *known))).collect();
    let least = near.iter().map(|(distance, _)| *distance).min();
    near.into_iter().filter(|(distance, _)| Some(*distance) == least).map(|it| it.1).collect()
}

/// The command line of this program with `right` in place of `wrong`, in each word that has `wrong` as a whole name. `None` if
/// no word has it.
fn corrected(arguments: impl Iterator<Item = String>, wrong: &str, right: &str) -> Option<String> {
    let mut found = false;
    let words = arguments.map(|word| {
        let (at, length) = (name_in(&word, wrong), wrong.len());
        found |= at.is_some();
        at.map_or(word.clone(), |at| format!("{}{right}{}", &word[..at], &word[at + length..]))
    });
    let words: Vec<String> = words.collect();
    found.then(|| format!("{PROGRAM} {}", pasteable(&words)))
}

/// The position of a name in a word of a command line: `x` in `x`, `a,x`, `x:preset`, `x=value`, `--option=x`, `-ox`, `folder/x`.
fn name_in(word: &str, name: &str) -> Option<usize> {
    let is_name = |at: usize| {
        let (before, after) = (&word[..at], &word[at + name.len()..]);
        let is_short_option = before.len() == 2 && before.starts_with('-');
        let begins = before.is_empty() || before.ends_with([',', ':', '=', '/']) || is_short_option;
        begins && (after.is_empty() || after.starts_with([',', ':', '=']))
    };
    word.match_indices(name).map(|(at, _)| at).find(|&at| !name.is_empty() && is_name(at))
}

/// The reason why something cannot run, in one line. The first line of `hint` is the command to try first; further lines are
/// other ways.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unavailable {
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Unavailable {
    /// The text of an error, and the lines `hint: ...` at its end.
    pub fn of_error(error: &anyhow::Error) -> Self {
        let text = format!("{error:#}");
        match text.split_once("\nhint: ") {
            Some((reason, hints)) => {
                Self { reason: reason.into(), hint: Some(hints.replace("\nhint: ", "\n")) }
            }
            None => Self { reason: text, hint: None },
        }
    }

    pub fn hints(&self) -> impl Iterator<Item = &str> {
        self.hint.iter().flat_map(|hint| hint.lines())
    }

    /// The reason and the hints as the text of an error.
    pub fn message(&self) -> String {
        let hints: String = self.hints().map(|hint| format!("\nhint: {hint}")).collect();
        format!("{}{hints}", self.reason)
    }
}

/// The command that starts this program from the current folder: its name if PATH has it, else the path of its file.
pub fn this_program() -> &'static str {
    static FOUND: OnceLock<String> = OnceLock::new();
    FOUND.get_or_init(find_this_program)
}

fn find_this_program() -> String {
    let exe = std::env::current_exe().ok();
    let on_path = which::which(PROGRAM).ok().and_then(|path| path.canonicalize().ok());
    if on_path.is_some() && on_path == exe {
        return PROGRAM.into();
    }
    let here = std::env::current_dir().ok();
    let relative = exe.as_deref().zip(here.as_deref()).and_then(|(exe, here)| exe.strip_prefix(here).ok());
    match (relative, &exe) {
        (Some(relative), _) => pasteable(&[format!("./{}", relative.display())]),
        (None, Some(exe)) => pasteable(&[exe.display().to_string()]),
        (None, None) => PROGRAM.into(),
    }
}

/// A text whose commands of this program begin with `program` (see `this_program`), so that they can be pasted. Only text for a
/// person at this machine is changed: stderr, lists, and the format `table`. Records, and formats that others read elsewhere,
/// keep the name, so that a report of a record is the same wherever it is made.
pub fn with_program(text: &str, program: &str) -> String {
    let (mut out, mut copied) = (String::new(), 0);
    for (at, name) in text.match_indices(PROGRAM) {
        let end = at + name.len();
        if text[end..].starts_with(' ') && begins_command(&text[..at]) {
            out.push_str(&text[copied..at]);
            out.push_str(program);
            copied = end;
        }
    }
    out + &text[copied..]
}

/// Whether a command begins after this text: after a backtick or `hint: `, and after the variables that the command sets.
fn begins_command(text: &str) -> bool {
    if text.ends_with('`') || text.ends_with("hint: ") {
        return true;
    }
    let Some(before) = text.strip_suffix(' ') else { return false };
    let start = before.rfind([' ', '`']).map_or(0, |at| at + 1);
    before[start..].contains('=') && begins_command(&before[..start])
}

/// Separates a sentence from its hint.
pub const HINT: &str = "; hint: ";

/// A hint with a command of this program, or with an option, between backticks, so that no line is broken within it.
pub fn quoted_command(hint: &str) -> String {
    let (command, comment) = hint.split_once(" #").unwrap_or((hint, ""));
    let (command, comment) = (command.trim_end(), comment.trim());
    // Variables may come before the program.
    let mut words = command.split(' ').skip_while(|word| word.contains('='));
    let is_command = (words.next() == Some(PROGRAM) && words.next().is_some() || hint.starts_with("--"))
        && !command.contains('`');
    match comment {
        _ if !is_command => hint.to_string(),
        "" => format!("`{command}`"),
        comment => format!("`{command}` ({comment})"),
    }
}

/// The command line of this process with more words at its end.
pub fn this_command_with(words: &[&str]) -> String {
    let words: Vec<String> = std::env::args().skip(1).chain(words.iter().map(|it| it.to_string())).collect();
    format!("{PROGRAM} {}", pasteable(&words))
}

/// The command line of this process with another value of an option, in place of this item of its list, or else of its whole value.
/// If it does not have the option, the value is at the end.
pub fn this_command_with_value(option: &str, wrong: Option<&str>, right: &str) -> String {
    with_value(std::env::args().skip(1).collect(), option, wrong, right)
}

fn with_value(mut words: Vec<String>, option: &str, wrong: Option<&str>, right: &str) -> String {
    let is_wrong = |item: &str| wrong.is_none_or(|wrong| item.eq_ignore_ascii_case(wrong));
    let mut found = false;
    for at in 0..words.len() {
        let start = match words[at].strip_prefix(option) {
            Some(rest) if rest.starts_with('=') => option.len() + 1,
            _ if at > 0 && words[at - 1] == option => 0,
            _ => continue,
        };
        let (before, list) = words[at].split_at(start);
        let items = if wrong.is_some() { list.split(',').collect() } else { vec![list] };
        found |= items.iter().any(|item| is_wrong(item));
        let items: Vec<&str> =
            items.into_iter().map(|item| if is_wrong(item) { right } else { item }).collect();
        words[at] = format!("{before}{}", items.join(","));
    }
    match found {
        true => format!("{PROGRAM} {}", pasteable(&words)),
        false => without(words, &[(option, true)], &[option, right]),
    }
}

/// The command line of this process without these options, and with more words at its end. The second value of an option is whether
/// it takes a value.
pub fn this_command_without(options: &[(&str, bool)], more: &[&str]) -> String {
    without(std::env::args().skip(1).collect(), options, more)
}

/// The error about an option that has no effect in this command. `option` has a second word if it takes a value.
pub fn unused_option(command: &str, option: &str, why: &str) -> Usage {
    let (name, value) = option.split_once(' ').map_or((option, None), |(name, value)| (name, Some(value)));
    let hint = this_command_without(&[(name, value.is_some())], &[]);
    Usage(format!("`{command}` takes no `{option}`: {why}\nhint: {hint}"))
}

fn without(words: Vec<String>, options: &[(&str, bool)], more: &[&str]) -> String {
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let name = word.split('=').next().unwrap_or_default();
        match options.iter().find(|(option, _)| *option == name) {
            Some((_, takes_value)) if *takes_value && name == word => drop(words.next()),
            Some(_) => {}
            None => kept.push(word),
        }
    }
    kept.extend(more.iter().map(ToString::to_string));
    format!("{PROGRAM} {}", pasteable(&kept))
}

/// The command of a run with an option, as in `--blocks 5`, in place of the same option and of those that limit the blocks too.
pub fn command_with(command: &[String], option: &str) -> String {
    let (name, value) = option.split_once(' ').unwrap_or((option, ""));
    let all_limits: &[&str] = &["--blocks", "--interval", "--target", "--budget"];
    let replaced: &[&str] = if name == "--blocks" { all_limits } else { &[name] };
    let replaced: Vec<(&str, bool)> = replaced.iter().map(|name| (*name, true)).collect();
    // The first word is the program.
    without(command.iter().skip(1).cloned().collect(), &replaced, &[name, value])
}

/// A command with the quotes that a shell needs.
pub fn pasteable(command: &[String]) -> String {
    let needs_no_quotes = |it: char| it.is_alphanumeric() || "-_./=:,+@%".contains(it);
    let word = |word: &String| match word.is_empty() || !word.chars().all(needs_no_quotes) {
        true => format!("'{}'", word.replace('\'', r"'\''")),
        false => word.clone(),
    };
    command.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// The hint for a path that cannot be opened, on a line of its own: if access is denied, the command that grants it (`u+r`,
/// `u+x`). Empty for other errors.
pub fn access_hint(error: &std::io::Error, path: &Path, access: &str) -> String {
    if error.kind() != ErrorKind::PermissionDenied {
        return String::new();
    }
    format!("\nhint: chmod {access} {}", pasteable(&[path.display().to_string()]))
}

/// The reason why a file cannot be read or written: in plain words where those of the library are not, and with a hint if the disk is
/// full.
pub fn file_problem(error: &std::io::Error, path: &Path) -> String {
    match error.kind() {
        ErrorKind::InvalidData => "it is not text in UTF-8".into(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            let folder = path.parent().filter(|it| *it != Path::new("")).unwrap_or(Path::new("."));
            format!("{error}\nhint: df -h {}", pasteable(&[folder.display().to_string()]))
        }
        _ => error.to_string(),
    }
}

/// A size for a person: `2.9 GB`, `111 MB`.
pub fn megabytes(megabytes: u64) -> String {
    match megabytes {
        1000.. => format!("{:.1} GB", megabytes as f64 / 1000.0),
        _ => format!("{megabytes} MB"),
    }
}

/// The bytes that a person means by `20GB`, `1.5 tb` or `4096`.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim().to_ascii_uppercase().as_str() {
        "" | "B" => 1.0,
        "KB" | "K" => 1e3,
        "MB" | "M" => 1e6,
        "GB" | "G" => 1e9,
        "TB" | "T" => 1e12,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * factor;
    (bytes < 1e18).then_some(bytes as u64)
}

/// The time that a person means by `90s`, `5m` or `500ms`. A bare number is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let seconds = text.parse::<f64>().ok().filter(|it| it.is_finite() && *it > 0.0 && *it < 1e9);
    let parsed = seconds.map(Duration::from_secs_f64).or_else(|| humantime::parse_duration(text).ok());
    parsed.filter(|time| !time.is_zero()).ok_or_else(|| "expected a time, as in `90s` or `5m`".into())
}

/// The time limit of an answer: a time of at least a second. The example in the error is the default, because the hint repeats it.
pub fn parse_timeout(text: &str) -> Result<Duration, String> {
    let parsed = parse_duration(text).ok().filter(|time| (1..1_000_000_000).contains(&time.as_secs()));
    parsed.ok_or_else(|| "expected a time of at least 1 second, as in `2m`".into())
}

/// A time as a user gives it: `1m30s`.
pub fn duration_as_given(duration: Duration) -> String {
    humantime::format_duration(duration).to_string().replace(' ', "")
}

/// A parser that accepts only these words and returns the value of a word.
pub fn choice_parser<T: Copy + Send + Sync + 'static, const N: usize>(
    values: [(&'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(values.map(|(word, _)| word)).try_map(move |word| {
        let known = values.iter().find(|(known, _)| *known == word);
        known.map(|(_, value)| *value).ok_or("no such value")
    })
}

/// A parser of whole numbers; its error says in words which numbers the option takes.
pub fn whole_number<T>(least: T, most: T) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: FromStr + PartialOrd + Display + Copy + Into<u64>,
{
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| match most.into() {
            most if most >= u32::MAX.into() => format!("expected a whole number, at least {least}"),
            _ => format!("expected a whole number from {least} to {most}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_with_a_command_has_the_command_alone_between_backticks() {
        let cases = [
            ("orchestrate setup x", "`orchestrate setup x`"),
            ("orchestrate setup x # or install X", "`orchestrate setup x` (or install X)"),
            ("A=1 orchestrate setup x    # builds `x`", "`A=1 orchestrate setup x` (builds `x`)"),
            ("--timeout 60", "`--timeout 60`"),
            ("orchestrate", "orchestrate"),
            ("set A=1 # orchestrate reads it", "set A=1 # orchestrate reads it"),
        ];
        for (hint, quoted) in cases {
            assert_eq!(quoted_command(hint), quoted);
        }
    }

    #[test]
    fn the_error_about_denied_access_has_the_command_that_grants_access() {
        let hint = |errno: i32| {
            access_hint(&std::io::Error::from_raw_os_error(errno), Path::new("/a b/engine"), "u+x")
        };
        let [no_such_file, no_access] = [2, 13];
        assert_eq!(hint(no_access), "\nhint: chmod u+x '/a b/engine'");
        assert_eq!(hint(no_such_file), "");
    }

    #[test]
    fn the_reason_of_a_full_disk_has_the_command_that_shows_it() {
        let problem = |error: std::io::Error| file_problem(&error, Path::new("/a b/x.jsonl"));
        let full = problem(std::io::Error::from_raw_os_error(28));
        assert!(full.ends_with("\nhint: df -h '/a b'"), "{full}");
        assert_eq!(problem(ErrorKind::InvalidData.into()), "it is not text in UTF-8");
    }

    #[test]
    fn commands_of_this_program_begin_with_the_command_that_starts_it() {
        let shown = |text: &str| with_program(text, "./bin/orchestrate");
        for (text, expected) in [
            ("in full: `orchestrate report --full`", "in full: `./bin/orchestrate report --full`"),
            ("error: x\nhint: orchestrate setup a", "error: x\nhint: ./bin/orchestrate setup a"),
            ("hint: A=1 B=2 orchestrate setup a", "hint: A=1 B=2 ./bin/orchestrate setup a"),
            ("hint: `A=1 orchestrate run`; x", "hint: `A=1 ./bin/orchestrate run`; x"),
        ] {
            assert_eq!(shown(text), expected);
            assert_eq!(shown(expected), expected, "a second time");
            assert_eq!(with_program(text, PROGRAM), text);
        }
        for other in ["overhead of `orchestrate`", "orchestrate 0.1.0, glibc", "a=1 of orchestrate run"] {
            assert_eq!(shown(other), other);
        }
    }

    #[test]
    fn a_mistyped_name_has_one_similar_name_or_none() {
        let engines = ["anvil", "beacon-cpp", "hmwr", "lantern-baseline", "windmills"];
        let similar = |name| similar_name(name, &engines);
        assert_eq!(
            ["hmrw", "HMWR", "beacon.cpp", "beaconcpp", "widnmill", "lantern", "anvli"].map(similar),
            ["hmwr", "hmwr", "beacon-cpp", "beacon-cpp", "windmills", "lantern-baseline", "anvil"].map(Some)
        );
        assert_eq!(["vllm", "", "h", "no-such-engine", "größer"].map(similar), [None; 5]);
        let shapes = ["llama-2-7b", "llama-3-8b", "llama-3.2-1b"];
        assert_eq!(similar_name("llama-3.1-8b", &shapes), None, "two shapes are equally near");
        assert_eq!(similar_name("llama", &shapes), None, "all begin with it");
        assert_eq!(similar_name("fp16", &["f32", "bf16", "f16"]), Some("f16"));
        assert_eq!(
            ["q8", "q9"].map(|name| similar_name(name, &["f32", "q8_0", "q4_0"])),
            [Some("q8_0"), None]
        );
        // A value, a percentile or a preset that does not exist may follow the name.
        let names = ["itl", "decode", "decode_rate", "anvil"];
        let similar = |name| similar_name(name, &names);
        assert_eq!(
            ["itl_p99", "decoed=3", "decode_rate_p9", "anvil:q8_0", "decoed depth 512"].map(similar),
            ["itl", "decode", "decode_rate", "anvil", "decode"].map(Some)
        );
        assert_eq!(similar("x_p99"), None);
        let titles = ["memory_file", "peak mem", "memory over weights"];
        assert_eq!(similar_name("mem", &titles), Some("peak mem"), "a word of the title");
        let choice = did_you_mean("llama-3-7b", &shapes);
        assert_eq!(choice.as_deref(), Some("did you mean `llama-2-7b` or `llama-3-8b`?"));
    }

    #[test]
    fn a_hint_repeats_the_command_line_with_the_similar_name() {
        let hint = |words: &[&str]| {
            let corrected = corrected(words.iter().map(|word| word.to_string()), "hmrw", "hmwr")?;
            Some(corrected.split_once(' ').unwrap().1.to_string())
        };
        for (words, expected) in [
            (["-e", "hmrw"], "-e hmwr"),
            (["-e", "a,hmrw:q8_0"], "-e a,hmwr:q8_0"),
            (["--engine=hmrw", "--prompt=a b"], "--engine=hmwr '--prompt=a b'"),
            (["-ehmrw", "--reference=hmrw"], "-ehmwr --reference=hmwr"),
        ] {
            assert_eq!(hint(&words).as_deref(), Some(expected));
        }
        assert_eq!(hint(&["-e", "hmrw2", "--prompt", "of hmrw"]), None);
        assert_eq!(name_in("größer", "ö"), None);
    }

    #[test]
    fn a_hint_repeats_the_command_line_with_another_value_or_without_an_option() {
        let words = |line: &str| line.split(' ').map(String::from).collect::<Vec<_>>();
        for (line, wrong, expected) in [
            ("-e cuda --device cuda", Some("cuda"), "-e cuda --device cpu"),
            ("--device=x,cuda -e a", Some("cuda"), "--device=x,cpu -e a"),
            ("--device a,b -e c", None, "--device cpu -e c"),
            ("--device a --device=b -e c", Some("x"), "-e c --device cpu"),
            ("run cuda.toml", Some("cuda"), "run cuda.toml --device cpu"),
        ] {
            let shown = with_value(words(line), "--device", wrong, "cpu");
            assert_eq!(shown, format!("{PROGRAM} {expected}"), "{line}");
        }
        let line = words("-e a --quick --mode one-shot --blocks=2 x");
        let shown =
            without(line, &[("--quick", false), ("--mode", true), ("--blocks", true)], &["--blocks", "5"]);
        assert_eq!(shown, format!("{PROGRAM} -e a x --blocks 5"));
    }

    #[test]
    fn sizes_are_parsed_as_people_write_them() {
        let texts = ["20GB", "1.5 tb", "4096", " 2 MB ", "x", "3 zb", "", "1e999GB", "99999999TB"];
        let expected = [Some(20_000_000_000), Some(1_500_000_000_000), Some(4096), Some(2_000_000)];
        assert_eq!(texts.map(parse_bytes)[..4], expected);
        assert!(texts.map(parse_bytes)[4..].iter().all(Option::is_none));
    }

    #[test]
    fn a_timeout_is_a_time_with_a_unit_or_a_number_of_seconds() {
        let times = ["600", "10m", "1s"].map(|text| parse_timeout(text).map(|it| it.as_secs()));
        assert_eq!(times, [Ok(600), Ok(600), Ok(1)]);
        assert!(["", "0", "500ms", "1e99s", "fast"].iter().all(|text| parse_timeout(text).is_err()));
    }

    #[test]
    fn a_command_has_the_new_option_in_place_of_those_that_limit_the_blocks() {
        let command = |words: &str| words.split(' ').map(String::from).collect::<Vec<_>>();
        let run = command("/opt/o -e beacon --budget 20s --target=5% -m 'a b'");
        let limited = command("/opt/o -e beacon --blocks 5 --budget=20s --interval 5% --target 5%");
        let blocks = command_with(&limited, "--blocks 13");
        assert_eq!(blocks, "orchestrate -e beacon --blocks 13");
        assert!(command_with(&run, "--budget 4m").starts_with("orchestrate -e beacon --target=5% -m "));
        assert!(command_with(&run, "--budget 4m").ends_with(" --budget 4m"));
    }
}
