use super::*;
use crate::analysis::claims::specimen::{BEACON_INDEX, decode_record, samples, with_busy_cores};
use crate::analysis::values::Measured;
use crate::plan::{Extent as PlannedExtent, Selection};
use crate::record::specimen::*;
use crate::record::{Entry, Sample};
use crate::report::Report;
use crate::report::tests as reports;
use stats::Summary;

/// A record of the default suite: five blocks, each with one measured launch of every configuration.
const DEFAULT_SUITE_RECORD: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/records/default-suite.jsonl"));

#[test]
fn a_table_and_a_comparison_use_the_same_values() {
    let record = RunRecord::parse(DEFAULT_SUITE_RECORD).unwrap();
    let data = RunData::of(&record);
    let measured = Measured::from(&data.values);
    let mut compared = 0;
    for (index, case) in record.header.plan.cases.iter().enumerate() {
        let row = data.row(index);
        let workload = measured.workloads.iter().position(|it| it.label == case.workload.label).unwrap();
        for (position, metric) in METRICS.iter().enumerate().filter(|(_, metric)| metric.is_compared()) {
            let blocks = measured.blocks(workload, position, case.configuration);
            let shown = row.summary(metric.id);
            assert_eq!(shown.is_some(), blocks.is_some(), "{} of case {index}", metric.name());
            let (Some(shown), Some(blocks)) = (shown, blocks) else { continue };
            let rounds: Vec<Vec<f64>> =
                blocks.values().map(|block| block.values().copied().collect()).collect();
            let summary = Summary::of(&rounds).unwrap();
            if metric.id == MetricId::INTER_TOKEN {
                // A request has many inter-token gaps. The table uses all of them, a comparison uses the median of each request.
                assert!((shown.min..=shown.max).contains(&summary.estimate));
            } else {
                assert_eq!(*shown, summary, "{} of case {index}", metric.name());
            }
            compared += 1;
        }
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn engines_without_any_sample_are_named_together() {
    let engines = [ORIGINAL, BEACON, REED];
    let mut record = measured(&selection(&["patient-original", "beacon", "reed"]), &engines);
    let cases_of = |record: &RunRecord, configuration| record.header.plan.cases_of(configuration);
    let (first, all) = (cases_of(&record, 0)[0], [cases_of(&record, 1), cases_of(&record, 2)].concat());
    record.samples.retain(|it| it.case != first && !all.contains(&it.case));
    let cases = record.header.plan.cases.clone();
    let rows = cases.iter().filter(|it| record.header.plan.configurations[it.configuration].role.is_none());
    let [notice] = RunData::of(&record).notices().try_into().unwrap();
    let expected = format!(
        "cases without samples: {} of {}: every case of `beacon`, `reed`; {} of `patient-original`",
        all.len() + 1,
        rows.count(),
        cases[first].workload.label
    );
    assert_eq!(notice, expected);
}

#[test]
fn a_recorded_warning_that_repeats_a_contradicted_claim_is_shown_once() {
    let mut record = decode_record(|record| samples(record).for_each(|it| it.answered_ns += 100_000_000));
    let recorded = |message: &str| Warning { configuration: Some(BEACON_INDEX), message: message.into() };
    record.warnings =
        vec![recorded("decode: its clock leaves out 100 ms of each request"), recorded("noisy")];
    // The longer requests would otherwise show fewer busy cores than reported threads.
    record = with_busy_cores(record);
    let warnings = Report::of(&record).warnings;
    assert_eq!(warnings.iter().filter(|it| it.contains("leaves out")).count(), 1, "{warnings:?}");
    assert!(warnings.contains(&"beacon: noisy".to_string()), "{warnings:?}");
}

#[test]
fn a_warning_about_a_twin_names_its_row_and_is_left_out_if_the_row_has_the_same_one() {
    let mut record = RunRecord::parse(DEFAULT_SUITE_RECORD).unwrap();
    let plan = &record.header.plan;
    let (row, twin) = plan.row_indices().find_map(|row| Some((row, plan.twin_of(row)?))).unwrap();
    let label = plan.configurations[row].label.clone();
    let recorded = |configuration, message: &str| Warning {
        configuration: Some(configuration),
        message: message.into(),
    };
    record.warnings = vec![recorded(row, "noisy"), recorded(twin, "noisy"), recorded(twin, "left processes")];
    let warnings = Report::of(&record).warnings;
    let about_twin: Vec<&String> = warnings.iter().filter(|it| it.contains("twin")).collect();
    assert_eq!(about_twin, [&format!("{label} (its twin, which shows the noise): left processes")]);
    assert!(warnings.contains(&format!("{label}: noisy")), "{warnings:?}");
}

const BLOCKS: u32 = 5;
const ROUNDS: u32 = 625;
const TOKENS: u32 = 64;

/// A large record: four engines and a twin, in five blocks of 625 rounds, with 64 tokens in each sample.
fn large() -> RunRecord {
    let selection = Selection {
        rounds: Some(ROUNDS),
        extent: PlannedExtent { blocks: Some(BLOCKS), ..PlannedExtent::default() },
        ..reports::decoding(&["patient-original", "beacon", "reed", "motor"])
    };
    let mut record =
        measured(&selection, &[ORIGINAL, BEACON, REED, InventedEngine { name: "motor", ..REED }]);
    for sample in &mut record.samples {
        // Numbers of a realistic size: a launch of several hours, token ids of a large vocabulary.
        (sample.sent_ns, sample.answered_ns) =
            (sample.sent_ns + 9_000_000_000_000, sample.answered_ns + 9_000_000_000_000);
        for ids in sample.iteration.sequences.iter_mut().filter_map(|sequence| sequence.output_ids.as_mut()) {
            ids.iter_mut().zip(0..).for_each(|(id, index)| *id = 20_000 + 997 * index % 100_000);
        }
    }
    record
}

/// The bytes of the file of this record.
fn written(record: &RunRecord) -> Vec<u8> {
    let mut bytes = protocol::encode(&Entry::Header(Box::new(record.header.clone())));
    let mut write = |entry: Entry| bytes.extend(protocol::encode(&entry));
    record.launches.iter().for_each(|it| write(Entry::Launch(Box::new(it.clone()))));
    record.samples.iter().for_each(|it| write(Entry::Sample(Box::new(it.clone()))));
    record.warm_ups.iter().for_each(|it| write(Entry::WarmUp(*it)));
    record.closed.iter().for_each(|it| write(Entry::Closed(it.clone())));
    record.end.iter().for_each(|it| write(Entry::End((*it).into())));
    bytes
}

/// `scripts/large-record` measures time and memory on such a record.
#[test]
fn a_record_with_a_million_token_times_is_read_and_reported_correctly() {
    let record = large();
    let token_times = |sample: &Sample| sample.iteration.sequences[0].token_ns.as_ref().map_or(0, Vec::len);
    assert!(record.samples.iter().map(token_times).sum::<usize>() > 1_000_000);
    let read = RunRecord::parse(written(&record).as_slice()).unwrap();
    assert!(read == record, "the record that was read differs from the written one");

    let report = Report::of(&read);
    let row = reports::row(&report, "decode", "beacon");
    let gaps = row.summary(MetricId::INTER_TOKEN).unwrap();
    assert_eq!((gaps.n, gaps.launches), ((BLOCKS * ROUNDS * (TOKENS - 1)) as usize, BLOCKS as usize));
    // The same values, computed here from the samples.
    let of_beacon =
        |sample: &&Sample| sample.case == 1 && sample.kind == crate::record::RequestKind::Measured;
    let samples = read.samples.iter().filter(of_beacon);
    let mut expected: Vec<u64> = samples
        .flat_map(|sample| sample.iteration.sequences[0].token_ns.as_ref().unwrap().windows(2))
        .map(|pair| pair[1] - pair[0])
        .collect();
    expected.sort_unstable();
    let middle = (expected.len() - 1) / 2;
    assert!(!expected.len().is_multiple_of(2) && gaps.p50 == expected[middle] as f64, "{gaps:?}");
    assert_eq!((gaps.min, gaps.max), (expected[0] as f64, expected[expected.len() - 1] as f64));
    let mean = expected.iter().sum::<u64>() as f64 / expected.len() as f64;
    assert!((gaps.mean / mean - 1.0).abs() < 1e-12);
    let pair = report.verdicts.pair(row, row.case.headline.unwrap()).unwrap();
    // 21.7 ms a token against 1.93 ms; one token of each sample takes 3 ms more.
    assert!((pair.ratio().unwrap() / 11.0 - 1.0).abs() < 0.02);
    assert_eq!(report.verdicts.all_pairs.iter().filter(|pair| pair.is_headline).count(), 6);
}
