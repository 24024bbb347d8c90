//! Tests of reports about engines that send too much text.

use super::tests::{rendered, seen};
use super::*;
use crate::record::specimen::*;
use crate::record::{Entry, RunRecord};

/// A record in which every text of an engine is very long.
fn stretched() -> RunRecord {
    let mut selection = selection(&["patient-original", "beacon", "reed"]);
    selection.dtypes = vec![Some("f32".into()), Some("bf16".into())];
    let mut record = measured(&selection, &[BASELINE, BEACON, REED]);
    for launch in record.launches.iter_mut().filter(|launch| launch.configuration % 3 == 1) {
        launch.hello.as_mut().unwrap().version = "9.".repeat(150);
        let facts = &mut launch.loaded.as_mut().unwrap().facts;
        facts.device = Some("模型".repeat(150));
        facts.weights_dtype = Some("w".repeat(300));
        facts.compute_dtype = Some("c".repeat(100_000));
        facts.architecture = Some("a".repeat(300));
    }
    let mut died = failure(2, Some(17), &"k".repeat(300), &"s".repeat(300), &"m".repeat(100_000));
    died.stderr = vec!["e".repeat(100_000); 5];
    record.take(Entry::Failure(died.clone()));
    record.take(Entry::Failure(crate::record::Failure { case: None, configuration: 3, ..died }));
    record.take(Entry::Warning(crate::record::Warning {
        configuration: Some(1),
        message: format!("its message: {}", "x".repeat(951)),
    }));
    record
}

#[test]
fn no_line_is_wider_than_the_table_whatever_engines_state() {
    for limit in [40, 44, 52, 60, 72, 80, 100, 132, 160] {
        let text =
            seen(&stretched(), "table", Some(limit), View { pairs: true, wall_time: true, resources: true });
        for line in text.lines() {
            assert!(
                crate::text::width(line) <= limit,
                "{limit}, {}: {line}\n{text}",
                crate::text::width(line)
            );
        }
        assert!(text.contains("9.9.9"), "{text}");
    }
}

#[test]
fn people_see_the_beginning_of_a_long_word_and_programs_more_of_it_within_a_bound() {
    let longest = |format: &str| {
        let text = rendered(&stretched(), format, 100);
        text.lines().map(str::len).max().unwrap()
    };
    assert!(longest("csv") < 5000 && longest("json") < 5000, "{} {}", longest("csv"), longest("json"));
    assert!(rendered(&stretched(), "csv", 100).contains(&"9.".repeat(90)));
    let markdown = rendered(&stretched(), "markdown", 100);
    assert!(markdown.contains("9.9…"), "{markdown}");
    assert!(!markdown.contains(&"9.".repeat(13)), "{markdown}");
}
