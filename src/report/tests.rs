//! Reports of invented records, as the table shows them. `formats` tests every format, `shares` the limits
//! of the machine, `sweeps` plans that vary more than the engine.

mod formats;
mod shares;
mod sweeps;

use crate::plan::axes::AxisValues;
use serde_json::Value;

use super::document::Layout;
use super::grid::Grid;
use super::verdicts::Verdicts;
use super::*;
use crate::analysis::metric::{METRICS, Metric, MetricId, Shown};
use crate::plan::Selection;
use crate::record::specimen::*;
use crate::record::{Entry, Overhead, RunRecord};
use crate::report::rows::{Dtype, Row};

/// The selection of decoding alone: one case for each configuration.
pub fn decoding(names: &[&str]) -> Selection {
    Selection {
        scenarios: crate::plan::scenario::named_with_few_cases("decode").unwrap(),
        ..selection(names)
    }
}

pub fn row<'a>(report: &'a Report, case: &str, engine: &str) -> &'a Row {
    report.rows.iter().find(|row| row.case.label == case && row.engine.label == engine).unwrap()
}

/// The words of a text, with one space between them.
pub fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub fn assert_fits(text: &str, limit: usize) {
    let wide = text.lines().find(|line| crate::text::width(line) > limit);
    assert_eq!(wide, None, "{limit} columns:\n{text}");
}

pub fn json(record: &RunRecord) -> Value {
    serde_json::from_str(&rendered(record, "json", 100)).unwrap()
}

/// The case of an engine in the JSON of a report.
pub fn json_case<'a>(json: &'a Value, case: &str, engine: &str) -> &'a Value {
    let mut cases = json["cases"].as_array().unwrap().iter();
    cases.find(|it| it["case"] == case && it["engine"]["name"] == engine).unwrap()
}

/// The view of the full report.
pub fn full() -> View {
    View { full: true, ..View::default() }
}

/// The report of a record without output checks, as if every output were verified: views for people have no other ratios.
pub fn verified_report(record: &RunRecord) -> Report {
    let mut report = Report::of(record);
    if report.no_checks.take().is_none() {
        return report;
    }
    let Verdicts { against_reference, all_pairs, against_widest, preset_effects, means, .. } =
        &mut report.verdicts;
    let of_presets = preset_effects.iter_mut().flat_map(|it| &mut it.pairs);
    let pairs = [against_reference, all_pairs, against_widest].into_iter().flatten();
    pairs.chain(of_presets).for_each(|pair| pair.is_verified = true);
    means.iter_mut().for_each(|mean| mean.is_verified = true);
    report.settings.iter_mut().for_each(|impact| impact.pair.is_verified = true);
    report
}

/// The full report of a record.
pub fn rendered(record: &RunRecord, format: &str, width: usize) -> String {
    rendered_with(record, format, Some(width), View::default())
}

/// The full report of a record, with the optional parts of this view.
pub fn rendered_with(record: &RunRecord, format: &str, width: Option<usize>, view: View) -> String {
    let report = &if format == "json" { Report::of(record) } else { verified_report(record) };
    shown(
        &ReportContent { report, view: View { full: true, ..view }, judgement: None, saved: None },
        format,
        width,
    )
}

/// The metrics in the tests of whole tables. A new metric does not change these tests.
const TABLE_METRICS: [MetricId; 8] = [
    MetricId::LOAD,
    MetricId::COLD_START,
    MetricId::TOTAL,
    MetricId::FIRST_TOKEN,
    MetricId::INTER_TOKEN,
    MetricId::PREFILL_RATE,
    MetricId::DECODE_RATE,
    MetricId::PEAK_MEMORY,
];

/// The table of the metrics in `TABLE_METRICS` alone.
pub fn rendered_table(record: &RunRecord, width: usize) -> String {
    let mut report = verified_report(record);
    for row in &mut report.rows {
        row.summaries.retain(|it| TABLE_METRICS.contains(&it.metric.id));
    }
    shown(
        &ReportContent { report: &report, view: full(), judgement: None, saved: None },
        "table",
        Some(width),
    )
}

