//! Tests of the column `of limit`: a row's rate as a percentage of the machine's limit.

use machine_limits::{Copies, GpuLimits, Limits, Operations, Reads};

use super::{assert_fits, json, rendered, words};
use crate::machine::cpu::Cache;
use crate::plan::Sizes;
use crate::record::specimen::*;
use crate::record::{self, RunRecord};
use crate::report::limits;

/// Two invented engines with a model of a hundred million weights, all read for each token, on a machine that reads
/// 40 GB/s and makes 200 × 10⁹ operations/s.
fn large() -> RunRecord {
    let mut record = measured(&selection(&["patient-original", "beacon"]), &[ORIGINAL, BEACON]);
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

/// The cell of the column `of limit` for this case and engine.
fn of_limit(table: &str, case: &str, engine: &str) -> String {
    let header = table.lines().find(|line| line.contains("of limit")).unwrap();
    let index = header.split('|').position(|title| title.contains("of limit")).unwrap();
    let row = table
        .lines()
        .find(|line| line.contains(&format!(" {case} ")) && line.contains(&format!(" {engine} ")));
    row.unwrap().split('|').nth(index).unwrap().trim().to_string()
}

#[test]
fn decode_rows_show_a_share_of_bandwidth_and_prefill_rows_of_arithmetic() {
    let table = rendered(&large(), "markdown", 400);
    assert!(table.contains("| of limit % |"), "{table}");
    // A token of ORIGINAL takes 21.7 ms and reads 100 million f32 weights: 46 % of 40 GB/s. Noise changes the share a little.
    let share = |case, engine| of_limit(&table, case, engine).parse::<f64>().unwrap();
    let decode = share("decode", "patient-original");
    assert!((40.0..52.0).contains(&decode), "{table}");
    // A prompt token takes 0.41 ms and two operations a weight: more than the limit. Shares above 100 % are shown too.
    let prefill = share("prefill", "patient-original");
    assert!((200.0..270.0).contains(&prefill), "{table}");
    assert_eq!(of_limit(&table, "load", "patient-original"), "");
}

#[test]
fn without_limits_there_is_no_share_column() {
    let record = RunRecord { limits: Vec::new(), ..large() };
    assert!(!rendered(&record, "table", 400).contains("of limit"));
}

#[test]
fn shares_are_in_the_formats_for_programs_and_are_never_compared() {
    let csv = rendered(&large(), "csv", 400);
    let lines: Vec<&str> = csv.lines().filter(|line| line.contains(",bandwidth_share,share,")).collect();
    assert_eq!(lines.len(), 2, "{csv}");
    let compared =
        crate::analysis::compare::compare_within(&crate::analysis::values::Measured::of(&large()), &[(1, 0)]);
    assert!(!compared.is_empty() && compared.iter().all(|it| it.metric.is_compared()));
}

/// The record of `large`, with a probe for each of these memory bandwidths in GB/s.
fn probed(gigabytes: &[f64]) -> RunRecord {
    let mut record = large();
    let first = record.limits.remove(0).probed;
    for (block, rate) in gigabytes.iter().enumerate() {
        let mut probed = first.clone();
        probed.reads[0].bytes = (rate * 1e9) as u64;
        // One stream reads less, so it does not change the best rate of the probe.
        probed.reads.push(Reads { streams: 1, bytes: 20_000_000_000, ..probed.reads[0] });
        record.limits.push(record::Limits { block: block as u32, probed });
    }
    record
}

/// A record without probes, of a model with 120 MB of weights: less than four times the cache of 32 MiB.
fn small() -> RunRecord {
    let mut record = RunRecord { limits: Vec::new(), ..large() };
    for configuration in &mut record.header.plan.configurations {
        configuration.model.sizes = Some(Sizes { read_per_token: 30_000_000, ..Sizes::default() });
    }
    record
}

const IN_CACHES: &str =
    "no share of the machine's limit: weights under 134 MB (4 times the last-level cache) may be cached";

#[test]
fn a_table_with_shares_has_a_line_with_the_limit_and_its_probes() {
    let record = probed(&[37.0, 36.0, 37.5, 36.9]);
    let table = rendered(&record, "table", 80);
    assert_fits(&table, 80);
    let expected = "limits: 37.5 GB/s from memory on 2 threads, 200 × 10⁹ f32 operations/s (4 probes, 36.0 to 37.5 GB/s)";
    assert_eq!(words(&table).matches(expected).count(), 1, "{table}");
    assert!(rendered(&record, "markdown", 80).contains(expected));
    assert!(!table.contains("changed during the run"), "{table}");
}

#[test]
fn limits_that_changed_during_the_run_give_a_note() {
    let table = words(&rendered(&probed(&[36.0, 64.0, 36.0]), "table", 80));
    let expected = "note: a limit of the machine changed during the run, 36.0 to 64.0 GB/s from memory on 2 threads over 3 probes";
    assert!(table.contains(expected) && table.contains("do not compare it with other runs"), "{table}");
}

#[test]
fn json_and_csv_have_the_best_value_of_each_limit_and_its_probes() {
    let record = probed(&[37.0, 36.0]);
    let json = json(&record);
    let memory = serde_json::json!({
        "device": "cpu", "threads": 2, "limit": "memory", "unit": "bytes/s", "best": 37e9, "probes": [37e9, 36e9]
    });
    assert_eq!(json["limits"][0], memory);
    assert_eq!(json["limits"][1]["limit"], "f32_fma");
    let csv = rendered(&record, "csv", 80);
    let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let line = csv.lines().find(|line| line.contains(",limit.memory,")).unwrap();
    let field = |name: &str| line.split(',').nth(header.iter().position(|it| *it == name).unwrap()).unwrap();
    let values = ["device", "threads", "unit", "n", "estimate", "min", "max"].map(field);
    assert_eq!(values, ["cpu", "2", "bytes/s", "2", "37000000000", "36000000000", "37000000000"]);
    assert_eq!(line.split(',').count(), header.len());
}

#[test]
fn a_model_that_may_be_cached_has_no_share_and_one_line_explains_it() {
    let table = rendered(&small(), "table", 80);
    assert_eq!(words(&table).matches(IN_CACHES).count(), 1, "{table}");
    assert!(!table.contains("of limit"), "there is no such column: {table}");
}

#[test]
fn a_cached_model_beside_a_large_one_has_n_a_with_the_reason() {
    let mut record = probed(&[37.0, 36.0]);
    record.header.plan.configurations[1].model.sizes =
        Some(Sizes { read_per_token: 30_000_000, ..Sizes::default() });
    let table = rendered(&record, "markdown", 400);
    assert_eq!(of_limit(&table, "decode", "beacon"), "n/a");
    assert!(of_limit(&table, "decode", "patient-original").parse::<f64>().is_ok());
    assert_eq!(table.matches(IN_CACHES).count(), 1, "{table}");
}

#[test]
fn if_a_share_is_absent_for_other_reasons_caches_are_not_named() {
    let unprobed = RunRecord { limits: Vec::new(), ..large() };
    let mut of_unknown_size = small();
    of_unknown_size.header.plan.configurations.iter_mut().for_each(|it| it.model.sizes = None);
    let mut only_loads = small();
    only_loads.samples.retain(|sample| only_loads.header.plan.cases[sample.case].workload.scenario == "load");
    for record in [unprobed, of_unknown_size, only_loads] {
        let table = rendered(&record, "table", 80);
        assert!(!table.contains("of limit") && !table.contains("limits:"), "{table}");
    }
}

#[test]
fn rows_on_a_gpu_have_the_limits_from_the_only_probe_of_that_gpu() {
    let mut record = large();
    for launch in &mut record.launches {
        let facts = &mut launch.loaded.as_mut().unwrap().facts;
        (facts.device, facts.compute_dtype) = (Some("cuda:0".into()), Some("f32".into()));
    }
    let second = 1_000_000_000;
    let matrix = Operations {
        unit: "cublas_f32".into(),
        operations: 60_000_000_000_000,
        ns: second,
        ..Operations::default()
    };
    let gpu = GpuLimits {
        l2_bytes: Some(50 << 20),
        copies: Some(Copies { bytes: 2_900_000_000_000, ns: second }),
        matrix: vec![matrix],
        ..GpuLimits::default()
    };
    record.limits[0].probed.gpus = vec![gpu];
    let table = words(&rendered(&record, "table", 80));
    let expected =
        "limits: 2,900 GB/s copied in memory on cuda:0, 60,000 × 10⁹ cublas_f32 operations/s (1 probe)";
    assert!(table.contains(expected), "{table}");
    assert_eq!(table.matches("limits:").count(), 1, "{table}");
    let csv = rendered(&record, "csv", 80);
    assert!(csv.contains(",cuda:0,,,warm,limit.cublas_f32,operations/s,1,,60000000000000,"), "{csv}");
}

#[test]
fn a_line_has_the_rows_of_each_class_with_the_highest_class_first() {
    let shares = [("a", 0.31), ("b", 0.93), ("c", 0.499), ("d", 0.795), ("e", 0.5), ("f", 2.0)];
    let shares = shares.map(|(name, share)| (name.to_string(), share));
    // A class is that of the whole percents which a table shows. A share above the limit has none.
    let expected = "speed as a share of this machine's limit: 90 % or more: b; 80 to 90 %: d; 50 to 80 %: c, e; below 50 %: a";
    assert_eq!(limits::classes(shares.into_iter()).as_deref(), Some(expected));
    assert_eq!(limits::classes(std::iter::empty()), None);
}
