//! Tests of tables from plans in which more varies than the engine.

use super::{assert_fits, decoding, rendered, rendered_table, words};
use crate::plan::Model;
use crate::record::specimen::*;
use crate::record::{End, RunRecord};

/// The record, with the requested device and threads as facts that every engine reported.
fn with_reported_options(mut record: RunRecord) -> RunRecord {
    for launch in &mut record.launches {
        let configuration = &record.header.plan.configurations[launch.configuration];
        let facts = &mut launch.loaded.as_mut().unwrap().facts;
        facts.device = Some(configuration.device.to_string());
        facts.threads = Some(configuration.threads);
    }
    record
}

/// The cells below a title, one for each row.
fn column(text: &str, title: &str) -> Vec<String> {
    let mut rows = text.lines().filter(|line| line.starts_with('|'));
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_string()).collect::<Vec<_>>();
    let at = cells(rows.next().unwrap()).iter().position(|cell| cell == title);
    at.map_or(Vec::new(), |at| rows.skip(1).map(|line| cells(line)[at].clone()).collect())
}

#[test]
fn swept_options_have_columns_and_the_engine_keeps_its_name() {
    let mut selection = decoding(&["patient-original", "beacon"]);
    selection.threads = vec![1, 2];
    selection.models.push(Model { name: "larger".into(), path: "/l".into(), ..Model::default() });
    let text = rendered(&with_reported_options(measured(&selection, &[ORIGINAL, BEACON])), "table", 120);
    let expected = "\
cpu, f32
5 blocks, interleaved; rounds: 3; warm after 3 to 6 requests
";
    assert!(text.starts_with(expected), "{text}");
    let rows: Vec<String> = text
        .lines()
        .map(words)
        .filter(|line| {
            line.starts_with("case engine model threads version")
                || line.ends_with('x')
                || line.ends_with(" ref")
        })
        .collect();
    assert_eq!(rows.len(), 9, "{text}");
    assert!(rows[1].starts_with("decode patient-original embedded 1 0.1.0"), "{text}");
    assert!(rows[8].starts_with("beacon larger 2 0.9.1"), "{text}");
    let (table, _) = text.split_once("verdicts").unwrap();
    assert!(!table.contains("1 thread") && !table.contains("2 threads"), "{text}");
}

#[test]
fn a_swept_engine_is_in_the_caption_and_its_rows_name_the_option() {
    let mut selection = decoding(&["beacon"]);
    selection.threads = vec![1, 2];
    let text = rendered(&with_reported_options(measured(&selection, &[BEACON])), "table", 100);
    assert!(text.starts_with("beacon 0.9.1, model embedded, cpu, f32\n"), "{text}");
    assert!(text.contains("case    threads  "), "{text}");
}

#[test]
fn a_device_that_failed_everywhere_is_in_its_column_and_not_in_the_caption() {
    let mut selection = decoding(&["patient-original", "beacon"]);
    selection.devices = vec!["cpu".into(), "cuda".into()];
    let mut record = measured(&selection, &[ORIGINAL, BEACON]);
    let fails = |configuration: usize| configuration > 1;
    record.launches.retain(|launch| !fails(launch.configuration));
    record.samples.retain(|sample| !fails(record.header.plan.cases[sample.case].configuration));
    add_unavailable(&mut record, 2, "no device", "nvidia-smi");
    add_unavailable(&mut record, 3, "no device", "nvidia-smi");
    let text = rendered(&record, "table", 100);
    assert!(text.starts_with("model embedded, f32, 2 threads\n"), "{text}");
    assert!(text.contains("-      beacon           cuda   unavailable: no device"), "{text}");
    let markdown = rendered(&record, "markdown", 100);
    assert_eq!(column(&markdown, "device"), ["cpu", "cpu", "cuda", "cuda"]);
    assert!(markdown.contains("patient-original cuda; beacon cuda"), "{markdown}");
}

