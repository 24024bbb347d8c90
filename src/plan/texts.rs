//! The texts of prompts: kinds of text, those of this project (`texts/`), and the prompts of a user's file. To add a kind, add an
//! entry to `kinds!`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use protocol::FailureKind;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::shell::{did_you_mean, file_problem, listed};

/// A value of the axis `prompts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Text {
    Kind(TextKind),
    /// It is read once and never freed, as the lists of a run file's scenarios.
    File(&'static PromptFile),
}

/// The tokens of a kind of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The held-out text of this project.
    HeldOut,
    Text(&'static str),
    /// Ordinary tokens of the vocabulary, at random.
    RandomTokens,
    /// The tokens that decode to no text, such as BOS and EOS.
    SpecialTokens,
}

/// The length of a prompt of a kind of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// That of the axis `prompt tokens`.
    OfAxis,
    Tokens(u32),
    /// The longest that leaves room for the new tokens in the model's context.
    ToContextEnd,
    /// One token more than the model's context.
    BeyondContext,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $word:literal, $source:expr, $length:expr;)+) => {
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum TextKind { $($(#[$doc])* #[serde(rename = $word)] $kind,)+ }

        impl TextKind {
            pub const ALL: &[Self] = &[$(Self::$kind,)+];

            /// The name on the command line, in labels and in records.
            pub fn word(self) -> &'static str {
                match self { $(Self::$kind => $word,)+ }
            }

            pub fn source(self) -> Source {
                match self { $(Self::$kind => $source,)+ }
            }

            pub fn length(self) -> Length {
                match self { $(Self::$kind => $length,)+ }
            }
        }
    };
}

kinds! {
    /// English prose.
    #[default]
    Natural = "natural", Source::HeldOut, Length::OfAxis;
    /// Seven languages in five scripts.
    Languages = "languages", Source::Text(include_str!("texts/languages.txt")), Length::OfAxis;
    /// Six programming languages.
    Code = "code", Source::Text(include_str!("texts/code.txt")), Length::OfAxis;
    /// A chat in plain text.
    Dialogue = "dialogue", Source::Text(include_str!("texts/dialogue.txt")), Length::OfAxis;
    /// Short lines, with lists, tables and indentation.
    Lines = "lines", Source::Text(include_str!("texts/lines.txt")), Length::OfAxis;
    /// One sentence, again and again.
    Repeated = "repeated", Source::Text("Again the same words follow each other. "), Length::OfAxis;
    /// Emoji, symbols, combining marks and many scripts.
    Unicode = "unicode", Source::Text(include_str!("texts/unicode.txt")), Length::OfAxis;
    Whitespace = "whitespace", Source::Text(" \n  \n\t\n    \n\n \t \n      "), Length::OfAxis;
    Random = "random", Source::RandomTokens, Length::OfAxis;
    Special = "special", Source::SpecialTokens, Length::OfAxis;
    /// One token.
    Short = "short", Source::HeldOut, Length::Tokens(1);
    Long = "long", Source::HeldOut, Length::ToContextEnd;
    Empty = "empty", Source::HeldOut, Length::Tokens(0);
    Beyond = "beyond", Source::HeldOut, Length::BeyondContext;
}

impl TextKind {
    pub fn is_natural(&self) -> bool {
        *self == Self::Natural
    }

    /// Whether only ids can state the prompt: as text, its tokens would be others.
    pub fn needs_ids(self) -> bool {
        matches!(self.source(), Source::RandomTokens | Source::SpecialTokens)
    }

    /// The kind of `failed` with which an engine must refuse the prompt, sent as ids or as text. A text of no characters may be
    /// BOS alone.
    pub fn refusal(self, as_ids: bool) -> Option<FailureKind> {
        match self {
            Self::Empty if as_ids => Some(FailureKind::BadRequest),
            Self::Beyond => Some(FailureKind::Context),
            _ => None,
        }
    }
}

impl Text {
    /// The kind of a drawn prompt. A file's prompts are not drawn.
    pub fn kind(self) -> TextKind {
        match self {
            Self::Kind(kind) => kind,
            Self::File(_) => TextKind::Natural,
        }
    }

    pub fn file(self) -> Option<&'static PromptFile> {
        match self {
            Self::Kind(_) => None,
            Self::File(file) => Some(file),
        }
    }

    /// The name in labels.
    pub fn name(self) -> String {
        match self {
            Self::Kind(kind) => kind.word().into(),
            Self::File(file) => file.name(),
        }
    }

    /// Whether the prompts have the length and the depth of the axes. A file's prompts have lengths of their own.
    pub fn has_length_of_axis(self) -> bool {
        matches!(self, Self::Kind(kind) if kind.length() == Length::OfAxis)
    }
}

