//! Checks whether two records may be compared. They must share a workload, and have the same machine, mode,
//! weights, recipe of prompts, token counts, EOS setting and sampling. Both or neither must have a warm-up.
//! The prompts themselves differ, because each run has a nonce of its own. Other settings may differ on
//! purpose, and `matching` names their differences.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Serialize;

use super::matching::Matching;
use crate::analysis::values::{Values, workloads};
use crate::plan::scenario::Kind;
use crate::plan::{Configuration, Mode, Plan, Prompt, Workload};
use crate::record::{RunRecord, Sample, output_tokens};
use crate::text::{self, shorten};
use stats::median;

/// The largest width of a value in a message, in columns. Longer values, mostly prompts, are shortened.
const MAX_COLUMNS: usize = 60;
/// The largest relative difference between the median prompt tokens of two runs. The tokens of an engine that gets text vary
/// with the text. A chat template, which is work that the other run does not have, adds more to a short prompt.
const MAX_PROMPT_TOKENS_RATIO: f64 = 0.25;

/// A difference that prevents a comparison. Its fields are fields of the JSON report: add fields, but never rename a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub kind: String,
    pub base: String,
    pub new: String,
}

impl Difference {
    fn new(kind: impl Into<String>, base: impl fmt::Display, new: impl fmt::Display) -> Self {
        let one_line = |text: String| shorten(&text::line(&text), MAX_COLUMNS);
        Self {
            kind: text::line(&kind.into()),
            base: one_line(base.to_string()),
            new: one_line(new.to_string()),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: base `{}`, new `{}`", self.kind, self.base, self.new)
    }
}

/// Records that must not be compared, with all their differences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incomparable {
    pub differences: Vec<Difference>,
}

impl fmt::Display for Incomparable {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("the two records are not comparable:")?;
        self.differences.iter().try_for_each(|difference| write!(f, "\n  {difference}"))?;
        f.write_str("\nhint: `--force` compares them anyway, with a warning")
    }
}

impl std::error::Error for Incomparable {}

pub fn differences(base: &Values, new: &Values, matching: &Matching) -> Vec<Difference> {
    let mut found = machine_differences(base.record, new.record);
    let plans = [base.plan, new.plan];
    if plans[0].mode != plans[1].mode {
        found.push(Difference::new("mode", mode(plans[0].mode), mode(plans[1].mode)));
    }
    for &(of_base, of_new) in &matching.pairs {
        let configurations = (&plans[0].configurations[of_base], &plans[1].configurations[of_new]);
        found.extend(weight_difference(configurations.0, configurations.1));
    }
    let shared: Vec<(&Workload, &Workload)> = shared_workloads(plans[0], plans[1]).collect();
    let mut unchanged = Vec::new();
    for (of_base, of_new) in &shared {
        let differing = workload_differences(of_base, of_new);
        if differing.is_empty() {
            unchanged.push(*of_new);
        }
        found.extend(differing);
    }
    if !matching.pairs.is_empty() {
        found.extend(unchanged.iter().filter_map(|workload| seed_difference(plans, workload)));
    }
    let [of_base, of_new] = [base, new].map(MeasuredRequests::of);
    for &pair in &matching.pairs {
        // The requests of a different workload differ too, so they are not reported again.
        found.extend(unchanged.iter().filter_map(|workload| of_base.difference(&of_new, pair, workload)));
    }
    if matching.pairs.is_empty() {
        found.push(Difference::new("configurations", labels(plans[0]), labels(plans[1])));
    } else if shared.is_empty() {
        let all = |plan| workloads(plan).iter().map(|it| it.label.as_str()).collect::<Vec<_>>().join(", ");
        found.push(Difference::new("workloads", all(plans[0]), all(plans[1])));
    }
    // Configurations with the same model or prompt repeat the same differences.
    let mut unique: Vec<Difference> = Vec::new();
    for difference in found {
        if !unique.contains(&difference) {
            unique.push(difference);
        }
    }
    unique
}