const WIDE_LAYOUT: Layout =
    Layout { version_column: true, max_label: 28, columns_of_varying_options: true, max_word: 24, gap: 2 };

/// A record of the default suite, with an engine that cannot start.
fn default_suite_record() -> RunRecord {
    let mut record = measured(&selection(&["patient-original", "beacon", "coal"]), &[ORIGINAL, BEACON]);
    add_unavailable(&mut record, 2, "not set up", "orchestrate setup coal");
    record
}

fn empty_record() -> RunRecord {
    planned(&selection(&["patient-original", "beacon"]))
}

/// Nine engines, names that are paths and names in other scripts, failures of several kinds, an interrupted run.
fn worst_record() -> RunRecord {
    let path_a = "/home/someone/projects/my-new-engine/target/release/my-new-engine-with-a-long-name";
    let path_b = "/opt/other-place/my-new-engine/target/release/my-new-engine-with-a-long-name";
    let names = ["patient-original", "beacon", "reed", path_a, path_b, "模型引擎", "motör", "coal", "evil"];
    let evil = InventedEngine { name: "evil", version: "1|2\u{1b}[31m\n=x", ..BEACON };
    let engines = [
        ORIGINAL,
        BEACON,
        REED,
        InventedEngine { name: path_a, version: "2.0", ..BEACON },
        InventedEngine { name: "模型引擎", dtype: "bf16", token_ms: 0.31, ..BEACON },
        evil,
    ];
    let mut record = measured(&selection(&names), &engines);
    record.end = Some(crate::record::End::Interrupted);
    let case = |record: &RunRecord, configuration: usize, label: &str| {
        let mut cases = record.header.plan.cases.iter();
        cases.position(|case| case.configuration == configuration && case.workload.label == label)
    };
    let prefill = case(&record, 2, "prefill");
    let mut died = failure(
        2,
        prefill,
        "exited",
        "sample 3",
        "killed by signal 9 (SIGKILL) while it answered; the kernel's log may say that memory ran out",
    );
    died.stderr = (1..9).map(|number| format!("line {number} \u{1b}[2J of what it said")).collect();
    record.take(Entry::Failure(died.clone()));
    record.take(Entry::Failure(died));
    let decode = case(&record, 8, "decode");
    record.take(Entry::Failure(failure(
        8,
        decode,
        "wrong_output",
        "sample 1",
        "64 tokens were asked for, 3|came",
    )));
    let mut slow = failure(
        4,
        None,
        "timeout",
        "load",
        "no `loaded` within 120 s; it said nothing on stdout and nothing on stderr in this time, which is strange",
    );
    slow.hint = Some(format!(
        "orchestrate run -e {path_b} --timeout 600 --debug --scenario load --model embedded --device cpu"
    ));
    record.take(Entry::Failure(slow));
    add_unavailable(&mut record, 7, "not set up", "orchestrate setup coal");
    let warning = |configuration, message: &str| {
        Entry::Warning(crate::record::Warning { configuration, message: message.into() })
    };
    record.take(warning(
        None,
        "the machine is busy (load 5.1 on 2 cores): end other programs, or expect wide spreads",
    ));
    record.take(warning(Some(1), "the first sample took 3 times as long as the others: `--warmup 4`"));
    record.take(warning(Some(1), "the first sample took 3 times as long as the others: `--warmup 4`"));
    record
}

/// Whether a line may be wider than the terminal: it has a command, a path or code in backticks.
fn may_be_wide(line: &str) -> bool {
    line.trim_start().starts_with("hint: ") || line.contains('/') || line.contains('`')
}

