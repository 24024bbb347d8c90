//! What a format renders, in three shapes: a document for people, lines for a spreadsheet, JSON for programs. Whoever has
//! something to show makes these and knows no format; a format knows nothing of what it renders.

use serde::Serialize;

use super::Fault;

/// Something that can be shown in every format.
pub trait Content {
    /// Each of its tables that depends on how much room there is, in the room that the format chose for it.
    fn document(&self, rooms: &Rooms) -> Document;

    /// One of them, in some room; without columns where the content has no such table.
    fn table(&self, _: Sheet, _: Room) -> Table {
        Table::default()
    }

    /// `None` for what is no list of values: its command refuses formats that need lines.
    fn lines(&self) -> Option<Lines>;

    /// As `json_bytes` writes it. The names in it are stable: add, never rename.
    fn json(&self) -> Vec<u8>;

    /// How wide it is on a terminal, where `reader` has so many columns. Longer lines are hard to read.
    fn width(&self, reader: Option<usize>) -> usize {
        reader.unwrap_or(80).clamp(40, 120)
    }
}

/// A table that can be drawn in more room or less.
#[derive(Debug, Clone, Copy)]
pub enum Sheet {
    Figures,
    WallTime,
    Resources,
}

/// The room of each sheet. A format chooses it from `Content::table` before it asks for the document.
#[derive(Debug, Clone, Copy)]
pub struct Rooms {
    pub figures: Room,
    pub wall_time: Room,
    pub resources: Room,
}

impl Rooms {
    pub fn chosen(choose: impl Fn(Sheet) -> Room) -> Self {
        Self {
            figures: choose(Sheet::Figures),
            wall_time: choose(Sheet::WallTime),
            resources: choose(Sheet::Resources),
        }
    }
}

/// What a narrow terminal has no room for.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Where versions vary they are a column, else a line of the caption.
    pub versions: bool,
    /// A longer name is shortened, and stands whole under the table.
    pub label: usize,
    /// What the plan varied has columns of its own, else it is part of the engine's name.
    pub factors: bool,
    /// A longer case, version, device or dtype is shortened.
    pub word: usize,
    /// Blanks between two columns.
    pub gap: usize,
}

/// Parts in the order in which they are read.
#[derive(Debug, Default)]
pub struct Document {
    pub parts: Vec<Part>,
    /// The one line that says it all. Whoever reads a terminal looks at its end, whoever reads Markdown at its beginning.
    pub summary: Option<String>,
}

#[derive(Debug)]
pub enum Part {
    /// To be known before anything else.
    Notice(String),
    /// What was done, how and where.
    Caption(Vec<String>),
    /// Each with its label; one without belongs to the one before.
    Facts(Vec<(String, String)>),
    /// Introduces what follows.
    Heading(String),
    /// Stands in place of a table.
    NoTable(&'static str),
    Table(Table),
    List(List),
}

#[derive(Debug, Default)]
pub struct List {
    pub heading: Option<String>,
    pub items: Vec<Item>,
}

#[derive(Debug)]
pub enum Item {
    /// Of several of one kind.
    Listed(String),
    Plain(String),
    Explained(Explained),
}

/// What failed, whole, with what to do about it.
#[derive(Debug)]
pub struct Explained {
    pub names: Vec<String>,
    pub fault: Fault,
}

/// Columns, and lines that have a cell for each of them.
#[derive(Debug, Default)]
pub struct Table {
    /// Whose table it is, where there are several alike.
    pub title: Option<String>,
    pub columns: Vec<Column>,
    pub lines: Vec<Line>,
    /// What explains it, directly below.
    pub notes: Vec<String>,
    /// Blanks between two columns.
    pub gap: usize,
}

#[derive(Debug)]
pub struct Column {
    pub title: String,
    /// Columns of one group stand together under its title.
    pub group: Option<&'static str>,
    pub unit: &'static str,
    pub place: Place,
    /// Words stand at the left, numbers at the right.
    pub text: bool,
    pub long: Long,
}

/// The purpose of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Says which row it is: repeated where a wide table is broken up.
    Name,
    /// Says what is in effect in the row.
    Fact,
    Figure,
}

/// What becomes of a cell for which a terminal is too narrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Long {
    Whole,
    Shortened,
    /// Only in a last column.
    Wrapped,
}

#[derive(Debug, Default)]
pub struct Line {
    /// One for each column; those of figures are empty where `fault` stands in their place.
    pub cells: Vec<String>,
    pub fault: Option<String>,
    /// A configuration that failed as a whole: its fault covers everything right of the name.
    pub whole: bool,
}

impl Column {
    pub fn named(title: &str) -> Self {
        let (title, place) = (title.to_string(), Place::Name);
        Self { title, group: None, unit: "", place, text: true, long: Long::Whole }
    }

    pub fn figure(title: &str, unit: &'static str) -> Self {
        Self { unit, place: Place::Figure, text: false, ..Self::named(title) }
    }
}

impl Line {
    pub fn of(cells: Vec<String>) -> Self {
        Self { cells, ..Self::default() }
    }
}

impl List {
    pub fn plain(items: impl IntoIterator<Item = String>) -> Self {
        Self { heading: None, items: items.into_iter().map(Item::Plain).collect() }
    }
}

/// Tidy lines: values with their columns. A line has nothing in a column that it does not name.
#[derive(Debug)]
pub struct Lines {
    pub columns: &'static [&'static str],
    pub lines: Vec<Vec<Named>>,
}

/// A value and its column. `column!` finds the column by its name.
pub type Named = (ColumnIndex, Field);

/// The index of a column in `Lines::columns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnIndex(pub(super) usize);

/// The index of that name in `COLUMNS` of the calling module. A misspelt name does not compile.
macro_rules! column {
    ($name:literal) => {
        const { $crate::report::document::column_index(&COLUMNS, $name) }
    };
}
pub(crate) use column;

/// Panics on a name that is not there; in a constant, the compiler reports that.
pub const fn column_index(columns: &[&str], name: &str) -> ColumnIndex {
    let mut index = 0;
    while index < columns.len() {
        if same(columns[index].as_bytes(), name.as_bytes()) {
            return ColumnIndex(index);
        }
        index += 1;
    }
    panic!("no column has this name")
}

/// As `==`, which constants cannot use.
const fn same(one: &[u8], other: &[u8]) -> bool {
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}

/// A value as a spreadsheet takes it; empty where there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Field(pub String);

/// Text that a spreadsheet would run as a formula is made text by a leading apostrophe.
impl From<&str> for Field {
    fn from(text: &str) -> Self {
        let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
        Self(if formula { format!("'{text}") } else { text.to_string() })
    }
}

impl From<&String> for Field {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

macro_rules! as_written {
    ($($value:ty)*) => {$(
        impl From<$value> for Field {
            fn from(value: $value) -> Self {
                Self(value.to_string())
            }
        }
    )*};
}

as_written!(f64 u64 usize u32 bool);

impl<T: Into<Field>> From<Option<T>> for Field {
    fn from(value: Option<T>) -> Self {
        value.map_or_else(Self::default, Into::into)
    }
}

/// A document for programs. With string keys and finite numbers only, which is all that is written, it cannot fail.
pub fn json_bytes(document: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(document).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}
