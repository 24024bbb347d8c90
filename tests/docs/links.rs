//! Checks links between pages, the length of the pages for users and their index, the engines of the page on choosing one, and
//! the picture and first command of README.md.

use crate::page::{self, Page};
use crate::support::root;
use crate::support::tree::engine_folders;

/// The most lines of README.md and of each page in `docs`.
const MAX_LINES: usize = 150;
/// The last line of README.md in which its first command may stand.
const FIRST_COMMAND_WITHIN: usize = 25;

#[test]
fn every_link_leads_to_a_file_or_to_a_heading_of_a_page() {
    let pages = page::all();
    let broken = |page: &Page| {
        let dead =
            page.links.iter().filter_map(|(line, target)| Some((line, target, problem(page, target)?)));
        let describe = |(line, target, problem)| format!("{}:{line}: `{target}`: {problem}", page.path);
        dead.map(describe).collect::<Vec<String>>()
    };
    let broken: Vec<String> = pages.iter().flat_map(broken).collect();
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

/// The reason why a link leads nowhere.
fn problem(page: &Page, target: &str) -> Option<String> {
    if let Some((scheme, rest)) = target.split_once("://") {
        let is_address = scheme == "https" && rest.contains('.') && !rest.contains([' ', '<', '>']);
        return (!is_address).then(|| "no https address".into());
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = root().join(&page.path).parent().unwrap().to_path_buf();
    let file = if path.is_empty() { root().join(&page.path) } else { folder.join(path) };
    if !file.exists() {
        return Some("no such file".into());
    }
    if anchor.is_empty() {
        return None;
    }
    let Ok(text) = std::fs::read_to_string(&file) else {
        return Some("not a page, so it has no headings".into());
    };
    let anchors = Page::parse("", &text).anchors();
    (!anchors.contains(anchor)).then(|| format!("no such heading; there are {anchors:?}"))
}

#[test]
fn a_link_to_a_missing_file_or_heading_is_found() {
    let page = Page::read("README.md");
    for broken in
        ["docs/no-such-page.md", "CONTRIBUTING.md#no-such-heading", "#no-such-heading", "http://x.org"]
    {
        assert!(problem(&page, broken).is_some(), "{broken}");
    }
    for good in ["docs/glossary.md", "CONTRIBUTING.md#style", "docs", "https://example.org/a#b"] {
        assert_eq!(problem(&page, good), None, "{good}");
    }
}

#[test]
fn every_page_of_docs_is_short_and_in_the_index() {
    let index = Page::read("docs/README.md");
    for page in page::for_users() {
        let lines = page.text.lines().count();
        assert!(lines <= MAX_LINES, "{}: {lines} lines; at most {MAX_LINES}", page.path);
        let name = page.path.strip_prefix("docs/").filter(|name| *name != "README.md");
        let is_listed = name.is_none_or(|name| index.links.iter().any(|(_, target)| target == name));
        assert!(is_listed, "docs/README.md has no link to {}", page.path);
    }
}

#[test]
fn the_page_on_choosing_an_engine_has_a_link_to_each_engine() {
    let page = Page::read("docs/choosing-an-engine.md");
    let is_linked = |engine: &String| {
        let target = format!("../engines/{engine}/README.md");
        page.links.iter().any(|(_, link)| *link == target)
    };
    let missing: Vec<_> = engine_folders().into_iter().filter(|engine| !is_linked(engine)).collect();
    assert!(missing.is_empty(), "{} says nothing about {missing:?}", page.path);
}

#[test]
fn a_reader_runs_something_within_the_first_lines_of_the_readme() {
    let page = Page::read("README.md");
    let (line, _) = page.blocks.iter().flat_map(|block| block.commands()).next().unwrap();
    assert!(line <= FIRST_COMMAND_WITHIN, "the first command is in line {line}");
}

#[test]
fn the_picture_of_the_readme_is_what_the_program_draws() {
    let mut command = crate::support::command(env!("CARGO_BIN_EXE_orchestrate"));
    command.current_dir(root()).args(["report", "results/curated/embedded.jsonl", "--format", "svg"]);
    let drawn = command.output().unwrap().stdout;
    let picture = std::fs::read(root().join("docs/first-table.svg")).unwrap();
    assert!(
        drawn == picture,
        "run `orchestrate report results/curated/embedded.jsonl --format svg > docs/first-table.svg`"
    );
}