#[test]
fn the_default_suite_fits_a_hundred_columns() {
    let expected = "\
model embedded, cpu, f32, 2 threads
5 blocks, interleaved; rounds: 1 (load), 5 (ttft), 3 (prefill, decode); warm after 3 to 6 requests
AMD EPYC, 2 cores; orchestrate 0.1.0, record 2026-01-02T03-04-05Z-123

                                         cold           ITL                      peak
case     engine           version  load start TTFT  p50  p95  p99 prefill decode  mem vs ref
                                     ms    ms   ms   ms   ms   ms   tok/s  tok/s   MB
────────────────────────────────────────────────────────────────────────────────────────────
load     patient-original 0.1.0   2,290 2,320 28.0                                412    ref
         beacon           0.9.1    30.9  34.2 3.22                               61.0  67.8x
ttft 16  patient-original 0.1.0               27.9                    574         412    ref
         beacon           0.9.1               3.23                  4,950        61.0 8.68x*
ttft 128 patient-original 0.1.0               73.4                  1,740         414    ref
         beacon           0.9.1               12.4                 10,300        63.0  5.91x
ttft 512 patient-original 0.1.0                228                  2,250         420    ref
         beacon           0.9.1               44.0                 11,600        69.0 5.22x*
prefill  patient-original 0.1.0                436                  2,350         428    ref
         beacon           0.9.1               85.9                 11,900        77.0  5.09x
decode   patient-original 0.1.0               34.4 21.5 22.4 24.2     929   46.4  412    ref
         beacon           0.9.1               4.53 1.90 1.98 4.89   7,060    510 61.0  11.0x
-        coal             unavailable: not set up

verdicts, 95 % intervals over 5 blocks:
- `beacon` starts cold 67.8x as fast as `patient-original` [67.6, 68.1]
- `beacon` reaches its first token (ttft 16) 8.68x as fast as `patient-original` [8.66, 8.69]
- `beacon` reaches its first token (ttft 128) 5.91x as fast as `patient-original` [5.90, 5.92]
- `beacon` reaches its first token (ttft 512) 5.22x as fast as `patient-original` [5.21, 5.23]
- `beacon` prefills 5.09x as fast as `patient-original` [5.07, 5.10]
- `beacon` decodes 11.0x as fast as `patient-original` [11.0, 11.0]
geometric mean over 6 workloads (each has the same weight; no single workload has this ratio):
  `beacon` 10.0x
noise floor, `patient-original` against its twin (a second copy of it): load 0.5 %, ttft 16 0.3 %,
  ttft 128 0.3 %, ttft 512 0.4 %, prefill 0.3 %, decode 0.3 %; not calibrated

coal
  hint: orchestrate setup coal
vs ref: speed-up over `patient-original`, by cold start (load), TTFT (ttft), prefill, decode; above
  1 is better
* ratio of paired rounds, not of the two shown values, which are medians over all launches
explanations: `orchestrate explain`, `orchestrate metrics`
";
    assert_eq!(rendered_table(&default_suite_record(), 100), expected);
    // With every metric there is still one table: its header occurs once.
    let whole = rendered(&default_suite_record(), "table", 100);
    assert_eq!(whole.matches("\ncase     engine").count(), 1, "{whole}");
}

#[test]
fn every_metric_that_a_table_shows_has_its_columns_in_the_order_of_metrics() {
    let report = Report::of(&default_suite_record());
    let table = Grid::of(&report, &View::default(), WIDE_LAYOUT).table;
    let columns: Vec<&str> = table.columns.iter().map(|it| it.group.unwrap_or(&it.title)).collect();
    let has_values = |metric: &&Metric| report.rows.iter().any(|row| row.summary(metric.id).is_some());
    let expected = METRICS.iter().filter(has_values).flat_map(|metric| match metric.shown {
        Shown::Estimate => vec![metric.title],
        Shown::Percentiles => vec![metric.title; 3],
        Shown::AsHeadline | Shown::OfLimit(_) | Shown::OfDataSheet(_) | Shown::Beside(_) => Vec::new(),
    });
    let expected: Vec<&str> = expected.collect();
    assert!(expected.len() > 8, "{expected:?}");
    let at = columns.iter().position(|title| *title == expected[0]).unwrap();
    assert_eq!(columns[at..at + expected.len()], expected);
}

