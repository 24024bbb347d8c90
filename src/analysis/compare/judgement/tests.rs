use super::*;
use crate::analysis::agreement::specimen;
use crate::plan::{Role, Selection};
use crate::record::specimen::timed::{measured, selection};
use crate::record::{CalibratedFloor, Failure, FailureKind, Header};
use stats::{NoiseFloor, Random};

const FORCE: bool = true;

fn single_engine() -> Selection {
    selection(&["a"], &["decode"])
}

/// A quiet run in which a token takes 10 ms, multiplied by `ratio`.
fn run(selection: &Selection, ratio: f64, seed: u64) -> RunRecord {
    let mut random = Random::seeded(seed);
    measured(selection, 5, move |_| Some(10.0 * ratio * (0.002 * random.normal()).exp()))
}

fn compare(base: &RunRecord, new: &RunRecord) -> Judgement {
    judge(base, new, SeverityThresholds::default(), !FORCE).unwrap()
}

fn headline(judgement: &Judgement) -> &Change {
    judgement.changes.iter().find(|it| it.gating).unwrap()
}

/// The conclusion if a token takes `ratio` times as long. By default, a loss of 10 % of the rate is a warning, and a loss of more
/// than 20 % is critical.
fn conclusion(ratio: f64, fail_on: Severity) -> Conclusion {
    compare(&run(&single_engine(), 1.0, 1), &run(&single_engine(), ratio, 2)).conclusion(fail_on)
}

#[test]
fn critical_headline_changes_fail_and_warnings_fail_only_with_fail_on_warning() {
    use Severity::{Critical, Warning};
    assert_eq!(
        [conclusion(1.0, Critical), conclusion(1.05, Critical), conclusion(0.5, Warning)],
        [Conclusion::Passed; 3]
    );
    assert_eq!(
        [conclusion(1.15, Critical), conclusion(1.15, Warning)],
        [Conclusion::Passed, Conclusion::Worse]
    );
    assert_eq!([conclusion(1.4, Critical), conclusion(1.4, Warning)], [Conclusion::Worse; 2]);
}

#[test]
fn a_comparison_with_an_inconclusive_headline_is_inconclusive_unless_another_is_worse() {
    let (base, mut new) = (run(&single_engine(), 1.0, 1), run(&single_engine(), 1.0, 2));
    let slowdown = |block: u32| if block.is_multiple_of(2) { 1 } else { 2 };
    for sample in &mut new.samples {
        let times = sample.iteration.sequences[0].token_ns.as_mut().unwrap();
        times.iter_mut().for_each(|ns| *ns *= slowdown(new.launches[sample.launch as usize].block));
    }
    let inconclusive = compare(&base, &new);
    assert_eq!(headline(&inconclusive).comparison().unwrap().decision.verdict, Some(Verdict::Inconclusive));
    assert_eq!(inconclusive.conclusion(Severity::Critical), Conclusion::Inconclusive);
    // A run with too few blocks is inconclusive too.
    let quick = measured(&single_engine(), 1, |_| Some(10.0));
    assert_eq!(compare(&base, &quick).conclusion(Severity::Critical), Conclusion::Inconclusive);
    let mut two_headlines = inconclusive.clone();
    two_headlines.changes.push(headline(&compare(&base, &run(&single_engine(), 2.0, 3))).clone());
    assert_eq!(two_headlines.conclusion(Severity::Critical), Conclusion::Worse);
}

#[test]
fn thresholds_decide_the_severity() {
    let strict = SeverityThresholds::new(0.01, 0.03).unwrap();
    let judgement =
        judge(&run(&single_engine(), 1.0, 1), &run(&single_engine(), 1.06, 2), strict, !FORCE).unwrap();
    assert_eq!(
        (headline(&judgement).severity, judgement.conclusion(Severity::Critical)),
        (Severity::Critical, Conclusion::Worse)
    );
}

