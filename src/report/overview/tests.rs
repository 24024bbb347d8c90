use super::*;
use crate::analysis::agreement::specimen::{launches, samples, with_deviations};
use crate::plan::Selection;
use crate::record::specimen::{
    BEACON, InventedEngine, ORIGINAL, REED, add_unavailable, failure, measured, selection,
};
use crate::record::{FEWER_BLOCKS, RunRecord};
use crate::report::ranking::Compared;
use crate::report::tests::{assert_fits, decoding, words};
use crate::report::{FORMATS, ReportContent, Screen, View, shown};
use stats::StoppedBy;

/// Seven engines in the default suite: five verified ones, one that gives text, one that cannot run.
fn seven_engines() -> RunRecord {
    let names = ["patient-original", "beacon", "reed", "coal", "motor", "text-only", "absent"];
    let engines = [
        ORIGINAL,
        BEACON,
        REED,
        InventedEngine { name: "coal", dtype: "bf16", token_ms: 1.15, own_noise: 0.2, ..REED },
        InventedEngine { name: "motor", dtype: "bf16", token_ms: 31.0, ..ORIGINAL },
        InventedEngine { name: "text-only", token_ms: 0.01, ..BEACON },
    ];
    let mut record = with_deviations(selection(&names), &engines, &[0.0, 0.0005, 0.01, 0.002, 0.0, 0.0]);
    without_ids(&mut record, 5);
    add_unavailable(&mut record, 6, "no NVIDIA driver found", "orchestrate setup absent");
    let model = crate::plan::Sizes { parameters: 2_890_000, ..Default::default() };
    for configuration in &mut record.header.plan.configurations {
        configuration.model.architecture = Some("llama".into());
        configuration.model.sizes = Some(model);
    }
    record.elapsed_ns = Some(204_000_000_000);
    record
}

/// Makes an engine one that gives text and scores nothing.
fn without_ids(record: &mut RunRecord, configuration: usize) {
    record.scored.retain(|it| it.configuration != configuration);
    record.continued.retain(|it| it.configuration != configuration);
    for launch in launches(record, configuration) {
        launch.hello.as_mut().unwrap().capabilities.score = false;
    }
    for sample in samples(record, configuration) {
        sample.iteration.sequences.iter_mut().for_each(|it| it.output_ids = None);
    }
}

fn default_report(record: &RunRecord, format: &str, width: usize, view: View) -> String {
    let report = &Report::of(record);
    let content = ReportContent { report, view, judgement: None, saved: Some("results/a.jsonl") };
    shown(&content, format, Some(width))
}

fn at(record: &RunRecord, width: usize) -> String {
    default_report(record, "table", width, View::default())
}

