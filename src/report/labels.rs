//! Long names of engines and models, paths most of all, and what stands for them in a table.

use super::document::Room;
use super::{Engine, Report};
use crate::text::{shorten_start, width};

/// However much room there is, a label in a sentence is no longer.
const LONGEST: usize = 40;

/// Long names and what stands for them: different for different names.
pub struct Labels(pub Vec<(String, String)>);

/// The name of an engine in a table: different for different rows of a case, together with the factors' columns.
pub fn name_of(engine: &Engine, room: Room) -> String {
    if room.factors { engine.name.clone() } else { engine.label.clone() }
}

impl Labels {
    /// As the room asks for them: a model is a name where it is in a column of its own.
    pub fn of(report: &Report, room: Room) -> Self {
        let longest = room.label;
        let engines = || {
            let rows = report.rows.iter().map(|row| &row.engine);
            rows.chain(report.failed.iter().map(|failed| &failed.engine))
        };
        let models = engines().filter(|_| room.factors).map(|engine| engine.model.clone());
        let name = |engine| name_of(engine, room);
        let mut labels: Vec<(String, String)> = Vec::new();
        for whole in engines().map(name).chain(models).filter(|name| width(name) > longest) {
            if labels.iter().any(|(other, _)| *other == whole) {
                continue;
            }
            let mut short = shorten_start(&whole, longest);
            let mut number = 2;
            while labels.iter().any(|(_, other)| *other == short) {
                let mark = format!(" #{number}");
                short = format!("{}{mark}", shorten_start(&whole, longest.saturating_sub(mark.len())));
                number += 1;
            }
            labels.push((whole, short));
        }
        Self(labels)
    }

    /// What stands for a name.
    pub fn short(&self, name: &str) -> String {
        let found = self.0.iter().find(|(whole, _)| whole == name);
        found.map_or_else(|| name.to_string(), |(_, short)| short.clone())
    }

    /// What stands for a label, which is a name and perhaps factors.
    pub fn label(&self, label: &str) -> String {
        shorten_start(&self.begun(label, ""), LONGEST)
    }

    /// A sentence that begins with a label, perhaps after a backtick.
    pub fn sentence(&self, text: &str) -> String {
        self.begun(text, text.strip_prefix('`').map_or("", |_| "`"))
    }

    /// A sentence that names labels somewhere, between backticks.
    pub fn within(&self, text: &str) -> String {
        let parts = text.split('`').enumerate();
        let each =
            parts.map(|(index, part)| if index % 2 == 1 { self.label(part) } else { part.to_string() });
        each.collect::<Vec<_>>().join("`")
    }

    /// With the longest name that it begins with made short.
    fn begun(&self, text: &str, mark: &str) -> String {
        let rest = &text[mark.len()..];
        let ends = |rest: &str| rest.is_empty() || rest.starts_with([' ', ':', '`']);
        let fitting = self.0.iter().filter_map(|(whole, short)| {
            rest.strip_prefix(whole.as_str()).filter(|rest| ends(rest)).map(|rest| (whole.len(), short, rest))
        });
        match fitting.max_by_key(|(length, ..)| *length) {
            Some((_, short, rest)) => format!("{mark}{short}{rest}"),
            None => text.to_string(),
        }
    }
}