#[test]
fn only_headline_metrics_decide_the_conclusion() {
    let (base, mut new) = (run(&single_engine(), 1.0, 1), run(&single_engine(), 1.0, 2));
    new.samples.iter_mut().for_each(|it| it.peak_resident_bytes = Some(900_000_000));
    let judgement = compare(&base, &new);
    let memory = judgement.changes.iter().find(|it| it.metric.name() == "peak_memory").unwrap();
    assert_eq!(
        (memory.severity, memory.gating, judgement.conclusion(Severity::Warning)),
        (Severity::Critical, false, Conclusion::Passed)
    );
    assert_eq!(memory.sentence, "`a` needs 9.00x as much memory as before [9.00, 9.00]");
    assert_eq!((memory.base, memory.new), (Some(1e8), Some(9e8)));
}

#[test]
fn a_headline_that_fails_now_is_critical_and_one_that_failed_before_is_listed() {
    let mut fails = run(&single_engine(), 1.0, 2);
    fails.samples.retain(|sample| sample.launch < 2);
    fails.failures.push(Failure {
        case: Some(0),
        kind: FailureKind::Exited,
        when: "sample 3".into(),
        message: "killed by signal 9\u{1b}[2J".into(),
        ..Failure::default()
    });
    let successful = run(&single_engine(), 1.0, 1);
    let now = compare(&successful, &fails);
    assert_eq!(
        (headline(&now).severity, now.conclusion(Severity::Critical)),
        (Severity::Critical, Conclusion::Worse)
    );
    assert_eq!(
        headline(&now).sentence,
        "`a`, decode: fails now, but was measured before (exited at sample 3: killed by signal 9)"
    );
    let before = compare(&fails, &successful);
    assert_eq!(before.conclusion(Severity::Warning), Conclusion::Passed);
    assert!(headline(&before).sentence.contains("valid now, but not before"));
    // If every engine fails as before, the conclusion is `Inconclusive`.
    assert_eq!(compare(&fails, &fails).conclusion(Severity::Warning), Conclusion::Inconclusive);
}

#[test]
fn a_used_up_budget_is_no_regression_and_a_new_failure_does_not_pass() {
    let failing = |kind: &str| {
        let mut record = run(&single_engine(), 1.0, 2);
        record.samples.clear();
        let (case, kind) = (Some(0), FailureKind::parse(kind));
        record.failures.push(Failure { case, kind, message: "words".into(), ..Failure::default() });
        record
    };
    let successful = run(&single_engine(), 1.0, 1);
    let conclusion_of = |base: &RunRecord, new: &RunRecord| compare(base, new).conclusion(Severity::Warning);
    assert_eq!(conclusion_of(&successful, &failing("no_time")), Conclusion::Inconclusive);
    assert_eq!(
        headline(&compare(&successful, &failing("no_time"))).sentence,
        "`a`, decode: not compared: the time budget ended before it was measured"
    );
    assert_eq!(conclusion_of(&successful, &failing("too_slow")), Conclusion::Worse);
    assert_eq!(conclusion_of(&failing("no_time"), &failing("exited")), Conclusion::Inconclusive);
}

#[test]
fn a_headline_missing_from_the_new_run_does_not_pass() {
    let both = selection(&["a"], &["prefill", "decode"]);
    let base = run(&both, 1.0, 1);
    let mut new = run(&both, 1.0, 2);
    new.samples.retain(|sample| sample.case == 0);
    new.end = Some(End::Interrupted);
    let judgement = compare(&base, &new);
    assert_eq!(judgement.conclusion(Severity::Critical), Conclusion::Inconclusive);
    assert_eq!(judgement.notices, ["the new record was interrupted: only its recorded samples are compared"]);
    assert!(judgement.changes.iter().any(|it| matches!(it.outcome, Outcome::NotCompared(_))));
    assert_eq!(judgement.means[0].ratio, None);
}

#[test]
fn incomparable_records_are_refused_or_compared_by_force_with_a_warning() {
    let (base, mut new) = (run(&single_engine(), 1.0, 1), run(&single_engine(), 1.0, 2));
    new.header.machine.cpu.model = Some("another".into());
    let refused = judge(&base, &new, SeverityThresholds::default(), !FORCE).unwrap_err();
    assert!(refused.to_string().contains("CPU: base `AMD EPYC`, new `another`"));
    let forced = judge(&base, &new, SeverityThresholds::default(), FORCE).unwrap();
    assert_eq!((forced.forced_differences.len(), forced.changes.is_empty()), (1, false));
    // Records that share nothing cause no panic.
    let nothing = RunRecord { header: Header::default(), ..RunRecord::default() };
    let forced = judge(&base, &nothing, SeverityThresholds::default(), FORCE).unwrap();
    assert_eq!((forced.changes.len(), forced.conclusion(Severity::Critical)), (0, Conclusion::Inconclusive));
}

