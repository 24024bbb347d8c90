use super::*;
use crate::analysis::metric::named;
use crate::plan::Mode;
use crate::record::RequestKind;
use crate::record::specimen::planned;
use crate::record::specimen::timed::{MS, answer, launch, measured, selection};

fn index_of(name: &str) -> usize {
    METRICS.iter().position(|metric| metric.name() == name).unwrap()
}

#[test]
fn values_are_found_by_the_numbers_of_block_and_round() {
    let record = measured(&selection(&["a", "b"], &["decode"]), 2, |at| {
        Some(1.0 + f64::from(10 * at.block + at.round) + 100.0 * at.configuration as f64)
    });
    let found = Measured::of(&record);
    let gaps = found.blocks(0, index_of("inter_token"), 1).unwrap();
    let ms = |ns: &f64| (ns / MS).round() as u32;
    let rounds = |block: u32| gaps[&block].iter().map(|(round, ns)| (*round, ms(ns))).collect::<Vec<_>>();
    assert_eq!(
        (rounds(0), rounds(1)),
        (vec![(0, 101), (1, 102), (2, 103)], vec![(0, 111), (1, 112), (2, 113)])
    );
}

#[test]
fn the_value_of_a_round_is_the_median_of_its_values() {
    let mut record = measured(&selection(&["a"], &["decode"]), 1, |_| Some(2.0));
    let times = record.samples[0].iteration.sequences[0].token_ns.as_mut().unwrap();
    // One of 63 gaps is a second longer.
    times[40..].iter_mut().for_each(|ns| *ns += 1_000_000_000);
    let found = Measured::of(&record);
    assert_eq!(found.blocks(0, index_of("inter_token"), 0).unwrap()[&0][&0], 2.0 * MS);
}

#[test]
fn only_measured_requests_count() {
    let selection = selection(&["a"], &["decode"]);
    let mut record = planned(&selection);
    let launch = launch(&mut record, 0, 0, "a");
    for (kind, ms) in
        [(RequestKind::Warmup, 90.0), (RequestKind::Discarded, 80.0), (RequestKind::Measured, 2.0)]
    {
        answer(&mut record, launch, 0, 0, ms);
        record.samples.last_mut().unwrap().kind = kind;
    }
    let found = Measured::of(&record);
    let gaps = found.blocks(0, index_of("inter_token"), 0).unwrap();
    assert_eq!(gaps[&0], Rounds::from([(0, 2.0 * MS)]));
}

#[test]
fn the_first_request_of_a_round_counts_where_a_launch_was_replaced() {
    let mut record = planned(&selection(&["a"], &["decode"]));
    // Two launches in block 4: the first answers round 0, the second rounds 0 and 1.
    let first = launch(&mut record, 0, 4, "a");
    answer(&mut record, first, 0, 0, 2.0);
    let second = launch(&mut record, 0, 4, "a");
    answer(&mut record, second, 0, 0, 50.0);
    answer(&mut record, second, 0, 1, 3.0);
    record.samples[0].peak_resident_bytes = Some(100);
    (1..3).for_each(|sample| record.samples[sample].peak_resident_bytes = Some(200 + sample as u64));
    let found = Measured::of(&record);
    let gaps = found.blocks(0, index_of("inter_token"), 0).unwrap();
    assert_eq!(*gaps, Blocks::from([(4, Rounds::from([(0, 2.0 * MS), (1, 3.0 * MS)]))]));
    // The table uses the same requests: the 63 gaps of each.
    let values = Values::of(&record);
    let shown = values.of_metric(0, named("inter_token").unwrap()).launches();
    assert_eq!(shown, [vec![2.0 * MS; 63], vec![3.0 * MS; 63]]);
    assert_eq!(values.samples(0).count(), 2);
    // The largest value of each launch counts; the block has the median of the two launches.
    let memory = found.blocks(0, index_of("peak_memory"), 0).unwrap();
    assert_eq!(*memory, Blocks::from([(4, Rounds::from([(0, 151.0)]))]));
}

#[test]
fn in_one_shot_mode_the_requests_of_a_block_are_its_rounds() {
    let mut selection = selection(&["a"], &["decode"]);
    selection.mode = Mode::OneShot;
    let mut record = planned(&selection);
    for round in 0..3 {
        let launch = launch(&mut record, 0, 0, "a");
        answer(&mut record, launch, 0, round, 2.0);
    }
    let found = Measured::of(&record);
    assert_eq!(found.blocks(0, index_of("total"), 0).unwrap()[&0].len(), 3);
}

#[test]
fn the_load_time_appears_only_in_the_load_workload_if_there_is_one() {
    let record = measured(&selection(&["a"], &["load", "decode"]), 1, |_| Some(2.0));
    let found = Measured::of(&record);
    let labels: Vec<&str> = found.workloads.iter().map(|it| it.label.as_str()).collect();
    assert_eq!(labels, ["load", "decode"]);
    let has = |workload| found.blocks(workload, index_of("load"), 0).is_some();
    assert_eq!((has(0), has(1)), (true, false));
    let record = measured(&selection(&["a"], &["decode"]), 1, |_| Some(2.0));
    assert!(Measured::of(&record).blocks(0, index_of("load"), 0).is_some());
}

#[test]
fn a_launch_for_output_checks_gives_no_values() {
    let mut record = measured(&selection(&["a"], &["decode"]), 2, |_| Some(2.0));
    record.launches[1].for_output_checks = true;
    let values = Values::of(&record);
    assert_eq!((values.launches(0).len(), values.samples(0).count()), (1, 3));
    let blocks = values.of_metric(0, named("decode_rate").unwrap()).blocks();
    assert_eq!(blocks.keys().collect::<Vec<_>>(), [&0]);
    assert_eq!(record.measured().count(), 3);
    assert!(headline_so_far(&record, 1, 0).is_none());
    assert_eq!(values.of_request(&record.samples[5], named("total").unwrap()), Vec::<f64>::new());
}

#[test]
fn a_request_of_any_kind_has_the_values_of_a_metric() {
    let mut record = measured(&selection(&["a"], &["decode"]), 1, |at| Some(2.0 + f64::from(at.round)));
    record.samples[0].kind = RequestKind::Warmup;
    let values = Values::of(&record);
    let of_request = |sample: usize, name| values.of_request(&record.samples[sample], named(name).unwrap());
    // The first run is that of request 0, the warm-up.
    let first_run = of_request(0, "first_run");
    assert_eq!([of_request(0, "total"), of_request(1, "first_run")], [first_run.clone(), first_run.clone()]);
    assert_eq!(first_run.len(), 1);
}

#[test]
fn the_headline_shown_during_a_launch_counts_only_that_launch() {
    let mut record = measured(&selection(&["a"], &["decode"]), 2, |at| Some(2.0 + f64::from(at.block)));
    let (metric, value) = headline_so_far(&record, 1, 0).unwrap();
    assert_eq!((metric.name(), value.round()), ("decode_rate", 333.0));
    assert!(headline_so_far(&record, 2, 0).is_none());
    record.launches.push(Launch { launch: 2, ..record.launches[1].clone() });
    assert!(headline_so_far(&record, 2, 0).is_none());
}
