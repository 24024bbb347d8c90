//! Files with the lengths of real requests. A request of a window takes the lengths of its prompt and of its output from one of them.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use stats::Random;

use super::texts;

/// The most tokens of a prompt, a depth or an output: far more than any model's context.
pub const MAX_TOKENS: u32 = 1 << 24;

/// A file, with the requests that were drawn from it. A copy is small, because the values are never freed, as those of a trace.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(from = "StoredFile", into = "StoredFile")]
pub struct LengthFile(&'static StoredFile);

/// A file in a record: a summary, and the drawn requests.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct StoredFile {
    path: String,
    digest: String,
    /// The number of requests in the file.
    requests: usize,
    prompt_tokens: Summary,
    new_tokens: Summary,
    /// The request of the file with the most tokens.
    largest: RequestLengths,
    /// The requests of a window.
    drawn: Vec<RequestLengths>,
    /// All requests of the file, from short to long; none after the draw.
    #[serde(skip)]
    all: Vec<RequestLengths>,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Summary {
    median: u32,
    longest: u32,
}

/// The tokens of a request. A record has a pair of numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, u32)", into = "(u32, u32)")]
pub struct RequestLengths {
    pub prompt_tokens: u32,
    pub new_tokens: u32,
}

impl LengthFile {
    pub fn read(path: &Path) -> Result<Self> {
        let text = texts::read_text(path)?;
        let is_json = path.extension().is_some_and(|it| it == "jsonl");
        let mut all = if is_json { parse_json(&text)? } else { parse(&text)? };
        all.sort_by_key(|it| (it.tokens(), it.prompt_tokens));
        let summary = |tokens: fn(&RequestLengths) -> u32| {
            let mut tokens: Vec<u32> = all.iter().map(tokens).collect();
            tokens.sort_unstable();
            Summary { median: tokens[tokens.len() / 2], longest: tokens[tokens.len() - 1] }
        };
        let stored = StoredFile {
            path: path.to_string_lossy().into(),
            digest: texts::digest(&text),
            requests: all.len(),
            prompt_tokens: summary(|it| it.prompt_tokens),
            new_tokens: summary(|it| it.new_tokens),
            largest: all[all.len() - 1],
            drawn: Vec::new(),
            all,
        };
        Ok(stored.into())
    }

    pub fn path(self) -> &'static str {
        &self.0.path
    }

    pub fn digest(self) -> &'static str {
        &self.0.digest
    }

    /// The name in labels.
    pub fn name(self) -> String {
        texts::name_in_labels(&self.0.path)
    }

    /// The number of requests in the file.
    pub fn requests(self) -> usize {
        self.0.requests
    }

    /// The most tokens of a prompt, and the most new tokens. They may be those of two requests.
    pub fn longest(self) -> RequestLengths {
        let StoredFile { prompt_tokens, new_tokens, .. } = self.0;
        RequestLengths { prompt_tokens: prompt_tokens.longest, new_tokens: new_tokens.longest }
    }

    /// The request with the most tokens.
    pub fn largest(self) -> RequestLengths {
        self.0.largest
    }

    /// The same file with the requests of a window. Each part of the file, from short to long requests, gives one of them, so that
    /// windows of few requests have short and long ones too. Their order is random.
    pub fn draw(self, requests: u32, seed: u64) -> Self {
        let (all, count) = (&self.0.all, requests as usize);
        if all.is_empty() {
            return self;
        }
        let mut random = Random::seeded(seed);
        let mut drawn: Vec<RequestLengths> = (0..count)
            .map(|number| {
                let (start, end) = (number * all.len() / count, (number + 1) * all.len() / count);
                // A window with more requests than the file has some of them twice.
                all[start + random.below((end - start).max(1))]
            })
            .collect();
        random.shuffle(&mut drawn);
        StoredFile { drawn, all: Vec::new(), ..self.0.clone() }.into()
    }

    /// The lengths of this request of a window. `None` before the draw.
    pub fn of_request(self, request: u32) -> Option<RequestLengths> {
        let drawn = &self.0.drawn;
        // A round that is not measured may have more requests.
        (!drawn.is_empty()).then(|| drawn[request as usize % drawn.len()])
    }
}

/// A file is known by its content: windows of different sizes have other requests of the same file.
impl PartialEq for LengthFile {
    fn eq(&self, other: &Self) -> bool {
        (self.path(), self.digest()) == (other.path(), other.digest())
    }
}

impl Eq for LengthFile {}

impl From<StoredFile> for LengthFile {
    fn from(stored: StoredFile) -> Self {
        Self(Box::leak(Box::new(stored)))
    }
}

