//! Checks whether requests fit the context of a model: the largest number of tokens in a prompt and its output together.

use anyhow::{Result, bail};

use super::{Model, Plan, Prompt, Selection, Workload};
use crate::plan::rows;
use crate::plan::scenario::{Kind, Scenario};
use crate::plan::texts::Length;
use crate::shell::{Usage, this_command_with_value};
use crate::text::{plural, with_commas};

/// The context of a model, and the tokens of the user's longest prompt.
#[derive(Debug, Clone, Copy, Default)]
pub struct ContextLimit {
    /// `None` if unknown.
    pub tokens: Option<u32>,
    pub prompt_tokens: Option<usize>,
}

impl ContextLimit {
    fn excess(&self, workload: &Workload) -> Option<String> {
        excess(self.tokens, workload.longest_prompt(|_| self.prompt_tokens)?, workload)
    }
}

/// The reason why a request does not fit. `None` if it fits, if the context is unknown, or if the prompt is longer than the
/// context on purpose (`--prompts beyond`).
pub fn excess(context: Option<u32>, prompt_tokens: usize, workload: &Workload) -> Option<String> {
    let tokens_before = workload.shape.tokens_before_prompt() as usize;
    let of_file = workload.shape.largest_of_file().filter(|_| matches!(workload.prompt, Prompt::Tokens(_)));
    let of_file = of_file.map(|it| (tokens_before + it.prompt_tokens as usize, it.new_tokens));
    let (prompt_tokens, max_new_tokens) = of_file.unwrap_or((prompt_tokens, workload.max_new_tokens));
    if workload.shape.text.length() == Length::BeyondContext {
        return None;
    }
    let context = context.filter(|&context| prompt_tokens + max_new_tokens as usize > context as usize)?;
    let [prompt, new, context] = [prompt_tokens, max_new_tokens as usize, context as usize].map(with_commas);
    let (prompt, new) = (plural(prompt, "prompt token"), plural(new, "new token"));
    Some(format!("{prompt} and {new} {EXCEED} {context}"))
}

const EXCEED: &str = "exceed the context of";

/// The part of a reason of `excess` that all requests beyond the same context share: `exceed the context of 2,048`.
pub fn common_reason(excess: &str) -> Option<&str> {
    excess.find(EXCEED).map(|at| &excess[at..])
}

/// Refuses the selection if no request fits any model's context, or no request of a scenario that the user named. If the user
/// set numbers of tokens, a scenario that measures launches does not count as fitting, because it ignores the prompt length.
/// `named`: the words of `-s`, which may be names of suites too. `limit_of`: the limit of a model with the user's prompt.
pub fn check(
    selection: &Selection,
    named: &[String],
    limit_of: impl Fn(&Model, &[String]) -> ContextLimit,
) -> Result<()> {
    let files =
        selection.axes.prompts.iter().filter_map(|text| text.file()).flat_map(|file| file.texts.iter());
    let prompts: Vec<String> = selection.prompt.iter().chain(files).cloned().collect();
    let limits: Vec<_> = selection.models.iter().map(|it| (it, limit_of(it, &prompts))).collect();
    let mut refused: Vec<(Workload, String)> = Vec::new();
    let mut one_fits = false;
    let axes = &selection.axes;
    let sets_tokens = [&axes.prompt_tokens, &axes.new_tokens, &axes.depth].iter().any(|it| !it.is_empty());
    for scenario in &selection.scenarios {
        let workloads = |(model, limit): &(&Model, ContextLimit)| {
            (rows::workloads(selection, scenario, model.context_tokens), *limit)
        };
        let workloads: Vec<(Vec<Workload>, ContextLimit)> = limits.iter().map(workloads).collect();
        if !workloads.is_empty() && workloads.iter().all(|(of_model, _)| of_model.is_empty()) {
            bail!(Usage(without_requests(selection, scenario, &limits)));
        }
        let refused_by = |(of_model, limit): (Vec<Workload>, ContextLimit)| -> Option<Vec<_>> {
            of_model.into_iter().map(|it| limit.excess(&it).map(|excess| (it, excess))).collect()
        };
        // If no request of the scenario fits any model, the error names only the requests of the first model.
        let by_models: Option<Vec<_>> = workloads.into_iter().map(refused_by).collect();
        let Some(of_scenario) = by_models.and_then(|it| it.into_iter().next()) else {
            one_fits |= !sets_tokens || scenario.kind.is_warm() || scenario.kind == Kind::Serve;
            continue;
        };
        if named.iter().any(|name| name == scenario.name) {
            bail!(Usage(refusal(selection, &of_scenario, &limits)));
        }
        refused.extend(of_scenario);
    }
    if !one_fits && !refused.is_empty() {
        bail!(Usage(refusal(selection, &refused, &limits)));
    }
    Ok(())
}