impl Default for Text {
    fn default() -> Self {
        Self::Kind(TextKind::default())
    }
}

impl FromStr for Text {
    type Err = String;

    /// A kind, or the path of a file.
    fn from_str(word: &str) -> Result<Self, String> {
        if let Some(kind) = TextKind::ALL.iter().find(|kind| kind.word() == word) {
            return Ok(Self::Kind(*kind));
        }
        let words: Vec<&str> = TextKind::ALL.iter().map(|kind| kind.word()).collect();
        if !word.contains(['/', '.']) {
            let hint = did_you_mean(word, &words).unwrap_or_else(|| listed(&words));
            return Err(format!("no kind of text; a file needs a path, as in `./{word}`\nhint: {hint}"));
        }
        let file = PromptFile::read(Path::new(word)).map_err(|error| format!("{error:#}"))?;
        Ok(Self::File(Box::leak(Box::new(file))))
    }
}

/// The prompts of a user's file. A record does not store its texts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptFile {
    pub path: String,
    pub digest: String,
    #[serde(skip)]
    pub texts: Arc<[String]>,
}

/// The user's text to score. A record has its path and its SHA-256, and not the text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextFile {
    pub path: String,
    /// SHA-256, as `sha256sum` prints it.
    pub sha256: String,
    #[serde(skip)]
    pub text: Arc<str>,
}

impl FromStr for TextFile {
    type Err = String;

    fn from_str(path: &str) -> Result<Self, String> {
        Self::read(Path::new(path)).map_err(|error| format!("{error:#}"))
    }
}

impl TextFile {
    fn read(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        ensure!(!text.trim().is_empty(), "the file has no text");
        let (path, sha256) = (path.to_string_lossy().into(), format!("{:x}", Sha256::digest(&text)));
        Ok(Self { path, sha256, text: text.into() })
    }

    /// The name in labels.
    pub fn name(&self) -> String {
        name_in_labels(&self.path)
    }
}

/// A prompt that the user gave: every request has this text, or the next one of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OwnText {
    One(String),
    File(PromptFile),
}

impl From<&str> for OwnText {
    fn from(text: &str) -> Self {
        Self::One(text.into())
    }
}

impl OwnText {
    /// The texts. A record does not store those of a file.
    pub fn texts(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::File(file) => &file.texts,
        }
    }
}

impl fmt::Display for OwnText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(text) => f.write_str(text),
            Self::File(file) => write!(f, "{} ({})", file.path, file.digest),
        }
    }
}

const MAX_FILE_BYTES: u64 = 64 << 20;

impl PromptFile {
    /// Reads a file: each line is a prompt. A line of a `.jsonl` file is an object with `prompt` or `messages`.
    fn read(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        let is_json = path.extension().is_some_and(|it| it == "jsonl");
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let prompt = |(index, line): (usize, &str)| match is_json {
            true => prompt_of_json(line).with_context(|| format!("line {}", index + 1)),
            false => Ok(line.to_string()),
        };
        let texts: Vec<String> = lines.map(prompt).collect::<Result<_>>()?;
        ensure!(!texts.is_empty(), "the file has no prompts");
        Ok(Self { path: path.to_string_lossy().into(), digest: digest(&text), texts: texts.into() })
    }

