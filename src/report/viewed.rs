//! A report in a selected view: the document for people, and the content for programs.

use anyhow::Result;

use super::caption::caption;
use super::case_tables::{ResourceTable, WallTimeTable};
use super::compare::JudgementContent;
use super::distributions::DistributionTable;
use super::document::{Content, Document, Item, Layout, Layouts, Lines, List, Section, Table, TableId};
use super::grid::{self, Grid};
use super::labels::Labels;
use super::quality::QualityTable;
use super::run_report::{Report, View};
use super::serving_table::ServingTable;
use super::verdict_lines::verdicts;
use super::{compare, cost, entries, lines, overview, precision_table, settings_table, stress, targets};
use crate::analysis::compare::Judgement;

/// A report with the selection of its optional parts.
pub struct ReportContent<'a> {
    pub report: &'a Report,
    pub view: View,
    /// The comparison with a baseline, or the error that prevented it. Formats with one line for each result leave it out.
    pub judgement: Option<&'a Result<Judgement>>,
    /// The path of the record.
    pub saved: Option<&'a str>,
}

impl ReportContent<'_> {
    /// The notices, the caption and the table of results of the full report.
    fn full(&self, layouts: Layouts) -> Vec<Section> {
        let Self { report, view, .. } = self;
        let layout = layouts(TableId::Results);
        let grid = Grid::of(report, view, layout);
        let mut parts: Vec<Section> = report.notices.iter().cloned().map(Section::Notice).collect();
        parts.push(Section::Caption(caption(report, layout)));
        parts.extend(report.rows.is_empty().then_some(Section::NoTable("nothing was measured")));
        parts.extend((!grid.table.lines.is_empty()).then_some(Section::Table(grid.table)));
        parts
    }

    /// The failures, warnings, notes and legend of the full report.
    fn remarks(&self, layouts: Layouts) -> Section {
        let Self { report, view, .. } = self;
        let layout = layouts(TableId::Results);
        let (grid, labels) = (Grid::of(report, view, layout), Labels::of(report, layout));
        let failures = grid::failures(report, &labels).into_iter().map(Item::Failure);
        let warnings = report.warning_lines(|label| Some(labels.label(label))).into_iter();
        let warnings = warnings.map(|it| format!("warning: {it}"));
        let notes = report.notes.iter().map(|it| format!("note: {}", labels.shorten_first_label(it)));
        let legend = grid.legend(view, &labels);
        let explanations = notes.chain(legend).filter(|_| !view.quiet);
        let below = failures.chain(warnings.chain(explanations).map(Item::Plain)).collect();
        Section::List(List { items: below, ..List::default() })
    }
}

