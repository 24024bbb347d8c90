//! A page in Markdown: its blocks of code, its inline code, its links and the anchors of its headings.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use crate::support::tree::{text, unignored_files};

pub struct Page {
    pub path: String,
    pub text: String,
    pub blocks: Vec<Block>,
    /// Code inside sentences, tables and headings, with its line.
    pub inline: Vec<(usize, String)>,
    /// The targets of links and images, with their lines.
    pub links: Vec<(usize, String)>,
    /// The text of each heading.
    pub headings: Vec<String>,
}

/// A block of code, fenced or indented. The info string of a fence is a language and tags: `console full`.
pub struct Block {
    /// The line of the fence, or the first line of an indented block.
    pub line: usize,
    pub language: String,
    pub tags: Vec<String>,
    pub text: String,
}

impl Page {
    pub fn read(path: &str) -> Self {
        Self::parse(path, &text(path).unwrap())
    }

    pub fn parse(path: &str, text: &str) -> Self {
        let mut page = Self {
            path: path.into(),
            text: text.into(),
            blocks: Vec::new(),
            inline: Vec::new(),
            links: Vec::new(),
            headings: Vec::new(),
        };
        let (mut in_block, mut in_heading) = (false, false);
        for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = 1 + text[..range.start].matches('\n').count();
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    in_block = true;
                    page.blocks.push(Block::new(line, &kind));
                }
                Event::End(TagEnd::CodeBlock) => in_block = false,
                Event::Text(content) if in_block => page.blocks.last_mut().unwrap().text += &content,
                Event::Start(Tag::Heading { .. }) => {
                    in_heading = true;
                    page.headings.push(String::new());
                }
                Event::End(TagEnd::Heading(_)) => in_heading = false,
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    page.links.push((line, dest_url.into_string()));
                }
                Event::Text(content) if in_heading => *page.headings.last_mut().unwrap() += &content,
                Event::Code(content) => {
                    if in_heading {
                        *page.headings.last_mut().unwrap() += &content;
                    }
                    page.inline.push((line, content.into_string()));
                }
                _ => {}
            }
        }
        page
    }

    /// The anchors that GitHub gives to the headings.
    pub fn anchors(&self) -> BTreeSet<String> {
        let mut uses: BTreeMap<String, usize> = BTreeMap::new();
        let anchor = |heading: &String| {
            let anchor = anchor(heading);
            let earlier = uses.entry(anchor.clone()).or_default();
            *earlier += 1;
            if *earlier == 1 { anchor } else { format!("{anchor}-{}", *earlier - 1) }
        };
        self.headings.iter().map(anchor).collect()
    }
}

impl Block {
    fn new(line: usize, kind: &CodeBlockKind) -> Self {
        let info = match kind {
            CodeBlockKind::Fenced(info) => info.as_ref(),
            CodeBlockKind::Indented => "",
        };
        let mut words = info.split_whitespace().map(String::from);
        let language = words.next().unwrap_or_default();
        Self { line, language, tags: words.collect(), text: String::new() }
    }

    /// The commands, each with its line. A backslash joins two lines.
    pub fn commands(&self) -> Vec<(usize, String)> {
        let mut commands: Vec<(usize, String)> = Vec::new();
        let mut is_joined = false;
        for (index, line) in self.text.lines().enumerate() {
            let command = line.strip_suffix('\\').unwrap_or(line);
            match commands.last_mut() {
                Some((_, last)) if is_joined => *last += command,
                _ => commands.push((self.line + 1 + index, command.into())),
            }
            is_joined = line.ends_with('\\');
        }
        commands.retain(|(_, command)| !command.trim().is_empty() && !command.trim().starts_with('#'));
        commands
    }
}

/// GitHub's anchor of a heading: in lower case, without punctuation, with hyphens for spaces.
fn anchor(heading: &str) -> String {
    let kept =
        heading.trim().to_lowercase().chars().map(|it| if it == ' ' { '-' } else { it }).collect::<String>();
    kept.chars().filter(|it| it.is_alphanumeric() || "-_".contains(*it)).collect()
}

/// All Markdown files of the tree, except ignored ones.
pub fn all() -> Vec<Page> {
    unignored_files().iter().filter(|path| path.ends_with(".md")).map(|path| Page::read(path)).collect()
}

/// The pages for users: README.md and the folder `docs`.
pub fn for_users() -> Vec<Page> {
    let is_for_users = |page: &Page| page.path == "README.md" || page.path.starts_with("docs/");
    let pages: Vec<_> = all().into_iter().filter(is_for_users).collect();
    assert!(pages.len() > 5, "too few pages in README.md and docs");
    pages
}

#[test]
fn a_heading_has_the_anchor_that_github_gives_it() {
    let headings = "# Exit codes\n## `x ref`: a ratio, 2 %\n## Exit codes\n## The `--quick_run` of *one*\n";
    let anchors = Page::parse("", headings).anchors();
    let expected = ["exit-codes", "exit-codes-1", "the---quick_run-of-one", "x-ref-a-ratio-2-"];
    assert_eq!(anchors.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_page_has_its_blocks_with_language_tags_and_joined_commands() {
    let text = "A `b` [c](d.md#e).\n\n```console full gpu\n# note\none \\\n  --two\n\nthree\n```\n";
    let page = Page::parse("", text);
    assert_eq!((page.inline, page.links), (vec![(1, "b".into())], vec![(1, "d.md#e".into())]));
    let block = &page.blocks[0];
    assert_eq!(
        (block.line, &*block.language, &block.tags[..]),
        (3, "console", &["full".into(), "gpu".into()][..])
    );
    assert_eq!(block.commands(), [(5, "one   --two".into()), (8, "three".into())]);
}
