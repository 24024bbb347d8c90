//! The commands of README.md and of the pages in `docs`.
//!
//! A block of commands has the language `console`; each line is a command. Its tags say what it needs and what it returns:
//!
//! - no tag: the commands run, in seconds, with stand-ins for `lmrs` and for the reader's own engine;
//! - `full`: they need real engines, the checkout or minutes, so they run only in `scripts/check --full` and are parsed
//!   elsewhere;
//! - one of `PARSED_ONLY`: they never run; the shell and the program itself parse them;
//! - `exit=3`, `exit=0|3`: the expected exit codes; without this tag 0.
//!
//! Other blocks are `text`, `json` and `yaml`, and `python file=NAME` or `toml file=NAME`: a file that is written into the
//! folder where the page's commands run. The commands of a workflow (`yaml`) are parsed. `text output` is a part of the
//! output of the last block of commands: `...` stands for any text, and a number for any number. In `text output exact`, such as
//! a part of a record's report, a number stands for itself.

use crate::page::{self, Block, Page};
use crate::sessions::{IS_FULL, Session};
use crate::support::Outcome;

/// Tags of commands that no test runs, with the reason.
const PARSED_ONLY: &[(&str, &str)] = &[
    ("gpu", "they need an NVIDIA GPU"),
    ("hub", "they fetch a model from the Hugging Face hub"),
    ("download", "they fetch packages, or compile for minutes"),
    ("check", "they run this test themselves"),
    ("long", "they take many minutes"),
];

#[test]
fn every_command_of_the_pages_runs_or_is_parsed() {
    let pages = page::for_users();
    // Real engines would slow each other down, and could reach a time limit. So only one page at a time uses them.
    let at_once = if IS_FULL { 1 } else { pages.len() };
    let mut failures: Vec<String> = Vec::new();
    for pages in pages.chunks(at_once) {
        failures.extend(std::thread::scope(|scope| {
            let threads: Vec<_> = pages.iter().map(|page| (page, scope.spawn(|| run_page(page)))).collect();
            let hangs = |page: &Page| vec![format!("{}: a command hangs: see above", page.path)];
            let failures =
                threads.into_iter().flat_map(|(page, it)| it.join().unwrap_or_else(|_| hangs(page)));
            failures.collect::<Vec<_>>()
        }));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// The line of a page, and what is wrong there.
type Problem = (usize, String);

/// Inline code that begins with one of these is a command.
const PROGRAMS: &[&str] = &["orchestrate ", "scripts/", "./target/release/", "target/release/", "cargo "];

/// Runs or parses all commands of a page, and returns what is wrong.
fn run_page(page: &Page) -> Vec<String> {
    let session = Session::start();
    let mut output = None;
    let mut problems: Vec<Problem> = Vec::new();
    for block in &page.blocks {
        problems.extend(check_block(&session, block, &mut output));
    }
    let is_command = |code: &str| PROGRAMS.iter().any(|program| code.starts_with(program));
    let inline = page.inline.iter().filter(|(_, code)| is_command(code));
    problems.extend(inline.filter_map(|(line, command)| parse(&session, *line, command)));
    problems.into_iter().map(|(line, problem)| format!("{}:{line}: {problem}", page.path)).collect()
}

/// Checks a block. `output` is the output of the last block of commands; `None` if they did not run.
fn check_block(session: &Session, block: &Block, output: &mut Option<String>) -> Vec<Problem> {
    let here = |problem: String| vec![(block.line, problem)];
    match (block.language.as_str(), block.tags.first().map(String::as_str)) {
        ("console", _) => run_block(session, block, output),
        ("yaml", _) => {
            let scripts = workflow_scripts(block).into_iter();
            scripts.filter_map(|(line, script)| parse(session, line, &script)).collect()
        }
        ("python" | "toml", Some(tag)) if tag.starts_with("file=") => {
            session.write(tag.trim_start_matches("file="), &block.text);
            Vec::new()
        }
        ("python", _) => here("a Python block needs `file=NAME`".into()),
        ("text", Some("output")) => {
            let normalised = match block.tags.get(1).map(String::as_str) {
                None => without_numbers,
                Some("exact") => with_single_spaces,
                Some(other) => return here(format!("unknown tag `{other}`")),
            };
            let Some(output) = output else { return Vec::new() };
            let missing = missing_line(&block.text, output, normalised);
            missing.map_or_else(Vec::new, |line| here(format!("the output has no line `{line}`:\n{output}")))
        }
        ("text" | "json", _) => {
            let is_command = |line: &&str| line.starts_with("orchestrate ") || line.starts_with("$ ");
            let command = block.text.lines().find(is_command);
            command.map_or_else(Vec::new, |it| here(format!("`{it}` is in no block `console`")))
        }
        (other, _) => here(format!("unknown language `{other}`; commands are in blocks `console`")),
    }
}

fn run_block(session: &Session, block: &Block, output: &mut Option<String>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let (mut runs, mut codes) = (true, vec![0]);
    for tag in &block.tags {
        match tag.strip_prefix("exit=") {
            Some(list) => codes = list.split('|').map(|code| code.parse().unwrap()).collect(),
            None if tag == "full" => runs &= IS_FULL,
            None if PARSED_ONLY.iter().any(|(known, _)| known == tag) => runs = false,
            None => problems.push((block.line, format!("unknown tag `{tag}`"))),
        }
    }
    if !runs {
        *output = None;
        problems.extend(block.commands().iter().filter_map(|(line, command)| parse(session, *line, command)));
        return problems;
    }
    let mut text = String::new();
    for (line, command) in block.commands() {
        let outcome = session.run(&command);
        problems.extend(problem(&outcome, &codes).map(|problem| (line, format!("`{command}`: {problem}"))));
        text += &outcome.stdout;
        text += &outcome.stderr;
    }
    *output = Some(text);
    problems
}

fn parse(session: &Session, line: usize, command: &str) -> Option<Problem> {
    let problem = problem(&session.parse(command), &[0])?;
    Some((line, format!("`{command}`: {problem}")))
}

/// Describes an exit code that is none of `codes`, with the last lines of stdout and stderr.
fn problem(outcome: &Outcome, codes: &[i32]) -> Option<String> {
    let last_lines = |text: &str| {
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(12)..].join("\n")
    };
    let (stdout, stderr) = (last_lines(&outcome.stdout), last_lines(&outcome.stderr));
    let is_expected = outcome.code.is_some_and(|code| codes.contains(&code));
    (!is_expected).then(|| format!("exit code {:?}, expected {codes:?}\n{stdout}\n{stderr}", outcome.code))
}

/// The scripts of a workflow's steps: `run: COMMAND`, or the indented lines after `run: |`. `${{ ... }}` becomes a word.
fn workflow_scripts(block: &Block) -> Vec<(usize, String)> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut scripts: Vec<(usize, String)> = Vec::new();
    let mut script_indent = None;
    for (index, line) in block.text.lines().enumerate() {
        let step = line.trim_start().trim_start_matches("- ");
        match (step.strip_prefix("run: "), script_indent) {
            (Some(command), _) => {
                let is_script = command == "|";
                script_indent = is_script.then(|| indent(line));
                let text = if is_script { String::new() } else { without_expressions(command) };
                scripts.push((block.line + 1 + index, text));
            }
            (None, Some(start)) if indent(line) > start => {
                let (_, script) = scripts.last_mut().unwrap();
                *script += &(without_expressions(line.trim()) + "\n");
            }
            (None, _) => script_indent = None,
        }
    }
    scripts
}

