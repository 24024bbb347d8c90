//! Floors as a table for people, 80 columns at most. Pure.

use crate::analysis::floors::{KEPT_FROM, Known};
use crate::analysis::metric::{self, Shown};
use crate::record::RunRecord;
use crate::text::{line, shorten_start, width, wrap};
use stats::Floor;

const COLUMNS: [&str; 6] = ["engine", "case", "metric", "paired", "between", "blocks"];
const WIDTH: usize = 80;
/// What the other columns leave at their widest.
const LONGEST_ENGINE: usize = 26;

/// `kept`: where; empty if nowhere.
pub fn table(record: &RunRecord, floors: &[Known], kept: Option<&str>) -> String {
    let mut lines = vec!["the smallest change that can be seen here:".to_string(), String::new()];
    let rows = rows(record, floors);
    if rows.is_empty() {
        return "nothing was measured beside itself, so nothing is known of the noise here\n".into();
    }
    let widths: Vec<usize> = (0..COLUMNS.len())
        .map(|column| {
            rows.iter().map(|row| width(&row[column])).chain([COLUMNS[column].len()]).max().unwrap_or(0)
        })
        .collect();
    lines.push(written(&COLUMNS.map(String::from), &widths));
    let mut before: Option<&[String; 6]> = None;
    for row in &rows {
        let mut row_shown = row.clone();
        // What a row repeats of the one above it is not said again.
        if let Some(before) = before.filter(|before| before[0] == row[0]) {
            row_shown[0].clear();
            if before[1] == row[1] {
                row_shown[1].clear();
            }
        }
        before = Some(row);
        lines.push(written(&row_shown, &widths));
    }
    lines.push(String::new());
    for note in notes(floors, kept) {
        lines.extend(wrap(&note, WIDTH, "  "));
    }
    lines.join("\n") + "\n"
}

fn rows(record: &RunRecord, floors: &[Known]) -> Vec<[String; 6]> {
    let plan = &record.header.plan;
    let mut rows = Vec::new();
    for known in floors {
        let key = &known.key;
        let case = plan.cases.iter().find(|case| case.workload.label == key.workload);
        let headline = case.and_then(|case| metric::headline(plan, &case.workload));
        let Some(metric) = metric::named(&key.metric) else { continue };
        if metric.shown == Shown::AsHeadline && headline.is_none_or(|it| it.name != metric.name) {
            continue;
        }
        let label = plan.configurations.get(known.configuration).map_or(&key.engine, |it| &it.label);
        rows.push([
            shorten_start(&line(label), LONGEST_ENGINE),
            line(&key.workload),
            metric.title.to_string(),
            percent(known.paired),
            known.between.map_or_else(|| "n/a".into(), percent),
            known.paired.blocks().to_string(),
        ]);
    }
    rows
}

fn written(row: &[String; 6], widths: &[usize]) -> String {
    let mut line = String::new();
    for (column, cell) in row.iter().enumerate() {
        let blank = " ".repeat(widths[column].saturating_sub(width(cell)));
        // Numbers end where numbers above them end.
        let cell = if column < 3 { format!("{cell}{blank}") } else { format!("{blank}{cell}") };
        line.push_str(if column == 0 { "" } else { "  " });
        line.push_str(&cell);
    }
    line.trim_end().to_string()
}

fn percent(floor: Floor) -> String {
    let percent = floor.log_ratio().exp_m1() * 100.0;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

fn notes(floors: &[Known], kept: Option<&str>) -> Vec<String> {
    let mut notes = vec![
        "paired: what an engine and its twin differed by in one block (95th percentile); a difference between engines \
         of one run must exceed it, and 2 %"
            .to_string(),
        "between: what two blocks of one engine, minutes apart, differ by in all but 5 of 100 cases; at least so much lies \
         between two runs"
            .to_string(),
    ];
    let fewest = floors.iter().map(|it| it.paired).min_by_key(|floor| floor.blocks());
    if let Some(blocks) = fewest.filter(|floor| !floor.is_well_known()).map(|floor| floor.blocks()) {
        notes.push(format!(
            "of {blocks} block{} a 95th percentile is little more than the largest value; 20 make it firm",
            if blocks == 1 { "" } else { "s" }
        ));
    }
    match kept {
        Some("") => notes.push(format!("not kept for other runs: that needs {KEPT_FROM} blocks")),
        Some(place) => notes.push(format!("kept in `{place}`, and used by every later run on this machine")),
        None => {}
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::compare::specimen;
    use crate::analysis::floors;

    fn shown(engines: &[&str], blocks: u32, kept: Option<&str>) -> String {
        let asked = specimen::asked(engines, &["default"]);
        let mut record = specimen::planned(&asked);
        record.header.plan = floors::plan_of(&asked);
        for block in 0..blocks {
            for configuration in 0..record.header.plan.configurations.len() {
                let launch = specimen::launch(&mut record, configuration, block, "x");
                for case in record.header.plan.cases_of(configuration) {
                    let ms = 2.0 + f64::from(block % 5) * 0.1 * configuration as f64;
                    specimen::answer(&mut record, launch, case, 0, ms);
                }
            }
        }
        table(&record, &floors::floors_of(&record), kept)
    }

    #[test]
    fn the_table_fits_eighty_columns_whatever_engines_are_called() {
        let shown = shown(
            &["calm", "an-engine-with-a-long-name:and-a-long-preset\u{1b}[2J"],
            20,
            Some("/data/x.json"),
        );
        for line in shown.lines() {
            assert!(width(line) <= 80 && !line.contains('\u{1b}'), "{line:?}");
        }
        assert!(shown.lines().nth(2).unwrap().starts_with("engine"), "{shown}");
        let decode = shown.lines().find(|line| line.contains("decode") && line.contains("20")).unwrap();
        assert!(decode.contains(" %"), "{decode}");
        assert!(shown.contains("kept in `/data/x.json`") && !shown.contains("20 make it firm"), "{shown}");
        // An engine is named once.
        assert_eq!(shown.matches("calm").count(), 1, "{shown}");
    }

    #[test]
    fn few_blocks_are_said_to_be_few() {
        let shown = shown(&["a"], 1, Some(""));
        assert!(
            shown.contains("of 1 block a 95th percentile") && shown.contains("needs 5 blocks"),
            "{shown}"
        );
        assert!(shown.contains("n/a"), "{shown}");
    }

    #[test]
    fn nothing_measured_is_said() {
        assert!(shown(&["a"], 0, None).contains("nothing was measured"));
    }
}
