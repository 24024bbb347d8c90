//! Content in three shapes: a document for people, lines for a spreadsheet, JSON for programs. A format renders one of
//! them. Content does not know the format, and a format does not know the content.

use super::headings::{self, Heading};
use super::rows::FailureSummary;

/// Content that formats can show. Formats that need lines cannot show content without lines.
pub trait Content {
    /// The document, with each table in the layout that the format chose for it.
    fn document(&self, layouts: Layouts) -> Document;

    /// The table in this layout. It has no columns where the content has no such table.
    fn table(&self, _: TableId, _: Layout) -> Table {
        Table::default()
    }

    /// `None` where the content is not a list of values. Its command then refuses formats that need lines.
    fn lines(&self) -> Option<Lines>;

    /// The JSON, from `json_bytes`. New names may be added; a changed name raises `REPORT_VERSION`.
    fn json(&self) -> Vec<u8>;

    /// The width of the lines, in columns, on a terminal with `terminal_width` columns. At most 120: longer lines are hard to
    /// read.
    fn width(&self, terminal_width: Option<usize>) -> usize {
        terminal_width.unwrap_or(80).clamp(40, 120)
    }
}

#[derive(Debug)]
pub struct Format {
    /// The value of `--format`, and the extension of a file in this format.
    pub name: &'static str,
    pub about: &'static str,
    pub shape: Shape,
}

/// The shape of content that a format renders.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// For people.
    Document(fn(&dyn Content, Screen) -> Vec<u8>),
    /// For spreadsheets. Some content has no lines.
    Lines(fn(&Lines) -> Vec<u8>),
    /// For programs: the complete content, from its JSON.
    Json(fn(Vec<u8>) -> Vec<u8>),
}

/// The properties of the reader's terminal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Screen {
    /// The width in columns, where it is known.
    pub width: Option<usize>,
    pub has_colour: bool,
    /// The command that starts this program there, if it is not its name.
    pub program: Option<&'static str>,
}

impl Format {
    /// `None` where this format needs lines and the content has none.
    pub fn render(&self, content: &dyn Content, screen: Screen) -> Option<Vec<u8>> {
        match self.shape {
            Shape::Document(render) => Some(render(content, screen)),
            Shape::Lines(render) => content.lines().map(|lines| render(&lines)),
            Shape::Json(render) => Some(render(content.json())),
        }
    }

    pub fn is_for_people(&self) -> bool {
        matches!(self.shape, Shape::Document(_))
    }

    pub fn has_lines(&self) -> bool {
        matches!(self.shape, Shape::Lines(_))
    }
}

/// A table whose layout depends on the format and the width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableId {
    Results,
    WallTime,
    Distribution,
    Serving,
    Settings,
    Quality,
    Precision,
    Resources,
}

/// The layout that the format chose for each table.
pub type Layouts<'a> = &'a dyn Fn(TableId) -> Layout;

/// The layout of a table for a terminal's width. Widths are in columns of the terminal.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Whether varying versions are a column; otherwise they are a line of the caption.
    pub version_column: bool,
    /// The largest width of a name. A longer name is shortened, and its full text is below the table.
    pub max_label: usize,
    /// Whether the options that vary have columns of their own; otherwise they are part of the engine's name.
    pub columns_of_varying_options: bool,
    /// The largest width of a case, version, device or dtype. A longer text is shortened.
    pub max_word: usize,
    /// The number of spaces between columns.
    pub gap: usize,
}

/// Parts in the order in which they are printed.
#[derive(Debug, Default)]
pub struct Document {
    pub parts: Vec<Section>,
    /// The one-line summary. A terminal shows it last, Markdown shows it first.
    pub summary: Option<String>,
}

#[derive(Debug)]
pub enum Section {
    /// A warning before anything else.
    Notice(String),
    /// The description of the run: engines, number of requests, machine.
    Caption(Vec<String>),
    /// Facts with their labels. An entry without a label continues the previous entry.
    Facts(Vec<(String, String)>),
    /// A heading for the next part.
    Heading(String),
    /// The text in place of a table.
    NoTable(&'static str),
    Table(Table),
    List(List),
}

#[derive(Debug, Default)]
pub struct List {
    pub heading: Option<String>,
    pub items: Vec<Item>,
    /// On a narrow terminal, the list directly follows a table, because one screen has few lines.
    pub is_close: bool,
}

#[derive(Debug)]
pub enum Item {
    /// An entry of a list, with a list mark.
    Listed(String),
    Plain(String),
    Failure(ExplainedFailure),
}

#[derive(Debug)]
pub struct ExplainedFailure {
    /// The rows that failed in this way.
    pub names: Vec<String>,
    pub failure: FailureSummary,
}

/// Columns, and lines with a cell for each column.
#[derive(Debug, Default)]
pub struct Table {
    /// The configuration that the table is about, where there are several tables.
    pub title: Option<String>,
    pub columns: Vec<Column>,
    pub lines: Vec<Line>,
    /// The explanations directly below the table.
    pub notes: Vec<String>,
    pub gap: usize,
}

#[derive(Debug)]
pub struct Column {
    /// A line break divides a title into two lines.
    pub title: String,
    /// The title above several columns.
    pub group: Option<&'static str>,
    pub unit: &'static str,
    pub kind: ColumnKind,
    /// Text is aligned left, numbers are aligned right.
    pub is_text: bool,
    pub overflow: Overflow,
    pub keep: Keep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// Identifies the row. A wide table that is split repeats it.
    Name,
    /// A fact about the row, such as a version.
    Fact,
    Value,
}

/// Whether a narrow terminal leaves out a column. Columns with a greater value of this type are left out first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keep {
    /// Never left out.
    #[default]
    Always,
    /// Left out with a note. A lower number stays longer.
    Standard(u8),
    /// Shown only on terminals above 100 columns, and left out without a note.
    Extra(u8),
    /// Left out before a cell of another column is wrapped; with a note below 100 columns.
    Spare,
}