impl From<LengthFile> for StoredFile {
    fn from(file: LengthFile) -> Self {
        file.0.clone()
    }
}

impl RequestLengths {
    pub fn tokens(&self) -> u64 {
        u64::from(self.prompt_tokens) + u64::from(self.new_tokens)
    }
}

impl From<(u32, u32)> for RequestLengths {
    fn from((prompt_tokens, new_tokens): (u32, u32)) -> Self {
        Self { prompt_tokens, new_tokens }
    }
}

impl From<RequestLengths> for (u32, u32) {
    fn from(it: RequestLengths) -> Self {
        (it.prompt_tokens, it.new_tokens)
    }
}

/// The names of the columns, as this project and published traces have them, without spaces and other signs.
const PROMPT_COLUMNS: [&str; 8] = [
    "prompt",
    "prompttokens",
    "contexttokens",
    "inputtokens",
    "inputlength",
    "requesttokens",
    "promptlen",
    "numprefilltokens",
];
const NEW_COLUMNS: [&str; 8] = [
    "new",
    "newtokens",
    "generatedtokens",
    "outputtokens",
    "outputlength",
    "responsetokens",
    "completiontokens",
    "numdecodetokens",
];
const EXPECTED: &str = "expected the tokens of the prompt and the new tokens, as in `120,64`";
const NAMES: &str = "expected columns `prompt_tokens` and `new_tokens` in the heading";

fn is_column(name: &str, known: &[&str]) -> bool {
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    known.iter().any(|it| name.eq_ignore_ascii_case(it))
}

/// A request in each line. The heading names the columns. Without a heading, the last two columns count, so a trace fits too.
fn parse(text: &str) -> Result<Vec<RequestLengths>> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#'));
    let mut lines = lines.peekable();
    let Some((first, number)) = lines.peek().copied() else { bail!("the file has no requests: {EXPECTED}") };
    let first = fields(first);
    let is_heading = !first.iter().any(|it| it.parse::<u64>().is_ok());
    let columns = match first.len() {
        _ if is_heading => {
            lines.next();
            let column = |known: &[&str]| first.iter().position(|it| is_column(it, known));
            let columns = column(&PROMPT_COLUMNS).zip(column(&NEW_COLUMNS));
            columns.context(NAMES).with_context(|| format!("line {number}"))?
        }
        2 => (0, 1),
        3 => (1, 2),
        _ => bail!("line {number}: {EXPECTED}"),
    };
    let request = |(line, number): (&str, u32)| -> Result<RequestLengths> {
        let fields = fields(line);
        let of_column = |column: usize| count(fields[column].parse().ok()?);
        let is_whole = fields.len() == first.len();
        let lengths = is_whole.then(|| of_column(columns.0).zip(of_column(columns.1))).flatten();
        Ok(lengths.with_context(|| format!("line {number}: {EXPECTED}"))?.into())
    };
    let requests: Vec<RequestLengths> = lines.map(request).collect::<Result<_>>()?;
    ensure!(!requests.is_empty(), "the file has no requests: {EXPECTED}");
    Ok(requests)
}

fn fields(line: &str) -> Vec<&str> {
    line.split(',').map(|field| field.trim().trim_matches('"')).collect()
}

/// An object in each line, with the names of the columns as keys.
fn parse_json(text: &str) -> Result<Vec<RequestLengths>> {
    const EXPECTED: &str = r#"expected an object as in `{"prompt_tokens": 120, "new_tokens": 64}`"#;
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let request = |(line, number): (&str, u32)| -> Result<RequestLengths> {
        let object: Map<String, Value> = serde_json::from_str(line).unwrap_or_default();
        let of_key = |known: &[&str]| {
            let (_, value) = object.iter().find(|(key, _)| is_column(key, known))?;
            count(value.as_u64()?)
        };
        let lengths = of_key(&PROMPT_COLUMNS).zip(of_key(&NEW_COLUMNS));
        Ok(lengths.with_context(|| format!("line {number}: {EXPECTED}"))?.into())
    };
    let requests: Vec<RequestLengths> = lines.map(request).collect::<Result<_>>()?;
    ensure!(!requests.is_empty(), "the file has no requests: {EXPECTED}");
    Ok(requests)
}