fn model_names(limits: &[(&Model, ContextLimit)]) -> String {
    let models: Vec<_> = limits.iter().map(|(model, _)| format!("`{}`", model.name)).collect();
    models.join(" and of ")
}

/// The reason why a scenario has no request with any of its texts.
fn without_requests(selection: &Selection, scenario: &Scenario, limits: &[(&Model, ContextLimit)]) -> String {
    let (name, axes) = (scenario.name, scenario.axes_with(&selection.axes));
    if axes.depth.is_empty() || axes.depth.contains(&0) {
        let models = model_names(limits);
        return format!(
            "`{name}` has no prompt `long` or `beyond`: the context of {models} is unknown\n\
             hint: orchestrate scenarios # for another kind of text"
        );
    }
    format!(
        "`{name}`: each of its requests has a depth, and the prompts of `--prompts` have none\n\
         hint: a scenario without a depth, such as `-s decode`"
    )
}

fn refusal(
    selection: &Selection,
    refused: &[(Workload, String)],
    limits: &[(&Model, ContextLimit)],
) -> String {
    let models = model_names(limits);
    let lines: Vec<_> =
        refused.iter().map(|(workload, excess)| format!("`{}`: {excess}", workload.label)).collect();
    // The number of new tokens for which the longest selected prompt leaves room. Prompts that never fit do not count.
    let context = limits.iter().filter_map(|(_, limit)| limit.tokens).max().unwrap_or_default();
    let workloads =
        selection.scenarios.iter().flat_map(|scenario| rows::workloads(selection, scenario, None));
    let of_texts = || limits.iter().filter_map(|it| it.1.prompt_tokens).max();
    let prompt_tokens = workloads.map(|workload| workload.longest_prompt(|_| of_texts()).unwrap_or(0) as u32);
    let room = prompt_tokens.filter(|&tokens| tokens < context).max().map(|tokens| context - tokens);
    let sets_depth =
        |(workload, _): &(Workload, String)| selection.axes.depth.contains(&workload.shape.depth);
    let is_too_deep = refused.iter().any(|it| it.0.shape.depth > 0 && sets_depth(it));
    let of_file = || {
        let file = refused.iter().find_map(|(workload, _)| workload.shape.lengths.file())?;
        let (tokens, path) = (with_commas(context as usize), file.path());
        Some(format!(
            "leave out the requests of `{path}` with more than {tokens} tokens; or another model with `-m`"
        ))
    };
    let hint = match (room, largest_depth(selection, context).filter(|_| is_too_deep)) {
        (_, Some(depth)) => this_command_with_value("--depth", None, &depth.to_string()),
        (Some(room), _) if selection.axes.new_tokens.iter().any(|&requested| requested > room) => {
            this_command_with_value("--new-tokens", None, &room.to_string())
        }
        _ => of_file().unwrap_or_else(|| {
            "orchestrate scenarios # for another scenario; or another model with `-m`".into()
        }),
    };
    format!("the requests do not fit the context of {models}:\n{}\nhint: {hint}", lines.join("\n"))
}

/// The largest depth with which every selected request that has a depth fits this context.
fn largest_depth(selection: &Selection, context: u32) -> Option<u32> {
    let workloads =
        selection.scenarios.iter().flat_map(|scenario| rows::workloads(selection, scenario, None));
    let room = |workload: Workload| {
        let Prompt::Tokens(tokens) = workload.prompt else { return None };
        let depth = workload.shape.depth;
        let others = (tokens - depth.min(tokens)).saturating_add(workload.max_new_tokens);
        (depth > 0).then(|| context.saturating_sub(others))
    };
    workloads.filter_map(room).min().filter(|depth| *depth > 0)
}

/// A workload that does not fit the context of a model.
#[derive(Debug, PartialEq, Eq)]
pub struct Unfit {
    pub model: String,
    pub workload: String,
    pub reason: String,
}

/// The workloads of a plan that do not fit, each once. `limit_of` is as in `check`.
pub fn unfit(plan: &Plan, limit_of: impl Fn(&Model, &[String]) -> ContextLimit) -> Vec<Unfit> {
    let mut unfit = Vec::new();
    let mut limits: Vec<(&Model, ContextLimit)> = Vec::new();
    for case in &plan.cases {
        let model = &plan.configurations[case.configuration].model;
        let prompt = match &case.workload.prompt {
            Prompt::Text(text) => text.texts(),
            Prompt::Tokens(_) => &[],
        };
        if !limits.iter().any(|(known, _)| *known == model) {
            limits.push((model, limit_of(model, prompt)));
        }
        let limit = limits.iter().find(|(known, _)| *known == model).map(|it| it.1).unwrap_or_default();
        if let Some(excess) = limit.excess(&case.workload) {
            let workload = case.workload.label.clone();
            let found = Unfit { model: model.name.clone(), workload, reason: excess };
            if !unfit.contains(&found) {
                unfit.push(found);
            }
        }
    }
    unfit
}