fn without_expressions(command: &str) -> String {
    match command.split_once("${{") {
        Some((before, rest)) => {
            let after = rest.split_once("}}").map_or("", |(_, after)| after);
            format!("{before}WORD{}", without_expressions(after))
        }
        None => command.into(),
    }
}

/// The first line of `expected` that `output` lacks, or has only before a line that must precede it.
fn missing_line<'a>(expected: &'a str, output: &str, normalised: fn(&str) -> String) -> Option<&'a str> {
    let mut lines = output.lines().map(normalised);
    expected.lines().filter(|line| !matches!(line.trim(), "" | "...")).find(|line| {
        let pattern = normalised(line);
        !lines.any(|line| matches(&pattern, &line))
    })
}

/// Whether a line fits a pattern, in which `...` stands for any text.
fn matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split("...").map(str::trim);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else { return false };
    let mut last = first;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        last = part;
    }
    rest.trim().is_empty() || last.is_empty() && pattern.contains("...")
}

fn with_single_spaces(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The line with `#` for each number, and with single spaces.
fn without_numbers(line: &str) -> String {
    let word = |word: &str| {
        let mut text = String::new();
        let mut in_number = false;
        for char in word.chars() {
            let is_in_number = char.is_ascii_digit() || in_number && ".,".contains(char);
            match (is_in_number, in_number) {
                (true, false) => text.push('#'),
                (false, _) => text.push(char),
                (true, true) => {}
            }
            in_number = is_in_number;
        }
        text
    };
    line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_wrong_command_language_or_output_fails_the_test() {
    let block = |info: &str, text: &str| format!("```{info}\n{text}\n```\n");
    let broken = [
        block("console gpu", "orchestrate -e candle --no-such-option"),
        block("console gpu", "orchestrate -e candle | no-such-program"),
        block("console gpu", "scripts/no-such-script"),
        block("console no-such-tag", "true"),
        block("console", "false"),
        block("console exit=2", "orchestrate -e ./my-engine --dry-run"),
        block("yaml", "- run: |\n    orchestrate -e ./x --no-such-option"),
        block("", "orchestrate engines"),
        block("sh", "orchestrate engines"),
        block("text", "orchestrate engines"),
        block("python", "print(1)"),
        block("console", "echo 12 apples") + &block("text output", "7 pears"),
        block("console", "echo 12 apples") + &block("text output exact", "7 apples"),
        block("console", "echo 12 apples") + &block("text output no-such-tag", "12 apples"),
        "Use `orchestrate no-such-command`.".into(),
    ];
    for text in broken {
        assert!(!run_page(&Page::parse("page", &text)).is_empty(), "no failure: {text}");
    }
    let good = [
        block("console", "orchestrate -e ./my-engine --dry-run | cat # a comment"),
        block("console exit=1|2", "orchestrate no-such-command"),
        block("yaml", "- run: orchestrate -e ${{ matrix.engine }} -s decode\n- uses: x"),
        block("console", "echo 12 apples; echo; echo end of 3.5 s")
            + &block("text output", "7 apples\n...\nend ..."),
        block("console", "echo '12   apples'; echo end") + &block("text output exact", "12 apples\nend"),
    ];
    for text in good {
        assert_eq!(run_page(&Page::parse("page", &text)), Vec::<String>::new(), "{text}");
    }
}
