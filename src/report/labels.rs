//! Long names of engines, paths most of all, and what stands for them in a table.

use super::Report;
use super::safe::{shorten_start, width};

/// Long labels and what stands for them: different for different labels.
pub struct Labels(pub Vec<(String, String)>);

impl Labels {
    pub fn of(report: &Report, longest: usize) -> Self {
        let rows = report.rows.iter().map(|row| &row.engine.label);
        let all = rows.chain(report.failed.iter().map(|failed| &failed.engine.label));
        let mut labels: Vec<(String, String)> = Vec::new();
        for label in all.filter(|label| width(label) > longest) {
            if labels.iter().any(|(whole, _)| whole == label) {
                continue;
            }
            let mut short = shorten_start(label, longest);
            let mut number = 2;
            while labels.iter().any(|(_, other)| *other == short) {
                short = format!("{} #{number}", shorten_start(label, longest - 4));
                number += 1;
            }
            labels.push((label.clone(), short));
        }
        Self(labels)
    }

    pub fn short(&self, label: &str) -> String {
        let found = self.0.iter().find(|(whole, _)| whole == label);
        found.map_or_else(|| label.to_string(), |(_, short)| short.clone())
    }
}