/// The handling of a cell that is too wide for the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    Kept,
    Shortened,
    /// Broken into lines of the width that the previous columns leave. The widths of later columns do not count.
    Wrapped,
    /// In a table that is too wide, broken into lines of at most this many columns.
    InLines(usize),
}

#[derive(Debug, Default)]
pub struct Line {
    /// One for each column. The cells of values are empty where `failure` takes their place.
    pub cells: Vec<String>,
    pub failure: Option<String>,
    /// Whether the line is a configuration that failed as a whole. Its failure covers all columns to the right of the name.
    pub is_failed_configuration: bool,
}

/// The largest widths of an engine and a case in a table that is too wide, in columns.
const MAX_ENGINE_WIDTH: usize = 20;
const MAX_CASE_WIDTH: usize = 16;

impl Column {
    pub fn named(heading: impl Into<Heading>) -> Self {
        let (title, kind) = (heading.into().title.to_string(), ColumnKind::Name);
        Self {
            title,
            group: None,
            unit: "",
            kind,
            is_text: true,
            overflow: Overflow::Kept,
            keep: Keep::Always,
        }
    }

    /// Labels of engines. No label is shortened; in a table that is too wide, a long one has several lines.
    pub fn engines() -> Self {
        Self { overflow: Overflow::InLines(MAX_ENGINE_WIDTH), ..Self::named(headings::ENGINE) }
    }

    /// Labels of cases, as `engines`.
    pub fn cases() -> Self {
        Self { overflow: Overflow::InLines(MAX_CASE_WIDTH), ..Self::named(headings::CASE) }
    }

    pub fn fact(heading: impl Into<Heading>) -> Self {
        Self { kind: ColumnKind::Fact, ..Self::named(heading) }
    }

    pub fn value(heading: impl Into<Heading>, unit: &'static str) -> Self {
        Self { unit, kind: ColumnKind::Value, is_text: false, ..Self::named(heading) }
    }

    /// The column with another title, which has the heading as a part: `TTFT @512`.
    pub fn titled(self, title: String) -> Self {
        Self { title, ..self }
    }
}

impl Line {
    pub fn of(cells: Vec<String>) -> Self {
        Self { cells, ..Self::default() }
    }
}

impl List {
    pub fn plain(items: impl IntoIterator<Item = String>) -> Self {
        Self { items: items.into_iter().map(Item::Plain).collect(), ..Self::default() }
    }
}

/// Lines of values, each value with its column. A column without a value is empty in that line.
#[derive(Debug)]
pub struct Lines {
    pub columns: &'static [&'static str],
    pub lines: Vec<Vec<NamedField>>,
}

/// A value and its column. `column!` finds the column by its name.
pub type NamedField = (ColumnIndex, Field);

/// The index of a column in `Lines::columns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnIndex(pub(super) usize);

/// The index of this name in `COLUMNS` of the calling module. A misspelt name does not compile.
macro_rules! column {
    ($name:literal) => {
        const { $crate::report::document::column_index(&COLUMNS, $name) }
    };
}
pub(crate) use column;

/// The index of this name. Panics on an unknown name; in a constant the compiler reports that.
pub const fn column_index(columns: &[&str], name: &str) -> ColumnIndex {
    let mut index = 0;
    while index < columns.len() {
        if bytes_equal(columns[index].as_bytes(), name.as_bytes()) {
            return ColumnIndex(index);
        }
        index += 1;
    }
    panic!("no column has this name")
}

/// Compares bytes in a constant, where `==` on slices does not compile.
const fn bytes_equal(a: &[u8], b: &[u8]) -> bool {
    let mut index = 0;
    while index < a.len() && index < b.len() && a[index] == b[index] {
        index += 1;
    }
    index == a.len() && index == b.len()
}

/// A cell of a spreadsheet; empty without a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Field(pub String);

/// A leading apostrophe keeps a spreadsheet from running the text as a formula.
impl From<&str> for Field {
    fn from(text: &str) -> Self {
        let is_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
        Self(if is_formula { format!("'{text}") } else { text.to_string() })
    }
}

impl From<&String> for Field {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

macro_rules! field_from_display {
    ($($value:ty)*) => {$(
        impl From<$value> for Field {
            fn from(value: $value) -> Self {
                Self(value.to_string())
            }
        }
    )*};
}

field_from_display!(f64 u64 usize u32 bool);

impl<T: Into<Field>> From<Option<T>> for Field {
    fn from(value: Option<T>) -> Self {
        value.map_or_else(Self::default, Into::into)
    }
}
