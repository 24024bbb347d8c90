//! The output check of an engine in sentences: the status, the deviation with its bounds, the tokens, and the next step.

use super::comparison::Detail;
use super::context::{Context, Part};
use crate::analysis::agreement::bounds::{AGREES, EXACT, Precision};
use crate::analysis::agreement::{
    Against, Agreement, GREEDY_OPTION, NoChecks, STRETCH_TOKENS, Status, two_digits,
};
use crate::plan::Verification;
use crate::plan::prompts::Prompts;
use crate::report::outputs::greedy_command;
use crate::shell::HINT;
use crate::text::{line, plural, with_commas};

/// The most reasons on one screen.
const MAX_REASONS: usize = 2;

/// The output check of an engine; in brief, without its values.
pub fn part(context: &Context, configuration: usize, detail: Detail) -> Option<Part> {
    let label = &context.data.engines[configuration].label;
    if !context.data.is_measured_row(configuration) {
        return None;
    }
    match context.report.no_checks {
        Some(NoChecks::ByRequest) => {
            let mut part = Part::titled("output: not checked");
            part.say("Its output was not checked, because of `--verifier none`. So it is unknown whether it computes the model.");
            part.hint("measure again without `--verifier none`");
            return Some(part);
        }
        Some(NoChecks::ByAge) => {
            let mut part = Part::titled("output: not checked");
            part.say("Its output was not checked: the record is older than output checks.");
            return Some(part);
        }
        None => {}
    }
    let agreement = &context.report.outputs.iter().find(|it| it.engine == *label)?.agreement;
    let mut part = Part::titled(format!("output: {}", agreement.cell()));
    part.say(meaning(agreement));
    let why_not_exact = why_not_exact(agreement);
    // In full, the number comes with the number of tokens.
    if let Some(rms) = agreement.rms().filter(|_| why_not_exact.is_some() && detail == Detail::Brief) {
        part.say(format!(
            "Its log-probabilities differ from the verifier's by {} nats (root mean square).",
            two_digits(rms)
        ));
    }
    part.sentences.extend(why_not_exact);
    if detail == Detail::Full {
        let verifier = verifier(&agreement.against);
        scores(&mut part, agreement, &verifier);
        costs(context, &mut part, configuration, agreement);
        tokens(&mut part, agreement, &verifier);
        early_text(context, &mut part, configuration, agreement);
    }
    let shown = if detail == Detail::Full { agreement.reasons.len() } else { MAX_REASONS };
    for reason in agreement.reasons.iter().take(shown) {
        // An output that is verified, but not exact, has a difference that its status allows.
        let is_allowed = !matches!(agreement.status, Status::Wrong | Status::Unverified);
        let kind = if is_allowed { "Allowed difference" } else { "Reason" };
        // A reason whose step is the hint of the part does not repeat it.
        let is_step = |hint: &str| {
            agreement.next_step().is_some_and(|step| step == hint || step == hint.trim_matches('`'))
        };
        let without_hint = reason.split_once(HINT).filter(|(_, hint)| is_step(hint));
        let reason = without_hint.map_or(reason.as_str(), |(before, _)| before);
        part.say(format!("{kind}: {}.", line(reason).trim_end_matches('.')));
    }
    next_step(context, &mut part, configuration, agreement);
    Some(part)
}

fn meaning(agreement: &Agreement) -> String {
    if agreement.against == Against::Itself {
        return "It is the verifier: it answers in f32, and the outputs of the other engines are compared with its answers."
            .into();
    }
    let name = agreement.status.name();
    let (first, rest) = name.split_at(1);
    format!("{}{rest}: {}", first.to_uppercase(), agreement.status.about())
}

/// The reason why an output is not `exact` although its log-probabilities are: its tokens differ.
fn why_not_exact(agreement: &Agreement) -> Option<String> {
    let is_close = agreement.rms().is_some_and(|rms| rms <= EXACT);
    if agreement.status != Status::Agrees || !is_close {
        return None;
    }
    let texts = agreement.greedy.as_ref().map(|it| (it.differing, it.texts, "generated text"));
    let in_answers = agreement.token_loss.as_ref().map(|it| (it.differing, it.positions, "checked token"));
    let single = agreement.gaps.as_ref().map(|it| (it.differing, it.positions, "checked token"));
    let all = [texts, in_answers, single].into_iter().flatten();
    let (differing, count, noun) = all.into_iter().find(|(differing, ..)| *differing > 0)?;
    let (of, have) = (plural(with_commas(count), noun), if differing == 1 { "has" } else { "have" });
    Some(match noun {
        "generated text" => {
            format!("It is not `exact`, because {} of {of} {have} other tokens.", with_commas(differing))
        }
        _ => format!(
            "It is not `exact`, because the verifier gives another token at {} of {of}.",
            with_commas(differing)
        ),
    })
}