/// A number of tokens that a request may have.
fn count(number: u64) -> Option<u32> {
    u32::try_from(number).ok().filter(|it| (1..=MAX_TOKENS).contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(requests: Vec<RequestLengths>) -> Vec<(u32, u32)> {
        requests.into_iter().map(Into::into).collect()
    }

    fn file(text: &str) -> LengthFile {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.csv");
        std::fs::write(&path, text).unwrap();
        LengthFile::read(&path).unwrap()
    }

    #[test]
    fn the_columns_are_found_by_their_names_or_are_the_last_two() {
        let read = |text: &str| pairs(parse(text).unwrap());
        assert_eq!(read("prompt_tokens,new_tokens\n120,64\n\n# a comment\n7, 1\n"), [(120, 64), (7, 1)]);
        assert_eq!(
            read("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n"),
            [(374, 44)]
        );
        let other_order = "Timestamp,Response tokens,Request tokens,Model\n5,18,472,ChatGPT\n";
        assert_eq!(read(other_order), [(472, 18)]);
        assert_eq!(read("\"input_tokens\",\"output_tokens\"\n\"3\",\"4\"\n"), [(3, 4)]);
        assert_eq!((read("120,64\n"), read("0.25,120,64\n")), (vec![(120, 64)], vec![(120, 64)]));
        let objects = "{\"input_length\": 6758, \"output_length\": 500, \"hash_ids\": [0, 1]}\n";
        assert_eq!(pairs(parse_json(objects).unwrap()), [(6758, 500)]);
    }

    #[test]
    fn a_bad_file_is_refused_with_its_line() {
        let reason = |text: &str| format!("{:#}", parse(text).unwrap_err());
        for bad in ["1", "1,x", "1,0", "-1,1", "1.5,1", "1,1,1", "1,16777217"] {
            let text = format!("prompt_tokens,new_tokens\n1,1\n{bad}\n");
            assert_eq!(reason(&text), format!("line 3: {EXPECTED}"), "{bad}");
        }
        assert_eq!(reason("5\n"), format!("line 1: {EXPECTED}"));
        assert_eq!(reason("a,b\n1,1\n"), format!("line 1: {NAMES}"));
        for empty in ["", "# a comment\n", "prompt,new\n"] {
            assert_eq!(reason(empty), format!("the file has no requests: {EXPECTED}"));
        }
        let json = format!("{:#}", parse_json("{\"prompt\": 1, \"new\": 1}\n{\"prompt\": 1}\n").unwrap_err());
        assert!(json.starts_with("line 2: expected an object"), "{json}");
    }

    #[test]
    fn requests_keep_their_pairs_and_each_part_of_the_file_gives_one() {
        // The requests of the file, from short to long, have 3, 6, ... 300 tokens.
        let lines: Vec<String> = (1..=100).rev().map(|it| format!("{},{it}", 2 * it)).collect();
        let file = file(&lines.join("\n"));
        let drawn = |requests, seed| -> Vec<RequestLengths> {
            let drawn = file.draw(requests, seed);
            (0..requests).map(|it| drawn.of_request(it).unwrap()).collect()
        };
        let mut ten = drawn(10, 1);
        assert_eq!((&ten, ten == drawn(10, 2)), (&drawn(10, 1), false));
        assert!(!ten.is_sorted_by_key(|it| it.new_tokens), "{ten:?}");
        ten.sort_by_key(|it| it.new_tokens);
        for (number, it) in (0..).zip(&ten) {
            assert_eq!(it.prompt_tokens, 2 * it.new_tokens);
            assert_eq!((it.new_tokens - 1) / 10, number, "{ten:?}");
        }
        let mut all = drawn(200, 1);
        all.sort_by_key(|it| it.new_tokens);
        assert!((0..200).all(|it| all[it].new_tokens as usize == it / 2 + 1), "{all:?}");
        // A round that is not measured may be longer.
        let few = file.draw(3, 1);
        assert_eq!((few.of_request(3), file.of_request(0)), (few.of_request(0), None));
    }

    #[test]
    fn a_record_has_the_summary_and_the_drawn_requests_and_not_the_others() {
        let file = file("prompt,new\n100,1\n2,90\n3,3\n");
        let [longest, largest] = [(100, 90), (100, 1)].map(RequestLengths::from);
        assert_eq!((file.longest(), file.largest()), (longest, largest));
        let drawn = file.draw(2, 0);
        let mut stored = serde_json::to_value(drawn).unwrap();
        let again: LengthFile = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!((again, again.of_request(1)), (file, drawn.of_request(1)));
        // A record draws nothing.
        assert_eq!(again.draw(5, 1).of_request(2), drawn.of_request(0));
        let fields = stored.as_object_mut().unwrap();
        assert!(fields.remove("path").is_some() && fields.remove("digest").is_some());
        assert_eq!(fields.remove("drawn").unwrap().as_array().unwrap().len(), 2);
        let expected = serde_json::json!({
            "requests": 3,
            "prompt_tokens": { "median": 3, "longest": 100 },
            "new_tokens": { "median": 3, "longest": 90 },
            "largest": [100, 1],
        });
        assert_eq!(stored, expected);
    }
}