    /// The name in labels: that of the file without its folder.
    pub fn name(&self) -> String {
        name_in_labels(&self.path)
    }
}

pub(super) fn read_text(path: &Path) -> Result<String> {
    let facts = std::fs::metadata(path)?;
    ensure!(facts.is_file() && facts.len() <= MAX_FILE_BYTES, "not a file, or larger than 64 MiB");
    std::fs::read_to_string(path).map_err(|error| anyhow!(file_problem(&error, path)))
}

/// The digest by which a record knows the content of a file.
pub(super) fn digest(text: &str) -> String {
    paths::digest(text.as_bytes())
}

/// The name of a file without its folder.
pub(super) fn name_in_labels(path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
    name.replace(char::is_whitespace, "-")
}

#[derive(Deserialize)]
struct Line {
    prompt: Option<String>,
    messages: Option<Vec<Message>>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: String,
}

/// The prompt of a JSON line. Messages become plain text with the roles as names, because engines get no chat template.
fn prompt_of_json(line: &str) -> Result<String> {
    let Line { prompt, messages } =
        serde_json::from_str(line).context("expected an object with `prompt` or `messages`")?;
    match (prompt, messages) {
        (Some(prompt), None) => Ok(prompt),
        (None, Some(messages)) if !messages.is_empty() => {
            let turns = messages.iter().map(|it| format!("{}: {}\n", it.role, it.content));
            Ok(turns.chain(["assistant:".to_string()]).collect())
        }
        _ => bail!("expected either `prompt` or `messages`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of each text by the tokenizer of the embedded model, which has few tokens of other scripts than Latin.
    #[test]
    fn the_texts_of_this_project_have_their_stated_lengths() {
        let folder = model_files::ModelFolder::open(model_files::resolve(None).unwrap()).unwrap();
        let tokenizer = folder.tokenizer().unwrap();
        let bos = tokenizer.encode("").unwrap().len();
        let tokens = |kind: &TextKind| match kind.source() {
            Source::Text(text) => Some((kind.word(), tokenizer.encode(text).unwrap().len() - bos)),
            _ => None,
        };
        let lengths: Vec<(&str, usize)> = TextKind::ALL.iter().filter_map(tokens).collect();
        let stated = [
            ("languages", 1698),
            ("code", 1136),
            ("dialogue", 687),
            ("lines", 225),
            ("repeated", 17),
            ("unicode", 678),
            ("whitespace", 23),
        ];
        assert_eq!(lengths, stated);
    }

    #[test]
    fn a_file_has_a_prompt_on_each_line_or_in_each_object() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            PromptFile::read(&path).map(|it| it.texts.to_vec()).map_err(|error| format!("{error:#}"))
        };
        assert_eq!(read("a.txt", "one\n\n{\"two\": 2}\n").unwrap(), ["one", "{\"two\": 2}"]);
        let chat = r#"{"messages": [{"role": "user", "content": "Hi"}], "id": 7}"#;
        let lines = format!("{{\"prompt\": \"a\\nb\"}}\n{chat}\n");
        assert_eq!(read("a.jsonl", &lines).unwrap(), ["a\nb", "user: Hi\nassistant:"]);
        assert_eq!(read("b.txt", "\n").unwrap_err(), "the file has no prompts");
        let neither = "line 2: expected either `prompt` or `messages`";
        assert_eq!(read("b.jsonl", "{\"prompt\": \"a\"}\n{}\n").unwrap_err(), neither);
    }

    #[test]
    fn a_word_that_is_no_kind_and_no_path_gets_a_hint() {
        let error = |word: &str| word.parse::<Text>().unwrap_err();
        let expected = "no kind of text; a file needs a path, as in `./randm`\nhint: did you mean `random`?";
        assert_eq!(error("randm"), expected);
        assert!(error("./absent.txt").contains("No such file"));
        assert_eq!("code".parse(), Ok(Text::Kind(TextKind::Code)));
    }
}
