use super::*;
use crate::analysis::compare::judgement::judge;
use crate::plan::Selection;
use crate::record::specimen::timed::{measured, selection};
use crate::record::{End, Failure, RunRecord};
use crate::report::{FORMATS, shown};
use crate::text::width;
use stats::{Random, SeverityThresholds, Verdict};

/// A record of eight blocks. A token takes 10 ms times `slowdown`, with noise of this relative deviation.
fn run(selection: &Selection, slowdown: f64, deviation: f64, seed: u64) -> RunRecord {
    let mut random = Random::seeded(seed);
    measured(selection, 8, move |_| Some(10.0 * slowdown * (deviation * random.normal()).exp()))
}

/// A judgement with several kinds of lines: worse, inconclusive, failing, the same; forced, after an interrupted run.
fn judgement() -> Judgement {
    let all = selection(&["reference", "an-engine-of-a-longer-name"], &["load", "ttft", "decode"]);
    let base = run(&all, 1.0, 0.001, 1);
    let mut new = run(&all, 1.3, 0.001, 2);
    for sample in new.samples.iter_mut().filter(|sample| sample.case == 1) {
        let times = sample.iteration.sequences[0].token_ns.as_mut().unwrap();
        // A block has three launches: of two engines and a twin. Large differences between blocks make a verdict inconclusive.
        let factor = [0.5, 0.8, 1.1][sample.launch as usize / 3 % 3];
        times.iter_mut().for_each(|ns| *ns = (*ns as f64 * factor) as u64);
    }
    new.failures.push(Failure {
        configuration: 1,
        case: Some(9),
        kind: crate::record::FailureKind::Exited,
        when: "sample 3".into(),
        message: "killed by signal 9".into(),
        ..Failure::default()
    });
    new.end = Some(End::Interrupted);
    new.header.machine.cpu.model = Some("Xeon\u{1b}[2J".into());
    judge(&base, &new, SeverityThresholds::default(), true).unwrap()
}

fn text(format: &str, width: Option<usize>) -> String {
    shown(&JudgementContent { judgement: &judgement(), full: true }, format, width)
}

#[test]
fn a_table_fits_the_given_width_or_a_hundred_columns() {
    for limit in [None, Some(80), Some(100), Some(200), Some(60)] {
        let table = text("table", limit);
        // A command to be pasted is not wrapped and may be wider.
        let wide =
            table.lines().find(|line| width(line) > limit.unwrap_or(100) && !line.contains("calibrate"));
        assert!(wide.is_none(), "{limit:?}: {}\n{table}", wide.unwrap_or_default());
    }
}

#[test]
fn the_force_warning_comes_first_and_verdicts_before_values() {
    let table = text("table", None);
    assert!(table.starts_with("not comparable, but compared because of `--force`: CPU:"), "{table}");
    let at = |text: &str| table.find(text).unwrap_or_else(|| panic!("no {text}\n{table}"));
    assert!(at("note: the new record was interrupted") < at("base: record 2026"), "{table}");
    assert!(at("critical: `reference` decodes") < at("base → new"), "{table}");
    assert!(at("> cold start") < at("geometric mean"), "{table}");
    let last = table.lines().last().unwrap();
    assert!(table.trim_end().ends_with("critical)") && !last.is_empty(), "{table}");
}

#[test]
fn every_format_has_the_same_verdicts_without_escape_sequences() {
    for format in FORMATS {
        let text = text(format.name, None);
        assert!(!text.contains('\u{1b}'), "{}", format.name);
        assert!(text.contains("killed by signal 9"), "{}\n{text}", format.name);
    }
    let json: serde_json::Value = serde_json::from_str(&text("json", None)).unwrap();
    let csv = text("csv", None);
    let changes = json["changes"].as_array().unwrap();
    assert_eq!(csv.lines().count(), 1 + changes.len());
    for (line, change) in csv.lines().skip(1).zip(changes) {
        assert!(line.contains(change["verdict"].as_str().unwrap()), "{line}\n{change}");
    }
    let verdicts: Vec<&str> = changes.iter().map(|it| it["verdict"].as_str().unwrap()).collect();
    for expected in ["worse", "same", "inconclusive", "fails_now"] {
        assert!(verdicts.contains(&expected), "{expected}: {verdicts:?}");
    }
}

#[test]
fn the_summary_counts_headlines() {
    let all = selection(&["a"], &["decode"]);
    let judged = |slowdown| {
        judge(&run(&all, 1.0, 0.001, 1), &run(&all, slowdown, 0.001, 2), SeverityThresholds::default(), false)
    };
    let summary = |slowdown| cells::summary(&judged(slowdown).unwrap());
    assert_eq!(summary(1.5), "1 headline metric: 1 worse (1 critical)");
    assert_eq!(summary(1.15), "1 headline metric: 1 worse (1 a warning)");
    assert_eq!(summary(1.0), "1 headline metric: 1 the same");
    assert_eq!(summary(0.5), "1 headline metric: 1 better");
}