/// The workloads that both plans have, as pairs of base and new.
pub fn shared_workloads<'a>(
    base: &'a Plan,
    new: &'a Plan,
) -> impl Iterator<Item = (&'a Workload, &'a Workload)> {
    let of_base = workloads(base);
    workloads(new)
        .into_iter()
        .filter_map(move |new| Some((*of_base.iter().find(|it| it.label == new.label)?, new)))
}

fn machine_differences(base: &RunRecord, new: &RunRecord) -> Vec<Difference> {
    let [base, new] = [base, new].map(|record| record.header.machine.identifying_properties());
    let pairs = base.into_iter().zip(new).filter(|((_, base), (_, new))| base != new);
    pairs.map(|((what, base), (_, new))| Difference::new(what, base, new)).collect()
}

fn weight_difference(base: &Configuration, new: &Configuration) -> Option<Difference> {
    // Weights without an identity are compared by the model's name.
    let differs = match (&base.model.identity, &new.model.identity) {
        (None, None) => base.model.name != new.model.name,
        (base, new) => base != new,
    };
    let named = |it: &Configuration| match &it.model.identity {
        Some(identity) => format!("{} ({})", it.model.name, shorten(identity, 12)),
        None => format!("{} (weights without an identity)", it.model.name),
    };
    differs.then(|| Difference::new("weights", named(base), named(new)))
}

/// The differences between two workloads. Rounds, warm-up length and headline metric may differ, because they do not change the
/// work of a request. The rounds of a scored text are its windows.
fn workload_differences(base: &Workload, new: &Workload) -> Vec<Difference> {
    let prompt = |it: &Workload| match &it.prompt {
        Prompt::Tokens(tokens) => text::plural(tokens, "token"),
        Prompt::Text(text) => text.to_string(),
    };
    let sampling = |it: &Workload| match &it.sampling {
        Some(sampling) => serde_json::to_string(sampling).unwrap_or_default(),
        None => "greedy".into(),
    };
    let parts = |it: &Workload| {
        let scored = [
            (
                "scored text",
                it.scored_text.as_ref().map_or("held-out text".into(), |it| shorten(&it.sha256, 12)),
            ),
            ("windows", if it.kind == Kind::Score { it.rounds.to_string() } else { String::new() }),
        ];
        // Two files may have the same name.
        let file = it.shape.lengths.file().map_or("none".into(), |it| shorten(it.digest(), 12));
        let lengths = [
            ("prompt", prompt(it)),
            ("tokens to generate", it.max_new_tokens.to_string()),
            ("file of lengths", file),
        ];
        let settings = [
            ("ignoring EOS", it.ignore_eos.to_string()),
            ("sampling", sampling(it)),
            // Without a warm-up the first measured request is cold.
            ("warm-up", if it.warmup == Some(0) { "none".into() } else { "some".to_string() }),
        ];
        lengths.into_iter().chain(it.shape.values()).chain(settings).chain(scored)
    };
    let pairs = parts(base).zip(parts(new)).filter(|(base, new)| base != new);
    pairs
        .map(|((part, of_base), (_, of_new))| Difference::new(part_of(part, base), of_base, of_new))
        .collect()
}

/// The difference between the seeds, if prompts are drawn at random. The seed is a part of their recipe.
fn seed_difference(plans: [&Plan; 2], workload: &Workload) -> Option<Difference> {
    let [base, new] = plans.map(|plan| plan.seed);
    let is_drawn = matches!(workload.prompt, Prompt::Tokens(_));
    let [of_base, of_new] = [base, new].map(|seed| format!("seed {seed}"));
    (is_drawn && base != new).then(|| Difference::new(part_of("prompts", workload), of_base, of_new))
}

/// Names a part of a workload: `prompt of decode`.
fn part_of(part: &str, workload: &Workload) -> String {
    format!("{part} of {}", workload.label)
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Warm => "warm",
        Mode::OneShot => "one-shot",
    }
}

fn labels(plan: &Plan) -> String {
    let rows = plan.configurations.iter().filter(|it| it.role.is_none());
    rows.map(|it| it.label.as_str()).collect::<Vec<_>>().join(", ")
}

/// The measured requests of a record, by configuration and workload, then by block and round.
struct MeasuredRequests<'a> {
    seed: u64,
    by_case: HashMap<(usize, &'a str), ByRound<'a>>,
}

