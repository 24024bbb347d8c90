use super::*;
use crate::analysis::agreement::specimen::*;
use crate::plan::Verification;
use crate::record::RunRecord;
use crate::record::specimen::{BEACON, ORIGINAL, REED, failure};

/// A record of the verifier `patient-original`, and of `beacon` and `reed`, whose log-probabilities differ by these numbers of
/// nats. `reed` is the fastest.
fn record(beacon: f64, reed: f64) -> RunRecord {
    let selection = crate::report::tests::decoding(&["patient-original", "beacon", "reed"]);
    with_deviations(selection, &[ORIGINAL, BEACON, REED], &[0.0, beacon, reed])
}

fn labels<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Vec<&'a str> {
    rows.into_iter().map(|row| row.engine.label.as_str()).collect()
}

/// The labels of the ranked rows, and the labels of the other rows with the reasons.
fn ranking(report: &Report) -> (Vec<&str>, Vec<(&str, Unranked)>) {
    let mut rankings = rankings(report);
    assert_eq!(rankings.len(), 1);
    let Ranking { ranked, unranked, .. } = rankings.remove(0);
    (labels(ranked), unranked.into_iter().map(|(row, why)| (row.engine.label.as_str(), why)).collect())
}

#[test]
fn verified_rows_are_ranked_by_the_headline() {
    let report = Report::of(&record(0.0, 0.0));
    assert_eq!(ranking(&report), (vec!["reed", "beacon", "patient-original"], vec![]));
    let rankings = rankings(&report);
    assert_eq!((rankings[0].case, rankings[0].metric.name()), ("decode", "decode_rate"));
    assert_eq!(labels(rankings[0].best()), ["reed"]);
    assert_eq!(labels(rankings[0].next_best()), ["beacon"]);
}

#[test]
fn wrong_unverified_contradicted_and_failed_rows_have_no_rank() {
    let wrong = Report::of(&record(0.0, 9.0));
    assert_eq!(ranking(&wrong), (vec!["beacon", "patient-original"], vec![("reed", Unranked::Wrong)]));
    let mut unverified = record(0.0, 0.0);
    samples(&mut unverified, 2).for_each(|it| it.prompt_hash.clear());
    let unverified = Report::of(&unverified);
    assert_eq!(
        ranking(&unverified),
        (vec!["beacon", "patient-original"], vec![("reed", Unranked::Unverified)])
    );
    let mut contradicted = Report::of(&record(0.0, 0.0));
    contradicted.rows[1].contradicted = true;
    assert_eq!(
        ranking(&contradicted),
        (vec!["reed", "patient-original"], vec![("beacon", Unranked::Contradicted)])
    );
    let mut failed = record(0.0, 0.0);
    failed.failures.push(failure(2, None, "exited", "sample 3", "killed by signal 9"));
    let failed = Report::of(&failed);
    assert_eq!(ranking(&failed), (vec!["beacon", "patient-original"], vec![("reed", Unranked::Failed)]));
}

#[test]
fn no_row_has_a_rank_where_no_output_could_be_verified() {
    let report = Report::of(&not_checked());
    let (ranked, unranked) = ranking(&report);
    assert_eq!(ranked, Vec::<&str>::new());
    assert_eq!(unranked, [("beacon", Unranked::Unverified), ("patient-original", Unranked::Unverified)]);
    let mut unchecked = not_checked();
    unchecked.header.plan.verification = Verification::Off;
    let unchecked = Report::of(&unchecked);
    assert_eq!(ranking(&unchecked).0, Vec::<&str>::new());
}

#[test]
fn rows_on_different_models_are_not_ranked_together() {
    let mut record = record(0.0, 0.0);
    record.header.plan.configurations[2].model.name = "another".into();
    let report = Report::of(&record);
    let rankings = rankings(&report);
    let models: Vec<&str> = rankings.iter().map(|it| it.model).collect();
    assert_eq!(models, ["embedded", "another"]);
    assert_eq!(labels(rankings[0].ranked.iter().copied()), ["beacon", "patient-original"]);
}

#[test]
fn a_comparison_is_the_same_from_both_sides() {
    let report = Report::of(&record(0.0, 0.0));
    let row = |label: &str| report.rows.iter().find(|row| row.engine.label == label).unwrap();
    let (beacon, reed) = (row("beacon"), row("reed"));
    let (forward, backward) =
        (compared(&report, reed, beacon).unwrap(), compared(&report, beacon, reed).unwrap());
    assert_eq!((forward.verdict(), backward.verdict()), (Some(Verdict::Faster), Some(Verdict::Slower)));
    let ratio = forward.ratio().unwrap();
    assert!((1.6..1.8).contains(&ratio), "{ratio}");
    assert!((ratio * backward.ratio().unwrap() - 1.0).abs() < 1e-12);
    let ((low, high), (inverse_low, inverse_high)) = (forward.bounds().unwrap(), backward.bounds().unwrap());
    assert!(low < ratio && ratio < high && inverse_low < inverse_high);
    assert!((low * inverse_high - 1.0).abs() < 1e-12 && (high * inverse_low - 1.0).abs() < 1e-12);
    assert!(compared(&report, reed, reed).is_none());
}
