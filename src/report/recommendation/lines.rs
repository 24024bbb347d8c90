//! The recommendation in sentences.

use std::collections::BTreeSet;
use std::path::Path;

use super::choice::MAX_TIE_RATIO;
use super::result::{Choice, EngineWithReason, ModelRecommendation, Recommendation};
use crate::analysis::agreement::{NoChecks, Status, two_digits};
use crate::analysis::compare::latency::ANSWER_TOKENS;
use crate::analysis::metric::Unit;
use crate::report::run_data::RunData;
use crate::report::run_report::Report;
use crate::shell::quoted_command;
use crate::text::{line, plural};
use stats::{MIN_VERDICT_BLOCKS, MetricKind, NO_DIFFERENCE, Phrase, Verdict, range_in_words, with_other};

/// The most reasons under one title; JSON has all.
const MAX_NAMED: usize = 5;

/// `path` is the file of the record, if it is not the latest one.
pub fn sentences(recommendation: &Recommendation, report: &Report, path: Option<&Path>) -> Vec<String> {
    let mut lines = Vec::new();
    let several = recommendation.models.len() > 1;
    for model in &recommendation.models {
        lines.extend(several.then(|| format!("model {}:", model.model)));
        lines.extend(model_lines(recommendation, model, report));
    }
    lines.extend(incomplete_latency(recommendation));
    lines.extend(not_tried_lines(&recommendation.not_tried));
    lines.extend(
        report.machine.gpus.is_empty().then(|| "not tried: a GPU, because this machine has none.".into()),
    );
    lines.extend(untried_presets(&recommendation.untried_presets));
    let best = recommendation.models.iter().find_map(|it| it.best.as_ref());
    let engine = best.map_or("--all", |best| best.engine.split(' ').next().unwrap_or_default());
    let engine = if engine.starts_with('-') { engine.to_string() } else { format!("-e {engine}") };
    lines.push(format!(
        "not tried: throughput, because it needs batches or several users; hint: `orchestrate {engine} -s batch,serve`"
    ));
    lines.extend(best.map(|best| {
        let path = path.map(|path| path.display().to_string());
        let arguments: Vec<String> = [best.engine.clone()].into_iter().chain(path).collect();
        format!("evidence: `orchestrate explain {}`", crate::shell::pasteable(&arguments))
    }));
    lines
}

/// The part of an answer's time that the record does not have.
fn incomplete_latency(recommendation: &Recommendation) -> Option<String> {
    let (missing, measured) = match (&recommendation.first_token, &recommendation.decode) {
        (None, Some(_)) => ("TTFT", "the decode rate"),
        (Some(_), None) => ("decode rate", "TTFT"),
        _ => return None,
    };
    Some(format!(
        "incomplete: the record has no {missing}, so only {measured} counts; hint: measure with `-s ttft,decode`"
    ))
}

/// The most presets that are named; JSON has all.
const MAX_PRESETS: usize = 6;

fn untried_presets(presets: &[String]) -> Option<String> {
    let named = quoted(&presets[..presets.len().min(MAX_PRESETS)]);
    let more = match presets.len().saturating_sub(MAX_PRESETS) {
        0 => String::new(),
        more => format!(" and {more} more (`orchestrate engines` lists them)"),
    };
    (!presets.is_empty())
        .then(|| format!("not tried: the presets {named}{more}; hint: `orchestrate recommend --presets`"))
}

fn model_lines(recommendation: &Recommendation, model: &ModelRecommendation, report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    match &model.best {
        Some(best) => {
            let (engine, output) = (named(best), best.status.name());
            lines.push(format!("use: {engine}, output {output}; {}.", answer(recommendation, best)));
            lines.push(format!("how sure: {}", how_sure(best)));
        }
        None => lines.extend(no_engine(recommendation, model, report)),
    }
    if let Some(choice) = &model.without_quantization {
        let choice = as_best(recommendation, choice, &model.best);
        lines.push(format!("best without quantization: {choice}."));
    }
    if let Some(choice) = &model.lower_precision {
        let (cost, choice) = (cost(choice), as_best(recommendation, choice, &model.best));
        lines.push(format!("best at a lower precision: {choice}; {cost}."));
    }
    lines.extend(listed("not recommended", &model.not_recommended));
    lines
}

/// `` `toy:q8_0` (q8_0) ``.
fn named(choice: &Choice) -> String {
    let dtype = choice.dtype.as_ref().map_or_else(String::new, |dtype| format!(" ({dtype})"));
    format!("`{}`{dtype}", choice.engine)
}