type ByRound<'a> = BTreeMap<(u32, u32), &'a Sample>;

impl<'a> MeasuredRequests<'a> {
    fn of(values: &Values<'a>) -> Self {
        let cases = values.plan.cases.iter().enumerate().filter(|(case, _)| values.is_measured(*case));
        let by_case = cases.map(|(index, case)| {
            let rounds = values.launches(index).iter().flat_map(|requests| {
                let of_launch = |sample: &&'a Sample| ((requests.launch.block, sample.index), *sample);
                requests.measured.iter().map(of_launch)
            });
            ((case.configuration, case.workload.label.as_str()), rounds.collect())
        });
        Self { seed: values.plan.seed, by_case: by_case.collect() }
    }

    /// The difference in the first block and round whose prompts have different recipes. Else the difference in the first round
    /// with different token counts. Else the median prompt tokens, if they differ too much.
    fn difference(&self, new: &Self, pair: (usize, usize), workload: &Workload) -> Option<Difference> {
        if self.seed != new.seed && matches!(workload.prompt, Prompt::Tokens(_)) {
            // `seed_difference` reports this.
            return None;
        }
        let label = workload.label.as_str();
        let base_requests = self.by_case.get(&(pair.0, label))?;
        let new_requests = new.by_case.get(&(pair.1, label))?;
        let pairs =
            || base_requests.iter().filter_map(|(round, base)| Some((round, base, new_requests.get(round)?)));
        // A repeated request has another prompt of the same length, so its recipe is compared only if both were repeated alike.
        let is_repeat = |(_, base, new): &(_, &&Sample, &&Sample)| base.repeat != new.repeat;
        let mut same_recipes = pairs().filter(|pair| !is_repeat(pair));
        let recipes = same_recipes.find(|(_, base, new)| base.recipe() != new.recipe());
        if let Some((&(block, round), base, new)) = recipes {
            let what = format!(
                "{} (block {block}, round {round})",
                part_of("text, tokenizer, lengths or seed of prompts", workload)
            );
            let digest = |sample: &Sample| format!("digest {}", sample.recipe());
            return Some(Difference::new(what, digest(base), digest(new)));
        }
        if let Some((&(block, round), base, new)) = pairs().find(|(_, base, new)| counts_differ(base, new)) {
            let what = format!("{} (block {block}, round {round})", part_of("tokens", workload));
            return Some(Difference::new(what, token_counts_in_words(base), token_counts_in_words(new)));
        }
        let [base, new] = [base_requests, new_requests].map(median_prompt_tokens);
        let (base, new) = base.zip(new)?;
        let allowed = (MAX_PROMPT_TOKENS_RATIO * base).max(1.0);
        let what = part_of("median prompt tokens", workload);
        ((base - new).abs() > allowed).then(|| Difference::new(what, base, new))
    }
}

/// Whether the token counts of two requests differ. For different prompts of the same recipe, the number of prompt tokens is not
/// compared here: an engine that gets text splits each text into tokens by itself.
fn counts_differ(base: &Sample, new: &Sample) -> bool {
    if base.prompt_hash == new.prompt_hash {
        return token_counts(base) != token_counts(new);
    }
    let outputs = |it: &Sample| token_counts(it).into_iter().map(|(_, output)| output).collect::<Vec<_>>();
    outputs(base) != outputs(new)
}

/// The median over all sequences of all requests.
fn median_prompt_tokens(requests: &ByRound) -> Option<f64> {
    let counts = requests.values().flat_map(|it| token_counts(it)).map(|(prompt, _)| f64::from(prompt));
    median(&counts.collect::<Vec<_>>())
}

/// The token counts of the prompt and of the output, for each sequence.
fn token_counts(sample: &Sample) -> Vec<(u32, u64)> {
    sample.iteration.sequences.iter().map(|it| (it.prompt_tokens, output_tokens(it))).collect()
}

fn token_counts_in_words(sample: &Sample) -> String {
    let counts = token_counts(sample).into_iter().map(|(prompt, output)| format!("{prompt} + {output}"));
    counts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