#[test]
fn another_engine_is_named_with_the_differing_settings() {
    let base = run(&single_engine(), 1.0, 1);
    let new = run(&selection(&["b"], &["decode"]), 0.5, 2);
    let judgement = compare(&base, &new);
    let sentence = &headline(&judgement).sentence;
    assert!(sentence.starts_with("`b` decodes 2.0"), "{sentence}");
    assert!(sentence.contains(" as fast as `a` before ["), "{sentence}");
    assert_eq!(judgement.notes[0], "`b`: engine `b`, was `a`");
}

#[test]
fn configurations_and_workloads_of_only_one_record_are_listed() {
    let base = run(&selection(&["a", "b"], &["decode", "prefill"]), 1.0, 1);
    let new = run(&selection(&["a", "c"], &["decode", "load"]), 1.0, 2);
    let notes = compare(&base, &new).notes;
    for note in [
        "configurations only in the base: `b`",
        "configurations only in the new run: `c`",
        "workloads only in the base: `prefill`",
        "workloads only in the new run: `load`",
    ] {
        assert!(notes.contains(&note.to_string()), "{note}: {notes:?}");
    }
    // The hint names only configurations that both records have.
    assert!(
        notes.last().unwrap().contains("`orchestrate calibrate -e a -s decode --depth 0 --threads 2`"),
        "{notes:?}"
    );
}

#[test]
fn missing_calibrations_are_listed_as_a_command() {
    let both = selection(&["a", "b"], &["ttft", "decode"]);
    let mut base = run(&both, 1.0, 1);
    let mut new = run(&both, 1.0, 2);
    new.header.plan.configurations[0].command = vec!["/some where/a".into()];
    new.header.plan.configurations[1].preset = Some("fast".into());
    new.header.plan.configurations[1].command = vec!["/built/engine-b".into()];
    let last = |base: &RunRecord, new: &RunRecord| compare(base, new).notes.pop().unwrap_or_default();
    let note = last(&base, &new);
    let command = "`orchestrate calibrate -e '/some where/a' -e b:fast -s ttft,decode --depth 0 --threads 2`";
    assert!(note.contains(command), "{note}");
    let floor = |configuration: usize, workload: &str| CalibratedFloor {
        configuration,
        workload: workload.into(),
        metric: crate::plan::MetricId::DECODE_RATE,
        paired: NoiseFloor::of(&[0.01]).unwrap(),
        between: NoiseFloor::of(&[0.01]),
        since: "2026-01-01T00:00:00Z".into(),
    };
    let labels: Vec<String> = new.header.plan.workloads_of(0).into_iter().map(|it| it.label).collect();
    base.header.noise_floors = labels.iter().map(|label| floor(0, label)).collect();
    assert!(last(&base, &new).contains("calibrate -e b:fast -s ttft,decode --depth 0 --threads 2`"));
    new.header.noise_floors = labels.iter().map(|label| floor(1, label)).collect();
    assert!(!last(&base, &new).contains("calibrate"));
}

#[test]
fn the_mean_over_workloads_uses_only_headline_metrics() {
    let both = selection(&["a"], &["prefill", "decode"]);
    let record = |prefill: f64, decode: f64| {
        measured(&both, 5, move |at| Some(if at.workload == "decode" { decode } else { prefill }))
    };
    // The geometric mean of 8 (prefill) and 2 (decode).
    let means = compare(&record(8.0, 4.0), &record(1.0, 2.0)).means;
    assert_eq!((means.len(), means[0].workloads), (1, 2));
    assert!((means[0].ratio.unwrap() - 4.0).abs() < 1e-9, "{means:?}");
    assert!(compare(&run(&single_engine(), 1.0, 1), &run(&single_engine(), 1.0, 2)).means.is_empty());
}