#[test]
fn by_default_a_comparison_is_one_screen_with_the_most_severe_changes_first() {
    let engines = ["reference", "beacon", "coal", "motor", "reed", "toy"];
    let all = selection(&engines, &["load", "ttft", "prefill", "decode"]);
    let base = run(&all, 1.0, 0.001, 1);
    let mut new = run(&all, 1.0, 0.001, 2);
    for sample in new.samples.iter_mut() {
        let configuration = new.header.plan.cases[sample.case].configuration;
        let slowdown = [1.0, 1.0, 1.15, 1.0, 1.5, 1.0, 1.0][configuration];
        let times = sample.iteration.sequences.iter_mut().flat_map(|it| it.token_ns.iter_mut().flatten());
        times.for_each(|ns| *ns = (*ns as f64 * slowdown) as u64);
    }
    let judgement = judge(&base, &new, SeverityThresholds::default(), true).unwrap();
    let text = |full| shown(&JudgementContent { judgement: &judgement, full }, "table", Some(80));
    let (screen, full) = (text(false), text(true));
    assert!(screen.lines().count() <= 40, "{screen}");
    assert!(full.lines().count() > 100, "{full}");
    let at = |text: &str| screen.find(text).unwrap_or_else(|| panic!("no {text}\n{screen}"));
    assert!(
        at("critical: `reed` decodes 1.50x slower") < at("warning: `coal` decodes 1.15x slower"),
        "{screen}"
    );
    assert!(screen.contains("headline metrics the same") && !screen.contains("`beacon` decodes"), "{screen}");
    let words = screen.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("other metrics without effect on the exit status: "), "{screen}");
    assert!(!words.contains(" 0 worse") && !words.contains(" 0 better"), "{screen}");
    assert!(!words.contains("note: and ") && !words.contains("decodes (decode)"), "{screen}");
    assert_eq!(screen.lines().last(), full.lines().last());
}

#[test]
fn a_configuration_that_fails_in_all_cases_of_both_records_has_one_line_on_the_screen() {
    let all = selection(&["reference", "beacon"], &["load", "ttft", "decode"]);
    let failing = |seed| {
        let mut record = run(&all, 1.0, 0.001, seed);
        record.failures.push(Failure {
            configuration: 1,
            kind: crate::record::FailureKind::Exited,
            message: "no driver found".into(),
            ..Failure::default()
        });
        record
    };
    let mut refusing = [failing(1), failing(2)];
    refusing.iter_mut().for_each(|it| it.failures[0].kind = crate::record::FailureKind::Refused);
    let refused = judge(&refusing[0], &refusing[1], SeverityThresholds::default(), true).unwrap();
    let text = shown(&JudgementContent { judgement: &refused, full: false }, "table", Some(100));
    let expected = "`beacon` refuses as before, as it must in 5 cases (no driver found)";
    assert!(text.contains(expected) && !text.contains("fails"), "{text}");
    let judgement = judge(&failing(1), &failing(2), SeverityThresholds::default(), true).unwrap();
    let lines = |full| {
        let text = shown(&JudgementContent { judgement: &judgement, full }, "table", Some(100));
        text.lines().filter(|it| it.contains("fails as before")).map(str::to_string).collect::<Vec<_>>()
    };
    let [line] = lines(false).try_into().unwrap();
    assert!(
        line.contains("`beacon` fails as before in 5 cases (") && line.contains("no driver found"),
        "{line}"
    );
    assert!(lines(true).len() > 5, "{:?}", lines(true));
}

#[test]
fn a_mean_of_inconclusive_ratios_is_marked_as_uncertain() {
    let judgement = judgement();
    let means = |full| {
        let text = shown(&JudgementContent { judgement: &judgement, full }, "table", Some(200));
        let means: Vec<String> =
            text.lines().filter(|it| it.contains("geometric mean of")).map(String::from).collect();
        means
    };
    assert_eq!(means(false), means(true));
    let inconclusive = |configuration: &str| {
        let mut of_engine =
            judgement.changes.iter().filter(|it| it.gating && it.configuration == configuration);
        of_engine.any(|it| it.verdict() == Some(Verdict::Inconclusive))
    };
    assert!(judgement.means.iter().any(|mean| mean.ratio.is_some() && inconclusive(&mean.configuration)));
    for mean in judgement.means.iter().filter(|mean| mean.ratio.is_some()) {
        let line =
            means(false).into_iter().find(|it| it.contains(&format!("`{}`:", mean.configuration))).unwrap();
        let is_marked = line.contains("? ") && line.ends_with(" of them inconclusive)");
        assert_eq!(is_marked, inconclusive(&mean.configuration), "{line}");
    }
    let json: serde_json::Value = serde_json::from_str(&text("json", None)).unwrap();
    for mean in json["means"].as_array().unwrap() {
        let configuration = mean["configuration"].as_str().unwrap();
        assert_eq!(mean["is_conclusive"], !inconclusive(configuration), "{mean}");
    }
}
