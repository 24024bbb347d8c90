//! Tests of every format, and of CSV and JSON for programs.

use super::*;
use crate::analysis::compare::judge;
use crate::record::{Failure, Warning};

#[test]
fn engine_text_cannot_control_the_terminal_or_leave_its_cell() {
    let separates = |format: &Format, char| char == '\n' || (format.has_lines() && char == '\t');
    for format in FORMATS {
        let text = rendered(&worst_record(), format.name, 100);
        let control = text.chars().find(|char| char.is_control() && !separates(format, *char));
        assert_eq!(control, None, "{}", format.name);
    }
    // No cell has a line break or another control character.
    let report = &Report::of(&worst_record());
    let lines = ReportContent { report, view: full(), judgement: None, saved: None }.lines().unwrap().lines;
    let cells: Vec<&str> = lines.iter().flatten().map(|(_, field)| field.0.as_str()).collect();
    let unsafe_cell = cells.iter().find(|cell| cell.chars().any(char::is_control));
    assert!(cells.len() > 500 && unsafe_cell.is_none(), "{unsafe_cell:?}");
    let markdown = rendered(&worst_record(), "markdown", 100);
    let separators = |line: &str| line.replace("\\|", "").matches('|').count();
    let rows: Vec<&str> = markdown.lines().filter(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 30 && rows.iter().all(|row| separators(row) == separators(rows[0])), "{markdown}");
}

#[test]
fn formats_for_programs_have_the_wall_time_and_its_parts_add_up() {
    let json = json(&default_suite_record());
    for case in json["cases"].as_array().unwrap() {
        let wall_time = &case["wall_time"];
        let parts = wall_time["parts_ns"].as_object().unwrap().values().filter_map(|ns| ns.as_u64());
        let unattributed = wall_time["unattributed_ns"].as_u64().unwrap();
        assert_eq!(parts.sum::<u64>() + unattributed, wall_time["total_ns"].as_u64().unwrap());
        assert_eq!(wall_time["parts_ns"]["compile"], serde_json::Value::Null);
        assert_eq!(wall_time["phases"][2]["name"], "weights");
    }
    let csv = rendered(&default_suite_record(), "csv", 80);
    let lines: Vec<Vec<String>> = csv.lines().map(fields).collect();
    let at = |name: &str| lines[0].iter().position(|field| field == name).unwrap();
    let is_in_account =
        |line: &&Vec<String>| line[at("metric")].starts_with("wall_time.") && line[at("case")] == "decode";
    let account: Vec<&Vec<String>> = lines.iter().filter(is_in_account).collect();
    // Two engines, each with seven parts, the remainder and the total.
    assert_eq!(account.len(), 2 * 9);
    let ns: Vec<u64> = account[..9].iter().map(|line| line[at("mean")].parse().unwrap_or(0)).collect();
    assert_eq!((ns[..8].iter().sum::<u64>(), account[8][at("metric")].as_str()), (ns[8], "wall_time.total"));
    assert_eq!((&*account[3][at("mean")], &*account[3][at("estimate")]), ("", ""), "no engine compiles");
}

#[test]
fn every_line_of_csv_has_every_field_and_every_failure_is_a_line() {
    for record in [worst_record(), default_suite_record()] {
        let text = rendered(&record, "csv", 100);
        let lines: Vec<Vec<String>> = text.lines().map(fields).collect();
        assert!(lines.len() > 50 && lines.iter().all(|line| line.len() == lines[0].len()));
        let report = Report::of(&record);
        let failures = report.rows.iter().filter(|row| row.failure.is_some()).count() + report.failed.len();
        let at = lines[0].iter().position(|name| name == "failure").unwrap();
        assert_eq!(lines[1..].iter().filter(|line| !line[at].is_empty()).count(), failures);
    }
}

/// The fields of a line of CSV, without their quotes.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for char in line.chars() {
        match char {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            _ => fields.last_mut().unwrap().push(char),
        }
    }
    fields
}

#[test]
fn json_has_every_summary_in_full() {
    let json = json(&default_suite_record());
    let decode = json_case(&json, "decode", "beacon");
    let gaps = decode["metrics"].as_array().unwrap().iter().find(|it| it["metric"] == "inter_token").unwrap();
    assert_eq!(
        (gaps["n"].as_u64(), gaps["launches"].as_u64(), gaps["unit"].as_str()),
        (Some(5 * 3 * 63), Some(5), Some("ns"))
    );
    assert_eq!(gaps["launch_medians"].as_array().map(Vec::len), Some(5));
    for field in ["estimate", "min", "max", "mean", "std", "p50", "p90", "p95", "p99"] {
        assert!(gaps[field].as_f64().is_some_and(|value| value > 0.0), "{field}");
    }
    assert_eq!(json["failed"][0]["failure"]["hint"], "orchestrate setup coal");
}

#[test]
fn formats_are_found_by_name() {
    for format in FORMATS {
        assert_eq!(format_named(format.name).map(|it| it.about), Some(format.about));
    }
    assert!(format_named("html5").is_none());
}