#[test]
fn a_baseline_measured_again_is_paired_with_its_row() {
    let selection = selection(&["reference", "a"], &["decode"]);
    let mut random = Random::seeded(3);
    let mut slowdown = 1.0;
    // The machine runs at half to full speed. A token of the new program takes a fifth longer.
    let mut record = measured(&selection, 8, move |at| {
        if at.configuration == 0 && at.round == 0 {
            slowdown = 1.0 + random.unit();
        }
        Some(10.0 * slowdown * if at.configuration == 1 { 1.2 } else { 1.0 })
    });
    let rerun = &mut record.header.plan.configurations[2];
    (rerun.label, rerun.role) = ("a (baseline)".into(), Some(Role::Baseline { of: 1 }));
    let judgement = judge_within(&record, SeverityThresholds::default());
    let decode = headline(&judgement);
    assert!(judgement.side_by_side && decode.comparison().unwrap().decision.verdict == Some(Verdict::Slower));
    assert_eq!(
        (decode.severity, judgement.conclusion(Severity::Warning)),
        (Severity::Warning, Conclusion::Worse)
    );
    assert!(decode.sentence.starts_with("`a` decodes 1.20x slower than before ["), "{}", decode.sentence);
    assert_eq!((decode.before.as_str(), decode.new.unwrap() < decode.base.unwrap()), ("a (baseline)", true));
    assert_eq!(decode.comparison().unwrap().threshold_source, "smallest threshold");
    let calibrated = |floor: f64| CalibratedFloor {
        configuration: 1,
        workload: "decode".into(),
        metric: crate::plan::MetricId::DECODE_RATE,
        paired: NoiseFloor::of(&[floor; 20]).unwrap(),
        between: None,
        since: "2026-01-01T00:00:00Z".into(),
    };
    for (floor, source) in [(0.3, "calibration"), (0.001, "smallest threshold")] {
        record.header.noise_floors = vec![calibrated(floor)];
        let judgement = judge_within(&record, SeverityThresholds::default());
        assert_eq!(headline(&judgement).comparison().unwrap().threshold_source, source);
    }
}

/// A record in which the scores of the engine differ from the verifier's by `difference` nats.
fn checked(difference: f64) -> RunRecord {
    let mut record = specimen::checked();
    specimen::set_scores(&mut record, specimen::ENGINE, |_| Some(difference));
    record
}

fn beacon(judgement: &Judgement) -> &Change {
    judgement.changes.iter().find(|it| it.gating && it.configuration == "beacon").unwrap()
}

#[test]
fn output_that_becomes_wrong_is_a_failure_even_if_it_is_faster() {
    let judgement = compare(&checked(0.0), &checked(2.3));
    let line = beacon(&judgement);
    assert_eq!(
        (line.severity, judgement.conclusion(Severity::Critical)),
        (Severity::Critical, Conclusion::Worse)
    );
    let why = "`beacon`, decode: fails now, but was measured before (wrong output in the new record: its log-probabilities";
    assert!(line.sentence.starts_with(why), "{}", line.sentence);
    // No other metric of the engine is compared either.
    assert!(judgement.changes.iter().all(|it| it.configuration != "beacon" || it.comparison().is_none()));
    assert!(
        judgement
            .changes
            .iter()
            .any(|it| it.configuration == "patient-original" && it.comparison().is_some())
    );
}

#[test]
fn wrong_output_in_the_base_is_not_compared() {
    let judgement = compare(&checked(2.3), &checked(0.0));
    let line = beacon(&judgement);
    assert!(line.sentence.contains("not before (wrong output in the base: "), "{}", line.sentence);
    let judgement = compare(&checked(2.3), &checked(2.3));
    assert!(beacon(&judgement).sentence.contains("fails as before"), "{}", beacon(&judgement).sentence);
}

#[test]
fn a_note_names_an_unknown_headline_metric_and_its_record() {
    let (base, mut new) = (run(&single_engine(), 1.0, 1), run(&single_engine(), 1.0, 2));
    assert!(compare(&base, &new).notes.iter().all(|it| !it.contains("does not know")));
    new.header.plan.cases[0].workload.headline = crate::plan::MetricId::named("later_rate");
    let judgement = compare(&base, &new);
    let notes: Vec<&String> = judgement.notes.iter().filter(|it| it.contains("does not know")).collect();
    assert!(
        notes.len() == 1 && notes[0].starts_with("the new record: ") && notes[0].contains("`later_rate`")
    );
    assert!(judgement.changes.iter().all(|it| !it.gating) && !judgement.changes.is_empty());
}