fn verifier(against: &Against) -> String {
    match against {
        Against::Engine { label } => format!("`{}`", line(label)),
        Against::ReferenceAnswers { by } => format!("{} (reference answers)", line(by)),
        Against::Itself | Against::Nothing => "the verifier".into(),
    }
}

/// The differences of log-probabilities, with the bounds of the precision.
fn scores(part: &mut Part, agreement: &Agreement, verifier: &str) {
    let Some(scores) = &agreement.scores else { return };
    let bounds = agreement.bounds;
    part.say(format!(
        "Over {} held-out tokens, its log-probabilities differ from those of {verifier} by {} nats (root mean square).",
        with_commas(scores.tokens),
        two_digits(scores.rms)
    ));
    part.say(format!("The largest difference at one token is {} nats.", two_digits(scores.largest)));
    if let Some(worst) = scores.worst {
        part.say(format!(
            "Parts of about {STRETCH_TOKENS} tokens are compared too. The largest difference is {} nats (above {} is wrong), in tokens {} to {} of held-out text {}.",
            two_digits(worst.rms),
            two_digits(bounds.stretch_rms),
            with_commas(worst.from),
            with_commas(worst.to),
            worst.sequence
        ));
    }
    if scores.missing > 0 {
        let missing = plural(with_commas(scores.missing), "log-probability value");
        part.say(format!("{missing} are missing or not finite where {verifier} gives a value."));
    }
    // In f32 and with a known cost of the dtype, the bound for `wrong` may be below that for `agrees`.
    let (agrees, drifts) = match bounds.rms <= AGREES {
        true => (two_digits(bounds.rms), String::new()),
        false => (AGREES.to_string(), format!(", up to {} `drifts`", two_digits(bounds.rms))),
    };
    part.say(format!(
        "A difference of up to {EXACT} nats is `exact` if all tokens are the same, up to {agrees} `agrees`{drifts}. A larger one is `wrong` for an engine in {}.",
        agreement.precision.name()
    ));
}

/// The effect of the reported dtypes on the verifier's own answers, or the reason why it is unknown.
fn costs(context: &Context, part: &mut Part, configuration: usize, agreement: &Agreement) {
    if let Some(cost) = &agreement.cost {
        part.say(format!(
            "For comparison: the verifier itself, computed in {} on this model, differs from its f32 answers by {} nats.",
            cost.dtypes,
            two_digits(cost.rms)
        ));
        return;
    }
    let model = &context.data.plan.configurations[configuration].model.path;
    let costs = context.record.dtype_costs.iter().find(|it| it.model == *model);
    let unmeasured = costs.and_then(|it| it.unmeasured.first());
    if let Some(unmeasured) = unmeasured.filter(|_| agreement.precision != Precision::Full) {
        part.say(format!(
            "It was not measured how much {} changes the verifier's own answers on this model: {}.",
            line(&unmeasured.dtype),
            line(&unmeasured.reason).trim_end_matches('.')
        ));
    }
}