/// The latency of an answer, and its parts.
fn answer(recommendation: &Recommendation, choice: &Choice) -> String {
    let time = |ns: f64| Unit::Nanoseconds.show(ns);
    let latency = time(choice.latency_ns);
    let first = choice.first_token_ns.zip(recommendation.first_token.as_ref());
    let first = first.map(|(ns, case)| format!("TTFT {} (`{case}`)", time(ns)));
    let decode = choice.decode_rate.zip(recommendation.decode.as_ref());
    let decode = decode.map(|(rate, case)| format!("{} (`{case}`)", Unit::TokensPerSecond.show(rate)));
    let parts: Vec<String> = first.into_iter().chain(decode).collect();
    match parts.len() {
        2 => format!("{latency} for an answer of {ANSWER_TOKENS} tokens: {}", parts.join(", then ")),
        _ => parts.concat(),
    }
}

/// The evidence for the choice: its verdict, in one or two sentences.
fn how_sure(choice: &Choice) -> String {
    let Some(against) = &choice.against else {
        return "it is the only engine that can be recommended, so nothing was compared.".into();
    };
    let (other, blocks) = (&against.engine, plural(against.blocks, "block"));
    let range = range_in_words(against.low.ln(), against.high.ln(), MetricKind::Speed);
    let interval = format!("{range}, compared with `{other}` over {blocks}");
    let no_verdict = format!("no verdict: {blocks}, and a verdict needs {MIN_VERDICT_BLOCKS}");
    if !choice.ties.is_empty() {
        let ties = quoted(&choice.ties);
        // The limit is about the estimates. The interval of the ratio may be wider.
        let estimates = format!("the estimates differ by at most {:.0} %", 100.0 * (MAX_TIE_RATIO - 1.0));
        let why = "Output status, then precision, then memory decided";
        let (kind, is) = match against.verdict {
            Some(Verdict::Same) => ("the difference is within 2 %".to_string(), "is"),
            Some(_) => (format!("{estimates}, and the difference is inconclusive"), "may be"),
            None => (format!("{estimates}; {no_verdict}"), "may be"),
        };
        return format!("it ties with {ties}: {kind}. {why}. It {is} {interval}.");
    }
    let phrase = Phrase::of_ratio(against.ratio, (against.low, against.high), MetricKind::Speed);
    match against.verdict {
        Some(Verdict::Faster | Verdict::Slower) => {
            let change = with_other(&phrase.change, &format!("the next, `{other}`"));
            let verdict = "there is a verdict: the 95 % interval excludes an equal speed";
            format!("{verdict}. It is {change} {}, over {blocks}.", phrase.bounds)
        }
        Some(Verdict::Same | Verdict::Inconclusive) => {
            let why = against.why_inconclusive.as_deref();
            let why = why.map_or_else(|| ", because of noise".into(), |why| format!(": {why}"));
            format!("inconclusive{why}. It is {interval}; a quieter machine or more blocks would decide.")
        }
        None => {
            let change = match phrase.change.as_str() {
                NO_DIFFERENCE => format!("as fast as `{other}`"),
                change => with_other(change, &format!("`{other}`")),
            };
            format!("{no_verdict}. It is {change}; hint: `--blocks {MIN_VERDICT_BLOCKS}`")
        }
    }
}

/// The choice of one group, compared with the best of all.
fn as_best(recommendation: &Recommendation, choice: &Choice, best: &Option<Choice>) -> String {
    match best {
        Some(best) if best.engine == choice.engine => format!("the same, {}", named(choice)),
        _ => {
            let (engine, output) = (named(choice), choice.status.name());
            format!("{engine}, output {output}; {}", answer(recommendation, choice))
        }
    }
}

/// The cost of a lower precision, from the output check.
fn cost(choice: &Choice) -> String {
    let status = match choice.status {
        Status::Exact => "is exact",
        Status::Agrees => "agrees with the verifier",
        Status::TokensAgree => "has tokens that agree with the verifier's",
        Status::TextAgrees => "has a text that agrees with the verifier's",
        Status::Drifts => "drifts, within the bounds of its precision",
        Status::Wrong | Status::Unverified => "is not verified",
    };
    let cost = choice.nats.map_or_else(
        || "its cost in nats is unknown".to_string(),
        |nats| format!("it drifts by {} nats", two_digits(nats)),
    );
    format!("{cost}, and its output {status}")
}

