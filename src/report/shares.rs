//! The column that says how much of what the machine can do a row is.

use machine_limits::{Limits, Operations, Reads};

use super::specimen::*;
use super::tests::rendered;
use crate::machine::cpu::Cache;
use crate::plan::Sizes;
use crate::record::{self, RunRecord};

/// A model of a hundred million weights, on a machine that reads 40 GB/s and does 200 Gop/s.
fn large() -> RunRecord {
    let mut record = measured(&asked(&["patient-original", "beacon"]), &[BASELINE, BEACON]);
    for configuration in &mut record.header.plan.configurations {
        configuration.model.sizes =
            Some(Sizes { parameters: 100_000_000, read_per_token: 100_000_000, ..Sizes::default() });
    }
    record.header.machine.cpu.caches =
        vec![Cache { level: 3, kind: "Unified".into(), size_bytes: 32 << 20, shared_by: 2 }];
    let second = 1_000_000_000;
    let reads = Reads { threads: 2, streams: 4, bytes: 40_000_000_000, ns: second };
    let fma = Operations {
        unit: "f32_fma".into(),
        loads: false,
        threads: 2,
        operations: 200_000_000_000,
        ns: second,
    };
    let probed = Limits { reads: vec![reads], units: vec![fma], ..Limits::default() };
    record.limits.push(record::Limits { block: 0, probed });
    record
}

/// The last column but that of ratios, by case and engine.
fn of_limit(table: &str, case: &str, engine: &str) -> String {
    let header = table.lines().find(|line| line.contains("of limit")).unwrap();
    let place = header.split('|').position(|title| title.contains("of limit")).unwrap();
    let row = table
        .lines()
        .find(|line| line.contains(&format!(" {case} ")) && line.contains(&format!(" {engine} ")));
    row.unwrap().split('|').nth(place).unwrap().trim().to_string()
}

#[test]
fn decode_rows_say_their_share_of_bandwidth_and_prefill_rows_theirs_of_arithmetic() {
    let table = rendered(&large(), "markdown", 400);
    assert!(table.contains("| of limit % |"), "{table}");
    // 400 MB in 21.7 ms, of 40 GB/s: 46 %; noise moves it a little.
    let share = |case, engine| of_limit(&table, case, engine).parse::<f64>().unwrap();
    let decode = share("decode", "patient-original");
    assert!((40.0..52.0).contains(&decode), "{table}");
    // 2 * 100 million for each token, in 0.41 ms, of 200 Gop/s: more than the machine does, and shown as what it is.
    let prefill = share("prefill", "patient-original");
    assert!((200.0..270.0).contains(&prefill), "{table}");
    assert_eq!(of_limit(&table, "load", "patient-original"), "");
}

#[test]
fn without_limits_there_is_no_such_column() {
    let record = RunRecord { limits: Vec::new(), ..large() };
    assert!(!rendered(&record, "table", 400).contains("of limit"));
}

#[test]
fn shares_are_in_the_formats_for_programs_and_are_never_compared() {
    let csv = rendered(&large(), "csv", 400);
    let lines: Vec<&str> = csv.lines().filter(|line| line.contains(",bandwidth_share,share,")).collect();
    assert_eq!(lines.len(), 2, "{csv}");
    let compared = crate::compare::within(&large(), &[(1, 0)]);
    assert!(!compared.is_empty() && compared.iter().all(|it| !it.metric.is_share()));
}
