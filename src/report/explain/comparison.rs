//! A comparison in sentences: the ratio with its interval, the evidence, the noise floor, and why it is inconclusive.

use super::context::{Context, Part};
use crate::analysis::agreement::two_digits;
use crate::analysis::compare::{self, Compared};
use crate::plan::{Order, Role};
use crate::report::marks::Mark;
use crate::report::next_measurement::option_for;
use crate::report::ranking::{self, compared_in};
use crate::report::rows::Row;
use crate::report::verdict_lines::with_mark;
use crate::report::verdicts::PairVerdict;
use crate::text::{line, plural, three_digits, with_commas};
use stats::{
    Comparison, Decision, Evidence, FloorSource, MIN_VERDICT_BLOCKS, MetricKind, NO_DIFFERENCE, Obstacle,
    Phrase, SourcedFloor, Verdict, with_other,
};

/// The amount of detail of an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// One sentence has the evidence.
    Brief,
    Full,
}

/// Explains a row against another row. `intro` begins the sentence. `pairs` has all comparisons that are corrected together with
/// this one: the correction depends on their number.
pub fn explain(
    context: &Context,
    part: &mut Part,
    (row, against): (&Row, &Row),
    (intro, pairs): (&str, &[PairVerdict]),
    detail: Detail,
) {
    let Some(compared) = compared_in(pairs, row, against) else {
        part.say(format!("{intro}: there is no comparison with `{}`.", against.engine.label));
        return;
    };
    let comparison = match compared.comparison() {
        Ok(comparison) => comparison,
        Err(why) => {
            part.say(format!("{intro}: no comparison with `{}`, because {why}.", against.engine.label));
            return;
        }
    };
    let mark = mark(part, &compared, row, against);
    let value = value(against);
    // The sentence about an inconclusive comparison is long, and the one about its estimate has the value.
    let is_inconclusive = comparison.decision.verdict == Some(Verdict::Inconclusive);
    let intro = match value.as_ref().filter(|_| !is_inconclusive) {
        Some(value) => format!("{intro}, {value}"),
        None => intro.into(),
    };
    let sentence = sentence(context, row, against, compared.pair, &comparison);
    let change =
        Phrase::of_decision(&comparison.decision, &comparison.evidence, compared.pair.metric.kind()).change;
    part.say(format!("{intro}: {}.", sentence.replacen(&change, &with_mark(&change, mark), 1)));
    // The correction counts the comparisons that have a p value.
    let has_p = |pair: &&PairVerdict| pair.comparison().is_some_and(|it| it.decision.p.is_some());
    let family = pairs.iter().filter(|pair| pair.is_headline).filter(has_p).count();
    match detail {
        // Without a verdict, the sentence itself has the number of blocks.
        Detail::Brief if comparison.decision.verdict.is_none() => {}
        Detail::Brief => part.say(brief_evidence(context, compared.pair, &comparison, family)),
        Detail::Full => {
            interval(part, &comparison);
            probability(part, &comparison, family);
            part.say(noise_floor(context, compared.pair, &comparison));
        }
    }
    let estimate = estimate(&comparison, compared.pair.metric.kind(), mark);
    let value = value.map_or_else(String::new, |value| format!("; `{}` has {value}", against.engine.label));
    obstacle(context, part, (&comparison, &estimate, &value), family);
}

/// The value of a row by its headline, with its unit.
pub fn value(row: &Row) -> Option<String> {
    let metric = row.case.headline?;
    Some(metric.unit.show(row.summary(metric.id)?.estimate))
}

/// The mark of a ratio that differs from the quotient of the two shown values; then the part needs the meaning of the mark.
/// Empty for any other ratio.
fn mark(part: &mut Part, compared: &ranking::Compared, row: &Row, against: &Row) -> &'static str {
    let decided_as_same = compared.verdict() == Some(Verdict::Same);
    if decided_as_same || compared.is_quotient(row, against) {
        return "";
    }
    part.has_inexact_ratio = true;
    Mark::NotAQuotient.sign()
}