/// The reason why no engine is recommended, with the remedy.
fn no_engine(recommendation: &Recommendation, model: &ModelRecommendation, report: &Report) -> Vec<String> {
    let why = if recommendation.first_token.is_none() && recommendation.decode.is_none() {
        "the record measures neither the time to first token nor the decode rate; hint: `-s ttft,decode`"
    } else if model.not_recommended.is_empty() {
        "no engine was measured; hint: `orchestrate engines`"
    } else if let Some(no_checks) = report.no_checks {
        match no_checks {
            NoChecks::ByRequest => "no output was checked; hint: leave out `--verifier none`",
            NoChecks::ByAge => {
                "the record is older than output checks; hint: measure again with `orchestrate recommend`"
            }
        }
    } else if model.not_recommended.iter().any(|it| it.reason.contains("unverified")) {
        let hint = report.outputs.iter().find_map(|it| it.agreement.recorded_hint());
        let hint = match hint {
            Some(hint) => quoted_command(hint),
            None => "name an engine that runs the model in f32 with `--verifier ENGINE`".into(),
        };
        return vec![format!(
            "use: no engine can be recommended, because no output is verified; hint: {hint}"
        )];
    } else {
        "no measured engine gave a complete and verified result"
    };
    vec![format!("use: no engine can be recommended, because {why}")]
}

/// Before the name of an engine in the command that sets it up.
const SET_UP: &str = "orchestrate setup ";

/// The engines and presets without a result. One command sets up all engines that need it.
fn not_tried_lines(not_tried: &[EngineWithReason]) -> Vec<String> {
    let name_to_set_up = |it: &EngineWithReason| {
        let name = it.hint.as_ref()?.strip_prefix(SET_UP)?;
        (!name.contains(' ')).then(|| name.to_string())
    };
    let (to_set_up, others): (Vec<EngineWithReason>, Vec<EngineWithReason>) =
        not_tried.iter().cloned().partition(|it| name_to_set_up(it).is_some());
    let names: BTreeSet<String> = to_set_up.iter().filter_map(name_to_set_up).collect();
    let names: Vec<String> = names.into_iter().collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    let set_up = (!names.is_empty()).then(|| {
        format!("not tried: {} {verb} not set up; hint: `{SET_UP}{}`", quoted(&names), names.join(" "))
    });
    set_up.into_iter().chain(listed("not tried", &others)).collect()
}

/// One line for each of the first reasons, with the engines that share it, and the number of the other engines.
fn listed(title: &str, engines: &[EngineWithReason]) -> Vec<String> {
    let groups = crate::report::rows::group_by_key(
        engines.iter().map(|it| ((it.reason.clone(), it.hint.clone()), it.engine.clone())),
    );
    let shown = groups.iter().take(MAX_NAMED).map(|((reason, hint), names)| {
        let hint = hint.as_ref().map_or_else(String::new, |hint| format!("; hint: `{hint}`"));
        format!("{title}: {}: {reason}{hint}", quoted(names))
    });
    let more: usize = groups.iter().skip(MAX_NAMED).map(|(_, names)| names.len()).sum();
    let more = (more > 0).then(|| format!("{title}: and {more} more; `--format json` has all"));
    shown.chain(more).collect()
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The engines that failed as a whole; and the first GPU, if all configurations are on the CPU. The record has no result of
/// these.
pub fn not_tried(data: &RunData, report: &Report) -> Vec<EngineWithReason> {
    let failed = report.failed.iter().filter(|it| {
        let configuration = data.engines.iter().position(|engine| engine.label == it.engine.label);
        !configuration.is_some_and(|index| data.is_measured_row(index))
    });
    let mut not_tried: Vec<EngineWithReason> = failed
        .map(|it| EngineWithReason {
            engine: it.engine.label.clone(),
            reason: line(&it.failure.message),
            hint: it.failure.hint.as_ref().and_then(|hint| hint.lines().next().map(line)),
        })
        .collect();
    let uses_gpu = data.plan.configurations.iter().any(|it| !it.device.is_cpu());
    if let Some(gpu) = report.machine.gpus.first().filter(|_| !uses_gpu) {
        let name = gpu.name.clone().unwrap_or_else(|| "a GPU".into());
        let hint = Some("orchestrate recommend --device cuda".to_string());
        not_tried.push(EngineWithReason { engine: name, reason: "no engine ran on this GPU".into(), hint });
    }
    not_tried
}