#[test]
fn formats_for_people_have_a_report_and_its_judgement_in_one_document() {
    let record = measured(&decoding(&["beacon"]), &[BEACON]);
    let result =
        judge(&record, &record, stats::SeverityThresholds::default(), false).map_err(anyhow::Error::from);
    let (report, judgement) = (&verified_report(&record), result.as_ref().unwrap());
    for format in FORMATS.iter().filter(|format| format.is_for_people()) {
        let viewed = |judgement| ReportContent { report, view: full(), judgement, saved: None };
        let page = |judgement| shown(&viewed(judgement), format.name, Some(100));
        let (alone, together) = (page(None), page(Some(&result)));
        assert!(!alone.contains("headline metric"), "{}: {alone}", format.name);
        for expected in ["1 headline metric: ", "base → new", "new:  record 2026"] {
            assert_eq!(together.matches(expected).count(), 1, "{}: {expected}: {together}", format.name);
        }
        assert_eq!(page(Some(&Err(anyhow::anyhow!("no comparison")))), alone);
    }
    let viewed = ReportContent { report, view: full(), judgement: Some(&result), saved: None };
    let together = shown(&viewed, "table", Some(100));
    let content = crate::report::JudgementContent { judgement, full: true };
    let judgement_text = shown(&content, "table", Some(100));
    assert_eq!(together, format!("{}\n{judgement_text}", rendered(&record, "table", 100)));
}

#[test]
fn the_overhead_of_orchestrate_is_shown_where_it_was_measured() {
    let mut record = measured(&selection(&["patient-original", "beacon"]), &[ORIGINAL, BEACON]);
    for format in FORMATS {
        let page = rendered(&record, format.name, 100);
        assert!(!page.contains("overhead of orchestrate") && !page.contains("overhead."), "{page}");
    }
    record.overhead = Some(Overhead { request_ns: 18_100, streamed_token_ns: 5_230, requests: 50 });
    for (format, expected) in [
        ("table", "overhead of orchestrate: 18.1 µs per request, 5.23 µs per streamed token"),
        ("markdown", "overhead of orchestrate: 18.1 µs per request, 5.23 µs per streamed token"),
        ("csv", ",orchestrate,0.1.0,,,,,warm,overhead.request,ns,50,1,18100,"),
        ("json", "\"request_ns\": 18100"),
    ] {
        let page = rendered(&record, format, 100);
        assert!(page.contains(expected), "{format}: {page}");
    }
}

/// A record in which every text of an engine is very long.
fn long_texts() -> RunRecord {
    let mut selection = selection(&["patient-original", "beacon", "reed"]);
    selection.dtypes = vec![Some("f32".into()), Some("bf16".into())];
    let mut record = measured(&selection, &[ORIGINAL, BEACON, REED]);
    for launch in record.launches.iter_mut().filter(|launch| launch.configuration % 3 == 1) {
        launch.hello.as_mut().unwrap().version = "9.".repeat(150);
        let facts = &mut launch.loaded.as_mut().unwrap().facts;
        facts.device = Some("模型".repeat(150));
        facts.weights_dtype = Some("w".repeat(300));
        facts.compute_dtype = Some("c".repeat(100_000));
        facts.architecture = Some("a".repeat(300));
    }
    // Case 17 is `decode` of configuration 2, `reed` in f32.
    let mut died = failure(2, Some(17), &"k".repeat(300), &"s".repeat(300), &"m".repeat(100_000));
    died.stderr = vec!["e".repeat(100_000); 5];
    record.take(Entry::Failure(died.clone()));
    record.take(Entry::Failure(Failure { case: None, configuration: 3, ..died }));
    record.take(Entry::Warning(Warning {
        configuration: Some(1),
        message: format!("its message: {}", "x".repeat(1000)),
    }));
    record
}

#[test]
fn no_line_is_wider_than_the_terminal_whatever_engines_report() {
    for limit in [40, 44, 52, 60, 72, 80, 100, 132, 160] {
        let text = rendered_with(
            &long_texts(),
            "table",
            Some(limit),
            View { pairs: true, tables: vec![TableId::WallTime, TableId::Resources], ..full() },
        );
        assert_fits(&text, limit);
        assert!(text.contains("9.9.9"), "{text}");
    }
}

#[test]
fn long_words_are_shortened_for_people_and_bounded_for_programs() {
    let longest = |format: &str| {
        let text = rendered(&long_texts(), format, 100);
        text.lines().map(str::len).max().unwrap()
    };
    assert!(longest("csv") < 5000 && longest("json") < 5000, "{} {}", longest("csv"), longest("json"));
    assert!(rendered(&long_texts(), "csv", 100).contains(&"9.".repeat(90)));
    let markdown = rendered(&long_texts(), "markdown", 100);
    assert!(markdown.contains("9.9…"), "{markdown}");
    assert!(!markdown.contains(&"9.".repeat(13)), "{markdown}");
}