impl Content for ReportContent<'_> {
    fn document(&self, layouts: Layouts) -> Document {
        let Self { report, view, judgement, saved } = self;
        let (mut parts, last) = match view.full {
            true => (self.full(layouts), Some(self.remarks(layouts))),
            false => overview::sections(report, view, *saved),
        };
        parts.extend(targets::table(&report.targets).map(Section::Table));
        parts.extend(stress::list(report).map(Section::List));
        if view.full || view.pairs {
            let labels = Labels::of(report, layouts(TableId::Results));
            parts.extend(verdicts(report, &labels, view.pairs).map(Section::List));
        }
        if view.has(TableId::WallTime) {
            parts.extend(
                WallTimeTable::of(report).iter().flat_map(|it| it.sections(layouts(TableId::WallTime))),
            );
        }
        if view.has(TableId::Distribution) {
            let layout = layouts(TableId::Distribution);
            parts.extend(DistributionTable::of(report).iter().flat_map(|it| it.sections(layout)));
        }
        if view.has(TableId::Serving) {
            let why = || {
                vec![Section::NoTable(
                    "no table of overlapping requests: only `serve` and `offline` have them",
                )]
            };
            let sections = ServingTable::of(report).map(|it| it.sections(layouts(TableId::Serving)));
            parts.extend(sections.unwrap_or_else(why));
        }
        if view.has(TableId::Settings) {
            let sections = settings_table::sections(report, layouts(TableId::Settings));
            let why = || {
                let is_unverified = report.settings.iter().any(|it| !it.pair.is_verified);
                vec![Section::NoTable(match is_unverified {
                    true => {
                        "no table of settings: no engine has verified output, and only such an engine has a ratio"
                    }
                    false => {
                        "no table of settings: no engine has two results that can be compared and differ in one setting"
                    }
                })]
            };
            // Where nothing was measured, the report says so.
            let is_measured = report.rows.iter().any(|row| !row.summaries.is_empty());
            parts.extend(if sections.is_empty() && is_measured { why() } else { sections });
        }
        if view.has(TableId::Quality) {
            let table =
                QualityTable::of(report).map(|it| Section::Table(it.table(layouts(TableId::Quality))));
            let why = || Section::NoTable("no table of quality: outputs were not checked");
            parts.push(table.unwrap_or_else(why));
        }
        if view.has(TableId::Precision) {
            let table = precision_table::table(report, layouts(TableId::Precision)).map(Section::Table);
            let why = || Section::NoTable("no table of precisions: no engine was measured in several dtypes");
            parts.push(table.unwrap_or_else(why));
        }
        if let Some(price) = view.price_per_hour {
            let sections = cost::sections(report, price, view.pairs, layouts(TableId::Results));
            let why = || vec![Section::NoTable("no table of costs: no case has a rate of generated tokens")];
            parts.extend(if sections.is_empty() { why() } else { sections });
        }
        if view.has(TableId::Resources) {
            parts.extend(
                ResourceTable::of(report).iter().flat_map(|it| it.sections(layouts(TableId::Resources))),
            );
        }
        // The last part of the one screen names further commands, which `--quiet` leaves out.
        parts.extend(last.filter(|_| view.full || !view.quiet));
        let judgement = judgement.and_then(|it| it.as_ref().ok());
        let judgement =
            judgement.map(|judgement| JudgementContent { judgement, full: view.full }.document(layouts));
        let Document { parts: judgement_parts, summary } = judgement.unwrap_or_default();
        parts.extend(judgement_parts);
        Document { parts, summary }
    }

    fn table(&self, table: TableId, layout: Layout) -> Table {
        let Self { report, view, .. } = self;
        let table = match table {
            TableId::Results => Some(Grid::of(report, view, layout).table),
            TableId::WallTime => {
                WallTimeTable::of(report).filter(|_| view.has(TableId::WallTime)).map(|it| it.table(layout))
            }
            TableId::Distribution => DistributionTable::of(report)
                .filter(|_| view.has(TableId::Distribution))
                .map(|it| it.widest(layout)),
            TableId::Serving => {
                ServingTable::of(report).filter(|_| view.has(TableId::Serving)).map(|it| it.table(layout))
            }
            TableId::Settings => {
                settings_table::widest(report, layout).filter(|_| view.has(TableId::Settings))
            }
            TableId::Quality => {
                QualityTable::of(report).filter(|_| view.has(TableId::Quality)).map(|it| it.table(layout))
            }
            TableId::Precision => {
                precision_table::table(report, layout).filter(|_| view.has(TableId::Precision))
            }
            TableId::Resources => {
                ResourceTable::of(report).filter(|_| view.has(TableId::Resources)).map(|it| it.table(layout))
            }
        };
        table.unwrap_or_default()
    }

    fn lines(&self) -> Option<Lines> {
        Some(lines::lines(self.report, self.view.price_per_hour))
    }

    fn json(&self) -> Vec<u8> {
        let price = self.view.price_per_hour;
        match self.judgement {
            Some(judgement) => entries::with_judgement(self.report, price, &compare::judgement(judgement)),
            None => entries::json(self.report, price),
        }
    }

    /// A results table is wide, so it may use the whole terminal.
    fn width(&self, terminal_width: Option<usize>) -> usize {
        terminal_width.unwrap_or(100).max(40)
    }
}