#[test]
fn a_narrow_terminal_gets_two_tables_that_both_name_their_rows() {
    let narrow = rendered(&default_suite_record(), "table", 80);
    assert_eq!(narrow.matches("case      engine").count(), 2, "{narrow}");
    assert_eq!(narrow.matches("coal              unavailable: not set up").count(), 1, "{narrow}");
    assert_eq!(narrow.matches("decode    patient-original").count(), 2, "{narrow}");
}

#[test]
fn one_shot_runs_are_compared_by_the_total_time() {
    let mode = crate::plan::Mode::OneShot;
    let selection = Selection { mode, ..decoding(&["patient-original", "beacon"]) };
    let expected = "\
model embedded, cpu, f32, 2 threads
one-shot, a process for each request: 5 blocks, interleaved; rounds: 3
AMD EPYC, 2 cores; orchestrate 0.1.0, record 2026-01-02T03-04-05Z-123

                           cold                     ITL                          peak
case    engine            start  total  TTFT   p50   p95   p99  prefill  decode   mem  vs ref
                             ms     ms    ms    ms    ms    ms    tok/s   tok/s    MB
─────────────────────────────────────────────────────────────────────────────────────────────
decode  patient-original  2,320  3,680  34.3  21.5  22.3  24.2      932    46.5   412     ref
        beacon             35.5    159  4.54  1.91  1.99  4.89    7,050     509  61.0   23.1x

verdicts, 95 % intervals over 5 blocks:
- `beacon` answers 23.1x as fast as `patient-original` [23.0, 23.2]
noise floor, `patient-original` against its twin (a second copy of it): decode 0.4 %; not
  calibrated; 20 blocks measure it; hint:
  `orchestrate calibrate -e patient-original,beacon -s decode --depth 0 --threads 2 --mode one-shot`

vs ref: speed-up over `patient-original`, by total; above 1 is better
explanations: `orchestrate explain`, `orchestrate metrics`
";
    assert_eq!(rendered_table(&measured(&selection, &[ORIGINAL, BEACON]), 100), expected);
}

#[test]
fn a_single_engine_is_in_the_caption_and_a_cut_off_run_counts_the_samples_of_each_case() {
    let mut record = measured(&selection(&["beacon"]), &[BEACON]);
    // The 37 requests of the first launch, and three of the second.
    record.samples.truncate(40);
    record.warm_ups.truncate(5);
    (record.closed, record.end) = (Vec::new(), None);
    let expected = "\
note: the run was cut off before its end: only its recorded samples are shown
beacon 0.9.1, model embedded, cpu, f32, 2 threads
planned: 5 blocks, interleaved; rounds: 1 (load), 5 (ttft), 3 (prefill, decode); warm after 3
  requests
AMD EPYC, 2 cores; orchestrate 0.1.0, record 2026-01-02T03-04-05Z-123

                    cold              ITL                          peak
case      n  load  start  TTFT   p50   p95   p99  prefill  decode   mem
               ms     ms    ms    ms    ms    ms    tok/s   tok/s    MB
───────────────────────────────────────────────────────────────────────
load      2  29.9   33.0  3.12                                     61.0
ttft 16   5               3.14                      5,090          61.0
ttft 128  5               12.1                     10,600          63.0
ttft 512  5               42.9                     11,900          69.0
prefill   3               83.8                     12,200          77.0
decode    3               4.41  1.86  1.89  4.86    7,250     524  61.0

explanations: `orchestrate explain`, `orchestrate metrics`
";
    assert_eq!(rendered_table(&record, 100), expected);
}