/// The line that begins with this word, with single spaces.
fn line_of(text: &str, start: &str) -> String {
    let line = text.lines().find(|line| line.trim_start().starts_with(start));
    line.unwrap_or_else(|| panic!("no line `{start}`:\n{text}"))
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn seven_engines_in_the_default_suite_fit_one_screen() {
    let text = at(&seven_engines(), 100);
    assert_fits(&text, 100);
    assert!(text.lines().count() <= 40, "{text}");
    assert!(text == include_str!("tests/seven-engines-100.txt"), "{text}");
}

#[test]
fn a_narrow_terminal_leaves_out_columns_and_says_which() {
    let text = at(&seven_engines(), 80);
    assert_fits(&text, 80);
    assert!(text.lines().count() <= 40, "{text}");
    assert!(text.contains("left out at a width of 80: "), "{text}");
    // One screen has few lines, so its parts are closer together.
    assert!(!text.contains("\n\nin full: "), "{text}");
    // The interval of a ratio is left out before a cell is wrapped.
    assert!(text.contains("5.09x") && !text.contains("[5.07, 5.10]"), "{text}");
    assert!(text.contains("vs ref") && text.contains("decode"), "{text}");
}

#[test]
fn a_wide_terminal_has_more_columns() {
    let (usual, wide) = (at(&seven_engines(), 100), at(&seven_engines(), 160));
    assert_fits(&wide, 160);
    for word in ["p50", "p95", "version", "total"] {
        let has_column = |text: &str| text.lines().any(|line| line.split_whitespace().any(|it| it == word));
        assert!(has_column(&wide) && !has_column(&usual), "{word}:\n{usual}\n{wide}");
    }
    assert!(!wide.contains("left out"), "{wide}");
}

#[test]
fn on_a_terminal_of_sixty_columns_no_line_is_wider() {
    assert_fits(&at(&seven_engines(), 60), 60);
}

/// The record of `seven_engines` with this number of long warnings. It also has a warning about a claim.
fn with_long_warnings(count: usize) -> RunRecord {
    let mut record = seven_engines();
    let words =
        "the machine was busy in many rounds of this engine, so that they were measured again; ".repeat(5);
    let warning = |number| {
        let message = format!("{words} number {number}; hint: `orchestrate calibrate -e reed`");
        crate::record::Warning { configuration: None, message }
    };
    record.warnings.extend((1..=count).map(warning));
    record
}

#[test]
fn a_screen_of_seven_engines_has_at_most_two_warnings_of_two_lines_and_forty_lines() {
    let more = |count: &str| Some(format!("! {count}: `orchestrate report results/a.jsonl --full`"));
    let cases = [(1, None), (2, more("1 more warning")), (8, more("7 more warnings"))];
    for ((count, more), width) in cases.into_iter().flat_map(|it| [(it.clone(), 80), (it, 100)]) {
        let text = at(&with_long_warnings(count), width);
        assert_fits(&text, width);
        assert!(text.lines().count() <= 40, "{} lines\n{text}", text.lines().count());
        assert_eq!(text.lines().find(|line| line.contains("more warning")), more.as_deref(), "{text}");
        // A long warning loses whole clauses, and keeps its command.
        let cut = "so that they were measured again; hint: `orchestrate calibrate -e reed`";
        assert!(words(&text).contains(cut), "{text}");
    }
}

#[test]
fn the_last_line_explains_the_engine_with_the_most_severe_status() {
    let engines = [ORIGINAL, BEACON, REED];
    let names = decoding(&["patient-original", "beacon", "reed"]);
    let explained = |record: &RunRecord| at(record, 100).lines().last().unwrap_or_default().to_string();
    let wrong = with_deviations(names.clone(), &engines, &[0.0, 9.0, 0.01]);
    assert_eq!(explained(&wrong), "why: `orchestrate explain beacon results/a.jsonl`");
    let good = with_deviations(names, &engines, &[0.0, 0.0005, 0.01]);
    // Without a problem, it is the first row.
    assert_eq!(explained(&good), "why: `orchestrate explain reed results/a.jsonl`");
}

#[test]
fn an_interrupted_run_has_its_measured_blocks_and_the_planned_ones_in_the_title() {
    let mut record = seven_engines();
    record.header.plan.extent.blocks = Some(8);
    record.closed.clear();
    let text = at(&record, 100);
    assert!(text.lines().next().unwrap().contains(" · 5 of 8 blocks · "), "{text}");
}

#[test]
fn inconclusive_comparisons_are_counted_with_the_step_that_may_decide_them() {
    let noisy = InventedEngine { name: "reed", own_noise: 0.08, ..ORIGINAL };
    let selection = decoding(&["patient-original", "beacon", "reed"]);
    let mut record = with_deviations(selection, &[ORIGINAL, BEACON, noisy], &[0.0; 3]);
    record.header.command = vec!["orchestrate".into(), "--all".into()];
    let text = words(&at(&record, 100));
    assert!(text.contains("! inconclusive: 1 of 2 comparisons with the reference; "), "{text}");
    assert!(
        text.contains("hint: `orchestrate --all --blocks ") || text.contains("`orchestrate machine`"),
        "{text}"
    );
    // A calibration only adds a noise floor, and the highest counts.
    assert!(!text.contains("orchestrate calibrate"), "{text}");
}

#[test]
fn an_unverified_engine_never_leads() {
    let text = at(&seven_engines(), 100);
    let best: Vec<&str> = text.lines().take_while(|line| !line.starts_with("engine ")).collect();
    assert!(best.iter().all(|line| !line.contains("text-only")), "{text}");
    let rows: Vec<&str> = text.lines().map(|line| line.split_whitespace().next().unwrap_or("")).collect();
    let position = |name: &str| rows.iter().position(|row| *row == name).unwrap();
    assert!(
        position("text-only") > position("motor") && position("text-only") < position("absent"),
        "{text}"
    );
    let hint = "`text-only` UNVERIFIED: its tokens were not checked; hint: implement `score`\n";
    assert!(text.contains(hint), "{text}");
    // Colours make its row less prominent.
    let report = &Report::of(&seven_engines());
    let content = ReportContent { report, view: View::default(), judgement: None, saved: None };
    let screen = Screen { width: Some(100), has_colour: true, ..Screen::default() };
    let coloured = String::from_utf8(FORMATS[0].render(&content, screen).unwrap()).unwrap();
    let dim: Vec<&str> = coloured.lines().filter(|line| line.starts_with("\u{1b}[2mtext-only")).collect();
    assert_eq!(dim.len(), 1, "{coloured}");
    assert!(!dim[0].contains("\u{1b}[32m"), "{}", dim[0]);
    assert!(coloured.lines().any(|line| line.contains("\u{1b}[32m")), "{coloured}");
}

#[test]
fn wrong_output_is_named_first_and_has_no_ratio() {
    let engines = [ORIGINAL, BEACON, REED];
    let record =
        with_deviations(decoding(&["patient-original", "beacon", "reed"]), &engines, &[0.0, 0.0, 9.0]);
    let text = at(&record, 100);
    assert!(line_of(&text, "!").starts_with("! the output of `reed` is wrong: "), "{text}");
    assert!(line_of(&text, "reed").contains("WRONG") && !line_of(&text, "reed").contains('x'), "{text}");
    assert!(line_of(&text, "decode").starts_with("decode beacon (f32)"), "{text}");
}

#[test]
fn wrong_output_stands_below_an_engine_without_a_value() {
    let engines = [ORIGINAL, BEACON, REED];
    let selection = selection(&["patient-original", "beacon", "reed"]);
    let mut record = with_deviations(selection, &engines, &[0.0, 0.0, 9.0]);
    let cases = record.header.plan.cases.clone();
    let is_left_out = |case: usize| cases[case].configuration == 1 && cases[case].workload.label == "decode";
    record.samples.retain(|sample| !is_left_out(sample.case));
    let text = at(&record, 100);
    let table = text.rfind("engine").unwrap();
    let row =
        |name: &str| table + text[table..].find(&format!("\n{name}")).unwrap_or_else(|| panic!("{text}"));
    assert!(row("beacon") < row("reed") && line_of(&text[row("reed")..], "reed").contains("WRONG"), "{text}");
}

#[test]
fn without_output_checks_no_engine_has_a_rank() {
    let record = measured(&decoding(&["patient-original", "beacon"]), &[ORIGINAL, BEACON]);
    let text = at(&record, 100);
    assert!(text.contains("outputs are not checked, so no engine has a rank"), "{text}");
    assert!(!text.contains("against the next best"), "{text}");
    // A single engine needs no rank.
    let alone = at(&measured(&decoding(&["beacon"]), &[BEACON]), 100);
    assert!(alone.contains("! outputs are not checked; hint: leave out `--verifier none`"), "{alone}");
    assert!(!alone.contains("has a rank"), "{alone}");
}

#[test]
fn equal_warnings_of_several_engines_share_a_line() {
    let engines = ["patient-original", "beacon", "reed"];
    let mut record = measured(&decoding(&engines), &[ORIGINAL, BEACON, REED]);
    // Earlier versions named the time of each block.
    let earlier = |seconds: &str| {
        format!(
            "has fewer blocks than other engines, because each takes {seconds} s of the time budget; try `--budget 4m`"
        )
    };
    let messages = [earlier("3.1"), earlier("14.2"), "left processes behind".into()];
    for (index, message) in messages.into_iter().enumerate() {
        record.warnings.push(crate::record::Warning { configuration: Some(index), message });
    }
    let text = words(&at(&record, 100));
    let expected = "! patient-original, beacon: fewer blocks than other engines, because a block takes too long for the time \
                    budget; hint: `--budget 4m` ! reed: left processes behind";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_budget_that_is_too_short_for_verdicts_is_named_once() {
    let mut selection = decoding(&["patient-original", "beacon"]);
    selection.extent.blocks = Some(2);
    let mut record = with_deviations(selection, &[ORIGINAL, BEACON], &[0.0, 0.0]);
    record.warnings.push(crate::record::Warning { configuration: Some(1), message: FEWER_BLOCKS.into() });
    assert!(words(&at(&record, 100)).contains(FEWER_BLOCKS));
    let extent = &mut record.header.plan.extent;
    (extent.blocks, extent.budget_ns) = (None, Some(20_000_000_000));
    record.closed.iter_mut().for_each(|closed| closed.by = StoppedBy::Time);
    let text = words(&at(&record, 100));
    assert!(text.contains("--budget 20s is too short") && !text.contains(FEWER_BLOCKS), "{text}");
}

#[test]
fn a_ratio_of_too_few_blocks_has_the_command_that_gives_it_a_verdict() {
    let mut record = seven_engines();
    let is_late = |it: &&crate::record::Launch| it.configuration == 1 && it.block >= 2;
    let late: Vec<u32> = record.launches.iter().filter(is_late).map(|it| it.launch).collect();
    record.samples.retain(|sample| !late.contains(&sample.launch));
    record.header.command = ["/opt/o", "--all"].map(String::from).to_vec();
    let text = at(&record, 100);
    assert!(line_of(&text, "beacon").contains("x?"), "{text}");
    let note = "? no verdict: both engines are in only 2 blocks, and a verdict needs 5; hint: `orchestrate --all --blocks 5`";
    assert!(words(&text).contains(note), "{text}");
    // If no comparison has a verdict, a line above the table says why, and the note is short.
    let mut selection = decoding(&["patient-original", "beacon"]);
    selection.extent.blocks = Some(2);
    let text = words(&at(&with_deviations(selection, &[ORIGINAL, BEACON], &[0.0; 2]), 100));
    assert!(text.contains("! no verdicts: 2 blocks, verdicts need 5; hint: `--blocks 5`"), "{text}");
    assert!(text.contains("? no verdict: a line above the table says why"), "{text}");
}

#[test]
fn numbers_of_threads_of_one_engine_are_compared() {
    let selection = Selection { threads: vec![1, 2], ..decoding(&["patient-original"]) };
    let faster = InventedEngine { name: "patient-original 2 threads", token_ms: 11.0, ..ORIGINAL };
    let record = with_deviations(selection, &[faster, ORIGINAL], &[0.0, 0.0]);
    let text = at(&record, 100);
    assert!(line_of(&text, "decode").starts_with("decode patient-original 2 threads (f32)"), "{text}");
    assert!(line_of(&text, "patient-original 2 threads").ends_with("1.97x"), "{text}");
    assert!(line_of(&text, "patient-original 1 thread").ends_with("ref"), "{text}");
}

/// Without a reference, the lines of variants compare them. The table of the best engines has the best and the next best.
#[test]
fn a_comparison_of_two_variants_stands_once() {
    let mut selection = Selection { threads: vec![1, 2, 4], ..decoding(&["patient-original"]) };
    selection.reference = "another".into();
    let with_time = |name, token_ms| InventedEngine { name, token_ms, ..ORIGINAL };
    let engines = [
        with_time("patient-original 2 threads", 11.0),
        with_time("patient-original 4 threads", 6.0),
        ORIGINAL,
    ];
    let record = with_deviations(selection, &engines, &[0.0; 3]);
    let text = words(&at(&record, 160));
    // 4 threads against 2 are in the table of the best, 2 and 4 threads against 1 in the lines below.
    assert_eq!(text.matches("1.83x").count(), 1, "{text}");
    assert_eq!(text.matches("against `patient-original 1 thread`").count(), 2, "{text}");
    let two =
        Selection { threads: vec![1, 2], reference: "another".into(), ..decoding(&["patient-original"]) };
    let text = words(&at(&with_deviations(two, &engines, &[0.0; 2]), 160));
    assert_eq!(text.matches("1.97x").count(), 1, "{text}");
}

#[test]
fn a_value_that_is_not_available_has_its_reason_in_one_line() {
    let axes = crate::plan::axes::AxisValues { new_tokens: vec![1], ..Default::default() };
    let selection = Selection { axes, ..decoding(&["patient-original", "beacon"]) };
    let record = with_deviations(selection, &[ORIGINAL, BEACON], &[0.0, 0.0]);
    let why = "n/a: decode needs a second token that arrives after the first";
    let text = at(&record, 100);
    assert_eq!(text.matches(why).count(), 1, "{text}");
    let full = default_report(&record, "table", 100, View { full: true, ..View::default() });
    assert_eq!(full.matches(why).count(), 1, "{full}");
    assert!(!at(&seven_engines(), 100).contains("n/a: "), "every value is available");
}

#[test]
fn a_ratio_that_is_no_quotient_of_the_shown_values_is_marked() {
    let mut report = Report::of(&seven_engines());
    let row = report.rows.iter_mut().find(|row| row.engine.label == "beacon" && row.case.label == "decode");
    let summaries = &mut row.unwrap().summaries;
    summaries
        .iter_mut()
        .filter(|it| it.metric.name() == "decode_rate")
        .for_each(|it| it.summary.estimate *= 1.1);
    let content = ReportContent { report: &report, view: View::default(), judgement: None, saved: None };
    let text = shown(&content, "table", Some(100));
    assert!(line_of(&text, "beacon").ends_with('*') && !line_of(&text, "motor").ends_with('*'), "{text}");
    let legend = "* ratio of paired rounds, not of the two shown values, which are medians over all launches";
    assert!(words(&text).contains(legend), "{text}");
}

/// Shown values have three digits, so a quotient of them may differ a little from the ratio without a reason but rounding.
#[test]
fn only_a_ratio_that_rounding_cannot_explain_is_marked() {
    let report = Report::of(&seven_engines());
    let rows = &report.rows;
    let row =
        |label: &str| rows.iter().find(|it| it.engine.label == label && it.case.label == "decode").unwrap();
    let pair = report.verdicts.headline(row("beacon")).unwrap();
    let is_quotient = |factor: f64| {
        let mut beacon = row("beacon").clone();
        let mut decode = beacon.summaries.iter_mut().filter(|it| it.metric.name() == "decode_rate");
        decode.next().unwrap().summary.estimate *= factor;
        Compared::as_stored(pair).is_quotient(&beacon, row("patient-original"))
    };
    // The ratio is 11.0 or 11.2, with three digits: half a digit of it and of each value is less than 1.5 per cent.
    assert_eq!([0.985, 1.0, 1.015].map(is_quotient), [false, true, false]);
}

#[test]
fn a_heading_does_not_repeat_the_name_of_its_metric() {
    let titles = |scenario: &str, depth: &[u32], labels: &[&str]| -> Vec<String> {
        let scenarios = crate::plan::scenario::named(scenario).unwrap();
        let mut selection = Selection { scenarios, ..selection(&["patient-original"]) };
        selection.axes.depth = depth.to_vec();
        let report = Report::of(&measured(&selection, &[ORIGINAL]));
        let overview = Overview::of(&report);
        labels.iter().map(|label| overview.title(label)).collect()
    };
    let decode = titles("decode", &[0, 512], &["decode", "decode depth 512"]);
    assert_eq!(decode, ["decode", "decode\n@depth 512"]);
    let load = titles("load", &[], &["load", "load from disk"]);
    assert_eq!(load, ["cold start", "cold start\n@from disk"]);
}

#[test]
fn rows_are_sorted_by_the_column_that_the_user_names() {
    let first = |sort: &str| {
        let view = View { sort: Some(sort.into()), ..View::default() };
        let text = default_report(&seven_engines(), "table", 160, view);
        let rows = text.lines().skip_while(|line| !line.contains("version"));
        let row = rows.skip_while(|line| !line.starts_with('─')).nth(1).unwrap_or_default().to_string();
        (row.split_whitespace().next().unwrap_or_default().to_string(), text)
    };
    assert_eq!(first("decode").0, "coal");
    assert_eq!(first("prefill").0, "beacon");
    assert_eq!(first("ttft 128").0, "beacon");
    assert_eq!(first("peak_memory").0, "coal");
    assert_eq!(first("peak-mem").0, "coal");
    assert_eq!(first("engine").0, "absent");
    let (row, text) = first("depth");
    assert_eq!(row, "coal");
    assert!(text.contains("! --sort depth: the table has no such column"), "{text}");
}

#[test]
fn a_failure_of_one_workload_is_named_with_its_hint() {
    let mut record = seven_engines();
    let plan = &record.header.plan;
    let case = plan.cases.iter().position(|it| it.configuration == 1 && it.workload.label == "prefill");
    let mut died = failure(1, case, "exited", "sample 3", "killed by signal 9");
    died.hint = Some("dmesg | tail".into());
    record.failures.push(died);
    let text = at(&record, 100);
    assert!(
        text.contains("! `beacon` (prefill): exited at sample 3: killed by signal 9; hint: dmesg | tail"),
        "{text}"
    );
    assert!(line_of(&text, "beacon").contains("exited"), "{text}");
}

#[test]
fn every_format_for_people_has_the_same_table() {
    let record = seven_engines();
    let markdown = default_report(&record, "markdown", 100, View::default());
    assert!(markdown.contains("| engine | version | dtype | output |"), "{markdown}");
    let svg = default_report(&record, "svg", 100, View::default());
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    for text in [&markdown, &svg] {
        assert!(text.contains("text-only") && text.contains("UNVERIFIED"), "{text}");
        assert!(text.chars().all(|char| !('\u{2060}'..='\u{2069}').contains(&char)), "{text}");
    }
    let evil = InventedEngine { name: "<img src=x>&", ..BEACON };
    let record = measured(&decoding(&["patient-original", "<img src=x>&"]), &[ORIGINAL, evil]);
    let svg = default_report(&record, "svg", 100, View::default());
    assert!(svg.contains("&lt;img src=x&gt;&amp;") && !svg.contains("<img"), "{svg}");
}

#[test]
fn the_commands_for_a_record_with_a_long_path_can_be_pasted() {
    let report = &Report::of(&seven_engines());
    let saved = "results/of-a-folder-with-a-long-name/2026-01-02T03-04-05Z-12345.jsonl";
    let content = ReportContent { report, view: View::default(), judgement: None, saved: Some(saved) };
    let text = shown(&content, "table", Some(80));
    assert_fits(&text, 80);
    // A shell reads a line that ends with a backslash and the next line as one command.
    let as_one = text.replace(" \\\n  ", " ");
    let command = format!("`orchestrate report {saved} --full`");
    assert!(as_one.contains(&command), "{command}\n{text}");
}
