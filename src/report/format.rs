//! A way to render content. Each format is a file with such a constant, and `FORMATS` lists them.

use super::document::{Content, Lines};

/// A way to render any content.
#[derive(Debug)]
pub struct Format {
    /// The value of `--format`, and the extension of a file in this format.
    pub name: &'static str,
    pub about: &'static str,
    pub shape: Shape,
}

/// The shape of content that a format renders. Commands decide by this, never by a format's name.
#[derive(Debug, Clone, Copy)]
pub enum Shape {
    /// For people. The second argument is the width of the terminal in columns, where it is known.
    Document(fn(&dyn Content, Option<usize>) -> Vec<u8>),
    /// For spreadsheets. Some content has no lines, and a line has no layout for several comparisons.
    Lines(fn(&Lines) -> Vec<u8>),
    /// For programs: the complete content, from its JSON.
    Json(fn(Vec<u8>) -> Vec<u8>),
}

impl Format {
    /// `None` where this format needs lines and the content has none.
    pub fn render(&self, content: &dyn Content, reader: Option<usize>) -> Option<Vec<u8>> {
        match self.shape {
            Shape::Document(render) => Some(render(content, reader)),
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
