//! Test: a record with a million token times is read and reported, and all of them count. `scripts/large-record` says how fast.

use super::*;
use crate::plan::{Extent as Planned, Selection};
use crate::record::specimen::*;
use crate::record::{Entry, RunRecord, Sample};

const BLOCKS: u32 = 5;
const ROUNDS: u32 = 625;
const TOKENS: u32 = 64;

/// Four engines and a twin, in five blocks of 625 rounds of 64 tokens: 15,625 measured samples, and their warm-ups.
fn large() -> RunRecord {
    let selection = Selection {
        scenarios: crate::plan::scenario::named("decode").unwrap(),
        rounds: Some(ROUNDS),
        extent: Planned { blocks: Some(BLOCKS), ..Planned::default() },
        ..selection(&["patient-original", "beacon", "reed", "motor"])
    };
    let mut record = measured(&selection, &[BASELINE, BEACON, REED, Invented { name: "motor", ..REED }]);
    for sample in &mut record.samples {
        // Numbers of a realistic size: a launch of several hours, token ids of a large vocabulary.
        (sample.sent_ns, sample.answered_ns) =
            (sample.sent_ns + 9_000_000_000_000, sample.answered_ns + 9_000_000_000_000);
        for ids in sample.iteration.sequences.iter_mut().filter_map(|sequence| sequence.output_ids.as_mut()) {
            ids.iter_mut().zip(0..).for_each(|(id, place)| *id = 20_000 + 997 * place % 100_000);
        }
    }
    record
}

fn lines(record: &RunRecord) -> Vec<u8> {
    let mut bytes = protocol::encode(&Entry::Header(Box::new(record.header.clone())));
    let mut write = |entry: Entry| bytes.extend(protocol::encode(&entry));
    record.launches.iter().for_each(|it| write(Entry::Launch(Box::new(it.clone()))));
    record.samples.iter().for_each(|it| write(Entry::Sample(Box::new(it.clone()))));
    record.warm_ups.iter().for_each(|it| write(Entry::WarmUp(*it)));
    record.closed.iter().for_each(|it| write(Entry::Closed(it.clone())));
    record.end.iter().for_each(|it| write(Entry::End(*it)));
    bytes
}

#[test]
fn a_record_with_a_million_token_times_is_read_and_reported_right() {
    let record = large();
    let times = |sample: &Sample| sample.iteration.sequences[0].token_ns.as_ref().map_or(0, Vec::len);
    assert!(record.samples.iter().map(times).sum::<usize>() > 1_000_000);
    let read = RunRecord::parse(lines(&record).as_slice()).unwrap();
    assert!(read == record, "what was read is not what was written");

    let report = Report::of(&read);
    let row = report.rows.iter().find(|row| row.engine.label == "beacon").unwrap();
    let gaps = &row.figure(crate::analysis::metric::MetricId::INTER_TOKEN).unwrap().summary;
    assert_eq!((gaps.n, gaps.launches), ((BLOCKS * ROUNDS * (TOKENS - 1)) as usize, BLOCKS as usize));
    // The same value from the record alone, by independent code.
    let of_it = |sample: &&Sample| sample.case == 1 && sample.kind == crate::record::RequestKind::Measured;
    let samples = read.samples.iter().filter(of_it);
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
    let judged = report.verdicts.of_row(row, false).unwrap();
    assert!((judged.times().unwrap() / 11.0 - 1.0).abs() < 0.02);
    assert_eq!(report.verdicts.all_pairs.iter().filter(|judged| judged.is_headline).count(), 6);
}