/// A row against another row in a few words: `11x as fast as the reference `a` (164 tok/s) [8, 13]`. `other` names the other row.
pub fn in_short(
    context: &Context,
    part: &mut Part,
    (row, against): (&Row, &Row),
    (other, pairs): (&str, &[PairVerdict]),
) -> Option<String> {
    let compared = compared_in(pairs, row, against)?;
    let comparison = compared.comparison().ok()?;
    let mark = mark(part, &compared, row, against);
    let other = value(against).map_or_else(|| other.into(), |value| format!("{other} ({value})"));
    let other = other.as_str();
    let Comparison { decision, evidence, .. } = &comparison;
    let blocks = plural(comparison.blocks, "block");
    let Phrase { change, bounds, .. } = Phrase::of_decision(decision, evidence, compared.pair.metric.kind());
    let with_other = |change: &str| with_other(change, other).replacen(change, &with_mark(change, mark), 1);
    Some(match decision.verdict {
        Some(Verdict::Faster | Verdict::Slower) => format!("{} {bounds}", with_other(&change)),
        Some(Verdict::Same) => format!("as fast as {other}, {}", change.trim_start_matches("the same ")),
        Some(Verdict::Inconclusive) => {
            let estimate = estimate(&comparison, compared.pair.metric.kind(), mark);
            let why = match comparison.why_inconclusive() {
                Some(why) if decision.lost_to_correction => format!("{}; {why}", in_words(comparison.floor)),
                why => why.unwrap_or_else(|| in_words(comparison.floor)),
            };
            let remedy =
                remedy(context, &comparison).map_or_else(String::new, |remedy| format!("; {remedy}"));
            format!("inconclusive against {other}: {estimate} over {blocks}, {why}{remedy}")
        }
        None if change == NO_DIFFERENCE => format!("{change} against {other}"),
        None => {
            let change = with_other(&change);
            format!("{change}, without a verdict: {blocks}, and a verdict needs {MIN_VERDICT_BLOCKS}")
        }
    })
}

/// The estimated ratio with its interval: `1.2x as fast [1.2x slower, 1.6x as fast]`.
fn estimate(comparison: &Comparison, kind: MetricKind, mark: &str) -> Phrase {
    let (low, high) = comparison.evidence.ends();
    let phrase = Phrase::of_ratio(comparison.evidence.estimate().exp(), (low.exp(), high.exp()), kind);
    Phrase { change: with_mark(&phrase.change, mark), ..phrase }
}

/// `noise floor 4.2 %`.
fn in_words(floor: Option<SourcedFloor>) -> String {
    floor.map_or("noise floor unknown".into(), |it| {
        format!("noise floor {}", stats::size(it.floor.log_ratio()))
    })
}

/// The step that may decide an inconclusive comparison, in a few words. `None` for any other comparison.
fn remedy(context: &Context, comparison: &Comparison) -> Option<String> {
    let obstacle = comparison.obstacle()?;
    Some(match obstacle.sufficient_blocks() {
        Some(blocks) => {
            let option = option_for(context.report, comparison, blocks).text();
            format!("about {blocks} blocks would decide it: `{option}`")
        }
        None if obstacle == Obstacle::NoiseFloor => "more blocks do not help, a quieter machine may".into(),
        None => "even 200 blocks with this noise would not decide it".into(),
    })
}

fn sentence(
    context: &Context,
    row: &Row,
    against: &Row,
    pair: &PairVerdict,
    comparison: &Comparison,
) -> String {
    let plan = context.data.plan;
    let sides = [row, against].map(|row| context.configuration(&row.engine.label));
    let ([Some(configuration), Some(against)], Some(case)) = (sides, context.case(row)) else {
        return pair.sentence.clone();
    };
    let workload = plan.cases[case].workload.label.clone();
    let (metric, gating, result) = (pair.metric, pair.is_headline, Ok(comparison.clone()));
    line(&compare::sentence(plan, &Compared { workload, metric, configuration, against, gating, result }))
}