#[test]
fn a_record_without_samples_gives_a_report_without_rows() {
    let expected = "\
note: the run was cut off before its end: only its recorded samples are shown
note: none of 12 cases has samples
AMD EPYC, 2 cores; orchestrate 0.1.0, record 2026-01-02T03-04-05Z-123

nothing was measured

explanations: `orchestrate explain`, `orchestrate metrics`
";
    assert_eq!(rendered(&empty_record(), "table", 100), expected);
    assert!(rendered(&empty_record(), "markdown", 100).contains("Nothing was measured."));
    assert_eq!(rendered(&empty_record(), "csv", 100).lines().count(), 1);
    let json = json(&empty_record());
    assert_eq!(json["cases"], serde_json::json!([]));
    assert_eq!(rendered(&RunRecord::default(), "table", 100).lines().next(), expected.lines().next());
}

#[test]
fn a_run_in_which_nothing_started_lists_the_reasons() {
    let mut record = planned(&selection(&["beacon", "coal"]));
    add_unavailable(&mut record, 0, "not built", "orchestrate setup beacon");
    add_unavailable(&mut record, 1, "not set up", "orchestrate setup coal");
    record.end = Some(crate::record::End::Finished);
    let expected = "\
AMD EPYC, 2 cores; orchestrate 0.1.0, record 2026-01-02T03-04-05Z-123

nothing was measured

engine  outcome
───────────────────────────────
beacon  unavailable: not built
coal    unavailable: not set up

beacon
  hint: orchestrate setup beacon
coal
  hint: orchestrate setup coal
explanations: `orchestrate explain`, `orchestrate metrics`
";
    assert_eq!(rendered(&record, "table", 100), expected);
}

#[test]
fn the_first_of_several_hints_can_be_pasted_and_the_others_are_wrapped() {
    let mut record = planned(&selection(&["beacon"]));
    let reason = "no NVIDIA driver found; its environment is not set up (9.0 GB to download)";
    let hints = "`nvidia-smi` lists a GPU where one is; containers need `--gpus all`\n\nBEACON_PYTHON=/a/python/that/has/it; \
                its own guide says where the library comes from\r\nthird\nfourth";
    add_unavailable(&mut record, 0, reason, hints);
    for record in [&record, &RunRecord { failures: Vec::new(), ..record.clone() }] {
        let text = rendered(record, "table", 80);
        assert_fits(&text, 80);
        let expected = "
  hint: `nvidia-smi` lists a GPU where one is; containers need `--gpus all`
  hint: BEACON_PYTHON=/a/python/that/has/it; its own guide says where the
    library comes from
  hint: third
";
        assert!(text.contains(expected) && !text.contains("fourth"), "{text}");
        let words = words(&text);
        assert!(words.contains(reason), "{text}");
        let markdown = rendered(record, "markdown", 80);
        assert_eq!(markdown.matches("  - hint: ").count(), 3, "{markdown}");
    }
}

#[test]
fn the_worst_record_fits_its_width_and_keeps_every_failure_and_hint() {
    for record in [worst_record(), default_suite_record(), empty_record()] {
        for limit in (60..=160).step_by(4) {
            let text = rendered(&record, "table", limit);
            for line in text.lines().filter(|line| !may_be_wide(line)) {
                assert!(crate::text::width(line) <= limit, "{limit}: {line}\n{text}");
            }
        }
    }
    for limit in [60, 80, 100, 160] {
        let text = rendered(&worst_record(), "table", limit);
        let unwrapped = words(&text);
        let record = worst_record();
        let rows = record.header.plan.configurations.iter();
        for configuration in rows.filter(|configuration| configuration.role.is_none()) {
            assert!(unwrapped.contains(&configuration.label), "{limit}: {}", configuration.label);
        }
        assert!(unwrapped.contains("the kernel's log may say that memory ran out (2 times)"), "{text}");
        assert!(text.lines().any(|line| line.ends_with("--model embedded --device cpu")), "{text}");
        assert!(text.contains("hint: orchestrate setup coal"), "{text}");
        assert!(text.starts_with("note: the run was interrupted"), "{text}");
        assert!(text.ends_with("explanations: `orchestrate explain`, `orchestrate metrics`\n"), "{text}");
    }
}

