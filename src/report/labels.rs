//! Short forms of long names in a table. The names of engines and models are long when they are paths.

use super::document::Layout;
use super::rows::Engine;
use super::run_report::Report;
use crate::text::{shorten_start, width};

/// The longest label within a sentence, in any layout.
const LONGEST: usize = 40;

/// Long names with their short forms. Different names have different short forms.
pub struct Labels(pub Vec<(String, String)>);

/// The name of an engine in a table. Together with the columns of factors it identifies a row of a case.
pub fn name_of(engine: &Engine, layout: Layout) -> String {
    if layout.factors { engine.name.clone() } else { engine.label.clone() }
}

impl Labels {
    /// The short forms for this layout. A model needs one where it has a column of its own.
    pub fn of(report: &Report, layout: Layout) -> Self {
        let longest = layout.label;
        let models = report.engines().filter(|_| layout.factors).map(|engine| engine.model.clone());
        let name = |engine| name_of(engine, layout);
        let mut labels: Vec<(String, String)> = Vec::new();
        for full in report.engines().map(name).chain(models).filter(|name| width(name) > longest) {
            if labels.iter().any(|(other, _)| *other == full) {
                continue;
            }
            let numbered = |number: usize| {
                let mark = format!(" #{number}");
                format!("{}{mark}", shorten_start(&full, longest.saturating_sub(mark.len())))
            };
            let mut forms = std::iter::once(shorten_start(&full, longest)).chain((2..).map(numbered));
            let free = forms.find(|short| labels.iter().all(|(_, other)| other != short));
            labels.extend(free.map(|short| (full.clone(), short)));
        }
        Self(labels)
    }

    pub fn short(&self, name: &str) -> String {
        let found = self.0.iter().find(|(full, _)| full == name);
        found.map_or_else(|| name.to_string(), |(_, short)| short.clone())
    }

    /// The short form of a label, which is a name and perhaps factors.
    pub fn label(&self, label: &str) -> String {
        shorten_start(&self.replaced(label, ""), LONGEST)
    }

    /// Shortens the label at the beginning of a sentence, after an optional backtick.
    pub fn start_of_sentence(&self, text: &str) -> String {
        self.replaced(text, text.strip_prefix('`').map_or("", |_| "`"))
    }

    /// Shortens the labels between backticks anywhere in a sentence.
    pub fn in_backticks(&self, text: &str) -> String {
        let parts = text.split('`').enumerate();
        let each =
            parts.map(|(index, part)| if index % 2 == 1 { self.label(part) } else { part.to_string() });
        each.collect::<Vec<_>>().join("`")
    }

    /// Replaces the longest known name at the beginning by its short form.
    fn replaced(&self, text: &str, mark: &str) -> String {
        let rest = &text[mark.len()..];
        let ends = |rest: &str| rest.is_empty() || rest.starts_with([' ', ':', '`']);
        let fitting = self.0.iter().filter_map(|(full, short)| {
            rest.strip_prefix(full.as_str()).filter(|rest| ends(rest)).map(|rest| (full.len(), short, rest))
        });
        match fitting.max_by_key(|(length, ..)| *length) {
            Some((_, short, rest)) => format!("{mark}{short}{rest}"),
            None => text.to_string(),
        }
    }
}
