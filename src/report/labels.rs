//! Short forms of long names in a table. The names of engines and models are long when they are paths.

use super::document::Layout;
use super::rows::Engine;
use super::run_report::Report;
use crate::text::{shorten_start, width};

/// The largest width of a label within a sentence, in columns, for every layout.
const MAX_LABEL_WIDTH: usize = 40;

/// Long names with their short forms. Different names have different short forms.
pub struct Labels(pub Vec<(String, String)>);

/// The name of an engine in a table. Together with the columns of factors, it identifies the configuration.
pub fn name_of(engine: &Engine, layout: Layout) -> String {
    if layout.columns_of_varying_options { engine.name.clone() } else { engine.label.clone() }
}

impl Labels {
    /// The short forms for this layout. A model has a short form where models have a column.
    pub fn of(report: &Report, layout: Layout) -> Self {
        let longest = layout.max_label;
        let models =
            report.engines().filter(|_| layout.columns_of_varying_options).map(|engine| engine.model.clone());
        let name = |engine| name_of(engine, layout);
        let mut labels: Vec<(String, String)> = Vec::new();
        for full in report.engines().map(name).chain(models).filter(|name| width(name) > longest) {
            if labels.iter().any(|(other, _)| *other == full) {
                continue;
            }
            let numbered = |number: usize| {
                let suffix = format!(" #{number}");
                format!("{}{suffix}", shorten_start(&full, longest.saturating_sub(suffix.len())))
            };
            let mut forms = std::iter::once(shorten_start(&full, longest)).chain((2..).map(numbered));
            let unused = forms.find(|short| labels.iter().all(|(_, other)| other != short));
            labels.extend(unused.map(|short| (full.clone(), short)));
        }
        Self(labels)
    }

    pub fn short(&self, name: &str) -> String {
        let entry = self.0.iter().find(|(full, _)| full == name);
        entry.map_or_else(|| name.to_string(), |(_, short)| short.clone())
    }

    /// The short form of a label. A label is a name, and after it the options that vary.
    pub fn label(&self, label: &str) -> String {
        shorten_start(&self.replace_start(label, ""), MAX_LABEL_WIDTH)
    }

    /// Shortens the label at the beginning of a sentence, after an optional backtick.
    pub fn shorten_first_label(&self, text: &str) -> String {
        self.replace_start(text, text.strip_prefix('`').map_or("", |_| "`"))
    }

    /// Shortens the labels between backticks anywhere in a sentence.
    pub fn shorten_quoted(&self, text: &str) -> String {
        let parts = text.split('`').enumerate();
        let shortened =
            parts.map(|(index, part)| if index % 2 == 1 { self.label(part) } else { part.to_string() });
        shortened.collect::<Vec<_>>().join("`")
    }

    /// Replaces the longest known name after `prefix` by its short form.
    fn replace_start(&self, text: &str, prefix: &str) -> String {
        let rest = &text[prefix.len()..];
        let ends_name = |rest: &str| rest.is_empty() || rest.starts_with([' ', ':', '`']);
        let fitting = self.0.iter().filter_map(|(full, short)| {
            rest.strip_prefix(full.as_str())
                .filter(|rest| ends_name(rest))
                .map(|rest| (full.len(), short, rest))
        });
        match fitting.max_by_key(|(length, ..)| *length) {
            Some((_, short, rest)) => format!("{prefix}{short}{rest}"),
            None => text.to_string(),
        }
    }
}