/// ``Evidence: 5 blocks; noise floor 3.10 %, from the twin of `toy`; p < 0.0001.``
fn brief_evidence(context: &Context, pair: &PairVerdict, comparison: &Comparison, family: usize) -> String {
    let blocks = plural(comparison.blocks, "block");
    let floor = match comparison.floor {
        Some(SourcedFloor { source, of, .. }) => {
            let label = &context.data.engines[of].label;
            let source = match source {
                FloorSource::Twin => format!("the twin of `{label}`"),
                FloorSource::Calibration => format!("the calibration of `{label}`"),
            };
            format!("{}, from {source}", in_words(comparison.floor))
        }
        None => format!("{} ({})", in_words(None), why_no_floor(context, pair)),
    };
    let p = corrected_p(&comparison.decision, family);
    let p = p.map_or_else(String::new, |(_, text)| format!("; {text}"));
    format!("Evidence: {blocks}; {floor}{p}.")
}

/// The interval in sentences: its evidence, the blocks that are not counted, and the bootstrap interval.
fn interval(part: &mut Part, comparison: &Comparison) {
    let blocks = plural(comparison.blocks, "block");
    part.say(match comparison.evidence {
        Evidence::RangeOnly { .. } => {
            format!("With {blocks} there is no interval: this is the range over single rounds.")
        }
        Evidence::Tentative(_) => {
            format!(
                "The true ratio lies in this range with 95 % confidence. Over {blocks} this is tentative."
            )
        }
        Evidence::Firm(_) => format!(
            "The true ratio lies in this range with 95 % confidence, over {blocks} with paired rounds."
        ),
    });
    if comparison.unpaired > 0 {
        part.say(format!(
            "Not counted: {}, without a round that both sides measured.",
            plural(comparison.unpaired, "further block")
        ));
    }
    if let Some((low, high)) = comparison.bootstrap {
        let (low, high) = (three_digits(low.exp()), three_digits(high.exp()));
        part.say(format!(
            "The bootstrap interval of the speed-up, which assumes no shape of the noise, is {low} to {high}."
        ));
    }
}

/// The p value in words.
fn probability(part: &mut Part, comparison: &Comparison, family: usize) {
    let Some((p, text)) = corrected_p(&comparison.decision, family) else { return };
    let frequency = match p {
        ..1e-4 => "in fewer than 1 of 10,000 runs".to_string(),
        1e-4..0.1 => format!("in about 1 of {} runs", with_commas((1.0 / p).round() as u64)),
        _ => format!("in about {:.0} % of runs", 100.0 * p),
    };
    let method = if text == p_text(p) { "" } else { " (Holm's method)" };
    part.say(format!("{text}{method}: noise alone would show such a difference {frequency}."));
}

/// The p value that decides, in words: `p = 0.21 after the correction for 180 comparisons`.
fn corrected_p(decision: &Decision, family: usize) -> Option<(f64, String)> {
    let p = decision.p_adjusted.or(decision.p)?;
    let correction = match decision.p_adjusted {
        Some(_) if family > 1 => format!(" after the correction for {family} comparisons"),
        _ => String::new(),
    };
    Some((p, format!("{}{correction}", p_text(p))))
}

fn p_text(p: f64) -> String {
    match p {
        ..1e-4 => "p < 0.0001".into(),
        1e-4..1e-3 => format!("p = {p:.4}"),
        _ => format!("p = {}", two_digits(p)),
    }
}

/// The noise floor, its source, and the smallest difference that counts.
fn noise_floor(context: &Context, pair: &PairVerdict, comparison: &Comparison) -> String {
    let counts = stats::size(comparison.decision.thresholds.difference());
    let Some(SourcedFloor { floor, source, of }) = comparison.floor else {
        let why = why_no_floor(context, pair);
        return format!("The noise floor is unknown: {why}. A difference must exceed {counts}.");
    };
    let (label, size) = (&context.data.engines[of].label, stats::size(floor.log_ratio()));
    let blocks = plural(floor.blocks(), "block");
    let source = match source {
        FloorSource::Twin => format!("`{label}` and its twin differed by up to that in {blocks}"),
        FloorSource::Calibration => {
            let stored = compare::stored_floor(context.record, of, &pair.case, pair.metric.id);
            let since = stored.map_or("an earlier day".into(), |floor| line(&floor.since));
            format!("the calibration of `{label}` found it in {blocks} ({since})")
        }
    };
    format!("The noise floor is {size}: {source}. A difference must exceed {counts}.")
}