#[test]
fn a_failed_case_is_a_row_with_its_cause_and_no_values() {
    let report = Report::of(&worst_record());
    let row = row(&report, "prefill", "reed");
    assert_eq!(row.failure.as_ref().map(|failure| failure.times), Some(2));
    let text = rendered(&worst_record(), "table", 160);
    let line = text.lines().find(|line| line.contains("exited at sample 3")).unwrap();
    assert!(line.starts_with("          reed") && line.contains("killed by signal 9"), "{line}");
    // A configuration that failed as a whole is named once, not once for each of its six cases.
    let coal = text.lines().filter(|line| line.contains("coal") && line.contains("unavailable"));
    assert_eq!(coal.count(), 1);
}

#[test]
fn a_ratio_above_one_is_better_for_times_and_for_rates() {
    let report = verified_report(&default_suite_record());
    let ratio = |case: &str| report.verdicts.headline(row(&report, case, "beacon")).unwrap().ratio().unwrap();
    // The ratios without the noise of a few per cent: less time to start, and more tokens a second.
    assert!((ratio("load") / 67.86 - 1.0).abs() < 0.03, "{}", ratio("load"));
    assert!((ratio("decode") / 11.0 - 1.0).abs() < 0.03, "{}", ratio("decode"));
}

#[test]
fn each_configuration_is_compared_with_the_reference_on_as_many_threads() {
    let mut selection = selection(&["patient-original", "beacon"]);
    selection.threads = vec![1, 2];
    let report = Report::of(&measured(&selection, &[ORIGINAL, BEACON]));
    assert_eq!(report.rows.iter().filter(|row| row.is_reference()).count(), 12);
    let verdicts = report.verdicts.against_reference.iter().filter(|pair| pair.is_headline);
    let pairs: std::collections::BTreeSet<_> = verdicts.map(|it| (&*it.engine, &*it.against)).collect();
    let expected = [
        ("beacon 1 thread", "patient-original 1 thread"),
        ("beacon 2 threads", "patient-original 2 threads"),
    ];
    assert_eq!(pairs.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn the_wall_time_has_a_table_whose_printed_parts_add_up() {
    let view = View { tables: vec![TableId::WallTime], ..View::default() };
    let text = rendered_with(&default_suite_record(), "table", Some(80), view.clone());
    assert_fits(&text, 80);
    let account = text.split_once("wall time from the start").unwrap().1;
    let rows: Vec<&str> =
        account.lines().skip_while(|line| !line.starts_with('─')).skip(1).take(12).collect();
    // Twelve rows, each with six parts, the rest and the total.
    for row in &rows {
        let numbers: Vec<f64> =
            row.split_whitespace().rev().map_while(|word| word.parse().ok()).take(8).collect();
        let (total, parts) = numbers.split_first().unwrap();
        assert!(parts.len() == 7 && (parts.iter().sum::<f64>() - total).abs() < 1e-6, "{row}");
    }
    assert!(rows[11].trim_start().starts_with("beacon"), "{text}");
    assert!(
        words(&text).contains("end of the load to the request is in no part; the cold start includes it"),
        "{text}"
    );
    assert!(!text.contains("compile"), "no engine says that it compiles: {text}");
    let markdown = rendered_with(&default_suite_record(), "markdown", None, view);
    assert!(markdown.contains("| case | engine | spawn ms | import ms | weights ms |"), "{markdown}");
    assert!(!rendered(&default_suite_record(), "table", 80).contains("wall time"));
}

#[test]
fn a_case_that_is_too_slow_shows_only_its_message() {
    let mut record = default_suite_record();
    // Case 11 is `decode` of `beacon`.
    let slow = failure(1, Some(11), "too_slow", "warm-up 1", "too slow (> 60 s)");
    record.take(Entry::Failure(slow));
    let text = rendered(&record, "table", 100);
    assert!(text.contains("         beacon           0.9.1   too slow (> 60 s)\n"), "{text}");
    assert!(rendered(&record, "csv", 100).lines().any(|line| line.ends_with(",too_slow,too slow (> 60 s)")));
}

#[test]
fn a_setting_other_than_requested_gives_a_warning() {
    let mut selection = selection(&["beacon"]);
    (selection.threads, selection.dtypes) = (vec![1], vec![Some("bf16".into())]);
    let report = Report::of(&measured(&selection, &[BEACON]));
    assert_eq!(
        report.warnings,
        [
            "beacon: reports dtype `f32`, but `bf16` was requested (5 times)",
            "beacon: reports threads `2`, but `1` was requested (5 times)",
        ]
    );
    assert_eq!(
        (report.rows[0].engine.dtype.as_ref().map(Dtype::to_string), report.rows[0].engine.threads),
        (Some("f32".into()), Some(2))
    );
}

#[test]
fn engines_without_their_reference_have_no_ratios_and_the_table_says_why() {
    let mut selection = selection(&["reed", "beacon"]);
    let table_of =
        |selection: &crate::plan::Selection| rendered(&measured(selection, &[REED, BEACON]), "table", 100);
    assert!(table_of(&selection).contains("no ratios: the reference `patient-original` was not measured"));
    assert!(!table_of(&selection).contains("vs ref"));
    selection.reference = String::new();
    assert!(table_of(&selection).contains("no ratios: no reference is named"));
}

#[test]
fn few_values_mark_their_p99_as_uncertain() {
    let selection = Selection { axes: AxisValues::with_new_tokens(4), ..decoding(&["beacon"]) };
    let text = rendered(&measured(&selection, &[BEACON]), "table", 100);
    assert!(text.contains("~1.99"), "{text}");
    // The 15 requests of four tokens have 45 inter-token gaps.
    assert!(
        text.contains(
            "\n~ uncertain, because it has few values: a p99 needs 100, a p95 20; hint: `--iterations 7`\n"
        ),
        "{text}"
    );
}

#[test]
fn gpus_are_in_the_caption_where_an_engine_computed_on_one() {
    let mut record = default_suite_record();
    let gpu = crate::machine::Gpu {
        name: Some("Pretence\u{1b}[2J 9000".into()),
        memory_bytes: Some(80 << 30),
        ..Default::default()
    };
    record.header.machine.gpus = vec![gpu.clone(), gpu];
    assert!(!rendered(&record, "table", 100).contains("Pretence"));
    for launch in &mut record.launches {
        launch.loaded.as_mut().unwrap().facts.device = Some("cuda".into());
    }
    let text = rendered(&record, "table", 100);
    assert!(text.contains("AMD EPYC, 2 cores, 2 x Pretence 9000 80 GiB; orchestrate"), "{text}");
}

#[test]
fn the_legend_ignores_names_that_look_like_marks() {
    let invented = InventedEngine { name: "~reed", dtype: "half/odd", ..REED };
    let mut selection = selection(&["patient-original", "~reed"]);
    selection.scenarios = crate::plan::scenario::named("load").unwrap();
    let other =
        crate::plan::Model { name: "which?".into(), path: "/w".into(), ..crate::plan::Model::default() };
    selection.models.push(other);
    let mut record = measured(&selection, &[ORIGINAL, invented]);
    for launch in &mut record.launches {
        let facts = &mut launch.loaded.as_mut().unwrap().facts;
        (facts.weights_dtype, facts.compute_dtype) = (Some("odd/8".into()), None);
    }
    let text = rendered(&record, "table", 120);
    assert!(text.contains("~reed") && text.contains("which?") && text.contains("odd/8"), "{text}");
    for explanation in ["~ uncertain", "a setting with ?", "dtype a/b"] {
        assert!(!text.contains(explanation), "{explanation}: {text}");
    }
}