/// The comparison of generated tokens.
fn tokens(part: &mut Part, agreement: &Agreement, verifier: &str) {
    if let Some(greedy) = &agreement.greedy {
        let texts = plural(with_commas(greedy.texts), "generated text");
        part.say(match greedy.differing {
            0 => format!("In {texts}, all {} tokens are the same as those of {verifier}.", with_commas(greedy.compared)),
            _ if greedy.texts == 1 => format!(
                "In the generated text, some tokens differ from those of {verifier}. Before the first difference, {} of {} tokens are the same.",
                with_commas(greedy.equal),
                with_commas(greedy.compared)
            ),
            differing => format!(
                "Of {texts}, {} {} other tokens than those of {verifier}. Before the first difference of each text, {} of {} tokens are the same.",
                with_commas(differing),
                if differing == 1 { "has" } else { "have" },
                with_commas(greedy.equal),
                with_commas(greedy.compared)
            ),
        });
        if let Some(first) = &greedy.first {
            let engine_token =
                first.engine_token.map_or_else(|| "no token".into(), |id| format!("token {id}"));
            part.say(format!(
                "The earliest difference is at position {} of {}: the engine gives {engine_token}, and the verifier token {}.",
                first.position,
                first.text.name(),
                first.verifier_token
            ));
        }
    }
    if let Some(loss) = &agreement.token_loss {
        let bound =
            loss.bound.map_or_else(String::new, |bound| format!(" (above {} is wrong)", two_digits(bound)));
        let positions = with_commas(loss.positions);
        part.say(match loss.differing {
            0 => format!("In whole answers, the verifier compared {positions} tokens, and gives the same ones."),
            differing => format!(
                "In whole answers, the verifier compared {positions} tokens, and gives another token at {} of them. To the verifier, the \
                 engine's tokens are less likely, by {} nats in sum{bound}.",
                with_commas(differing),
                two_digits(loss.nats)
            ),
        });
    }
    if let Some(gaps) = &agreement.gaps {
        let bounds = agreement.bounds;
        let positions = with_commas(gaps.positions);
        if gaps.differing == 0 {
            part.say(format!(
                "The verifier checked {positions} single tokens of measured requests, and gives the same ones."
            ));
            return;
        }
        part.say(format!(
            "The verifier checked {positions} single tokens of measured requests, and gives another token at {} of them.",
            with_commas(gaps.differing)
        ));
        part.say(format!(
            "The verifier's token is more likely by {} nats on average (above {} is wrong), and by {} at most (above {} is wrong).",
            two_digits(gaps.mean),
            two_digits(bounds.gap),
            two_digits(gaps.worst),
            two_digits(bounds.worst_gap)
        ));
    }
}

/// The answers that show whether the engine computed all of each prompt.
fn early_text(context: &Context, part: &mut Part, configuration: usize, agreement: &Agreement) {
    let plan = &context.data.plan;
    if let Some(early_text) = &agreement.early_text {
        let answers = plural(with_commas(early_text.answers), "measured prompt");
        part.say(format!("After {answers}, the next token can depend on the first half of the prompt."));
        part.say(match early_text.differing {
            0 => "The engine gave the verifier's token each time.".into(),
            differing => format!(
                "The engine gave another token than the verifier after {} of them. On average over all, its tokens are {} nats less likely.",
                with_commas(differing),
                two_digits(early_text.mean())
            ),
        });
        return;
    }
    let can_depend =
        plan.cases_of(configuration).into_iter().any(|it| Prompts::can_depend(&plan.cases[it].workload));
    let is_verifier = agreement.against == Against::Itself;
    if can_depend && plan.verification != Verification::Off && !is_verifier {
        part.say(
            "Not checked: whether the engine computes the first half of each prompt. No checked token depends on it.",
        );
    }
}

/// The step that leads to a better status.
fn next_step(context: &Context, part: &mut Part, configuration: usize, agreement: &Agreement) {
    let planned = &context.data.plan.configurations[configuration];
    match agreement.status {
        Status::Exact | Status::Agrees | Status::TokensAgree | Status::TextAgrees => {}
        Status::Drifts => part
            .say("To decide whether this is only rounding, measure the same engine in a higher precision."),
        Status::Wrong => part.hint(planned.check_command()),
        Status::Unverified => {
            let check = planned.check_command();
            let is_of_author = agreement.recorded_hint().is_none() && !agreement.lacking.is_empty();
            match agreement.next_step() {
                Some(step) if is_of_author => {
                    part.say(format!("Next step: the engine's author can {step}."));
                    part.hint(check);
                }
                Some(step) if step == GREEDY_OPTION => {
                    part.say("Next step: the same run without sampling.");
                    part.hint(greedy_command(&context.report.command));
                }
                Some(step) if step.starts_with("--") => part.hint(format!("measure again with `{step}`")),
                Some(step) => part.hint(step),
                None => {
                    part.say("Next step: remove the first reason. The command below shows whether the engine causes it.");
                    part.hint(check);
                }
            }
        }
    }
}