/// The reason why a comparison has no noise floor. A twin or a calibration of either side would give one.
fn why_no_floor(context: &Context, pair: &PairVerdict) -> String {
    let of_side = |label: &String| *label == pair.engine || *label == pair.against;
    let with_twin = context.data.plan.configurations.iter().find_map(|it| match it.role {
        Some(Role::Twin { of }) => Some(&context.data.engines[of].label).filter(|label| of_side(label)),
        _ => None,
    });
    match with_twin {
        Some(label) => format!("the twin of `{label}` has fewer than {MIN_VERDICT_BLOCKS} blocks"),
        None => "neither engine has a twin or a calibration".into(),
    }
}

/// Why there is no clear result, and what would decide it.
fn obstacle(
    context: &Context,
    part: &mut Part,
    (comparison, estimate, other_value): (&Comparison, &Phrase, &str),
    family: usize,
) {
    let blocks = comparison.blocks;
    if comparison.decision.verdict.is_none() {
        if context.report.order == Order::Sequential {
            part.say(
                "There is no verdict: the engines ran one after the other, so drift looks like a difference.",
            );
            part.hint("leave out `--order sequential`");
        } else if blocks < MIN_VERDICT_BLOCKS {
            let measured = plural(blocks, "block");
            part.say(format!(
                "There is no verdict: {measured} with both sides, and a verdict needs {MIN_VERDICT_BLOCKS}."
            ));
            part.measure_again(option_for(context.report, comparison, MIN_VERDICT_BLOCKS));
        }
        return;
    }
    let more = |part: &mut Part, blocks: Option<usize>| match blocks {
        Some(blocks) => {
            part.say(format!(
                "About {blocks} blocks would decide it, if the noise stays the same. On a quieter machine, fewer may."
            ));
            part.measure_again(option_for(context.report, comparison, blocks));
        }
        None => part.say("Even 200 blocks with this noise would not decide it. A quieter machine may."),
    };
    let Some(obstacle) = comparison.obstacle() else { return };
    let over = plural(blocks, "block");
    part.say(match estimate.change == NO_DIFFERENCE {
        true => format!("Over {over}, no difference is seen {}{other_value}.", estimate.bounds),
        false => format!("The estimate is {estimate}, over {over}{other_value}."),
    });
    // The sentence with the verdict has the reason already.
    let has_reason = comparison.why_inconclusive().is_some();
    match obstacle {
        Obstacle::WideInterval { blocks } => {
            part.say("It is inconclusive: the interval is so wide that the engine may be faster or slower.");
            more(part, blocks);
        }
        Obstacle::TooWideForSame { blocks } => {
            if !has_reason {
                part.say("It is inconclusive: for `same`, the whole interval must lie within 2 %, and a part does not.");
            }
            more(part, blocks);
        }
        Obstacle::ManyComparisons { blocks } => {
            let alone = comparison.decision.p.map_or_else(String::new, |p| format!(" ({})", p_text(p)));
            part.say(format!(
                "It is inconclusive: among {family} comparisons, some differ by chance. Alone, this comparison would be \
                 significant{alone}."
            ));
            more(part, blocks);
        }
        Obstacle::NoiseFloor => {
            if !has_reason {
                let why = stats::not_beyond_noise(comparison.decision.thresholds);
                part.say(format!("It is inconclusive: {why}."));
            }
            part.say("A quieter machine helps: end other programs, or measure at another time.");
            part.hint("orchestrate machine");
        }
    }
}