#[test]
fn unreported_and_mismatched_settings_are_marked_in_the_column_of_a_swept_option() {
    let mut selection = decoding(&["patient-original", "beacon"]);
    selection.threads = vec![1, 2];
    let mut record = measured(&selection, &[ORIGINAL, BEACON]);
    let is_patient_original = |configuration: usize| configuration.is_multiple_of(2);
    for launch in record.launches.iter_mut().filter(|launch| is_patient_original(launch.configuration)) {
        launch.loaded.as_mut().unwrap().facts.threads = None;
    }
    let markdown = rendered(&record, "markdown", 100);
    assert_eq!(column(&markdown, "threads"), ["1?", "2 (requested 1)", "2?", "2"]);
    assert!(markdown.contains("? of a setting: the engine does not report it"), "{markdown}");
}

#[test]
fn an_engine_listed_twice_is_numbered_where_no_column_differs() {
    let mut selection = decoding(&["beacon", "beacon"]);
    selection.threads = vec![1, 2];
    let markdown = rendered(&with_reported_options(measured(&selection, &[BEACON])), "markdown", 100);
    assert_eq!(column(&markdown, "engine"), ["beacon", "beacon #2", "beacon", "beacon #2"]);
}

#[test]
fn if_the_columns_of_a_sweep_do_not_fit_the_name_has_the_options() {
    let mut selection = decoding(&["patient-original", "beacon"]);
    selection.threads = vec![1, 2];
    selection.devices = vec!["cpu".into(), "cuda:0".into()];
    selection.models.push(Model {
        name: "a-model-with-a-name-that-is-rather-long-q4".into(),
        path: "/l".into(),
        ..Model::default()
    });
    selection.models.push(Model {
        name: "a-model-with-a-name-that-is-rather-long-q8".into(),
        path: "/l".into(),
        ..Model::default()
    });
    let record = with_reported_options(measured(&selection, &[ORIGINAL, BEACON]));
    for limit in [40, 60, 80, 100, 160] {
        let text = rendered(&record, "table", limit);
        let rows = record.header.plan.configurations.iter();
        for configuration in rows.filter(|configuration| configuration.role.is_none()) {
            let text_words = words(&text);
            // A shortened name is explained below the table: `short is name`. On 40 columns, wrapping breaks the name.
            let is_named = text_words.contains(&configuration.label)
                || text_words.contains(&format!("is {}", configuration.model.name))
                || configuration.model.name == "embedded";
            assert!(is_named || limit < 60, "{limit}: {}\n{text}", configuration.label);
        }
        assert_fits(&text, limit);
    }
}

#[test]
fn an_engine_without_hello_has_its_libraries_or_a_question_mark_as_version() {
    let mut record = measured(&decoding(&["patient-original", "beacon", "reed"]), &[ORIGINAL, BEACON, REED]);
    for launch in &mut record.launches {
        if launch.configuration > 0 {
            launch.hello = None;
        }
        if launch.configuration == 1 {
            let libraries = &mut launch.loaded.as_mut().unwrap().facts.libraries;
            libraries.insert("tensors".into(), "2.5.1".into());
        }
    }
    let versions = column(&rendered(&record, "markdown", 100), "version");
    assert_eq!(versions, ["0.1.0", "tensors 2.5.1", "?"]);
    let narrow = rendered_table(&record, 90);
    let has_versions = narrow.contains("versions: beacon tensors 2.5.1, patient-original 0.1.0, reed ?");
    assert!(has_versions, "{narrow}");
}

#[test]
fn an_interrupted_run_shows_planned_rounds_and_measured_samples() {
    let mut selection = decoding(&["beacon"]);
    selection.rounds = Some(100);
    let mut record = measured(&selection, &[BEACON]);
    // Three warm-ups and seven measured requests.
    record.samples.truncate(3 + 7);
    record.warm_ups.truncate(1);
    (record.closed, record.end) = (Vec::new(), Some(End::Interrupted));
    let text = rendered(&record, "table", 100);
    assert!(
        text.contains("\nplanned: 5 blocks, interleaved; rounds: 100; warm after 3 requests\n"),
        "{text}"
    );
    assert!(text.contains("\ndecode  7 "), "{text}");
}
