//! The rows of a plan: the cross product of the selected lists, with labels and workloads.

use std::collections::BTreeSet;

use protocol::Sampling;

use super::axes::{Axes, Point, Shape};
use super::scenario::{Kind, Scenario};
use super::texts::{Length, OwnText, TextFile};
use super::{
    Configuration, Model, Plan, Prompt, Selection, VERIFIER_DTYPE, Workload, dtype, engine_name,
    name_in_dtype, unique_label,
};
use crate::engines::load_values::LoadValue;
use crate::engines::manifest::{QUANTIZE_OPTION, options_beside_precision};
use crate::engines::{Candidate, Start};
use crate::machine::Device;

/// The end of a label whose prompt was shortened to the model's context.
const FULL_CONTEXT: &str = "full context";

/// One combination of the selected engines, models, devices, dtypes and thread counts.
struct Row<'a> {
    candidate: &'a Candidate,
    model: &'a Model,
    device: &'a Device,
    dtype: Option<&'a str>,
    threads: u32,
}

impl Plan {
    pub fn new(selection: &Selection) -> Self {
        let mut plan = Self {
            mode: selection.mode,
            order: selection.order,
            extent: selection.extent.with_default_budget(),
            seed: selection.seed,
            nonce: selection.nonce,
            reference: selection.reference.clone(),
            verification: selection.verification,
            latency_limits: selection.latency_limits,
            targets: selection.targets.clone(),
            ..Self::default()
        };
        let workloads_on = |model: &Model| -> Vec<Workload> {
            let of_scenario = |scenario| workloads(selection, scenario, model.context_tokens);
            selection.scenarios.iter().flat_map(of_scenario).collect()
        };
        for row in selection.combinations() {
            plan.add(row.configuration(selection), &workloads_on(row.model));
        }
        let references: BTreeSet<usize> = plan.pairs().into_iter().map(|(_, reference)| reference).collect();
        references.into_iter().for_each(|reference| plan.add_twin(reference));
        plan.add_null_engine(selection);
        for model in &selection.models {
            plan.add_verifier(selection, model, &workloads_on(model));
        }
        plan
    }
}

impl Selection {
    /// The labels that the rows of the plan will have.
    pub fn labels(&self) -> Vec<String> {
        let mut labels: Vec<String> = Vec::new();
        for row in self.combinations() {
            let label = unique_label(row.label(self), |label| labels.iter().any(|other| other == label));
            labels.push(label);
        }
        labels
    }

    /// Whether a row of the plan has this name: as its label, or as its engine with its dtype.
    pub(super) fn names_row(&self, name: &str) -> bool {
        let is_in_dtype = |row: &Row| row.name_in_dtype().is_some_and(|it| it == name);
        self.labels().iter().any(|label| label == name) || self.combinations().iter().any(is_in_dtype)
    }

    /// The name of the widest precision of an engine, on every model and device. A row that differs from all others in more than the
    /// precision counts only if all rows do. Of equal widths, the first row counts.
    pub(super) fn widest_precision(&self, engine: &str) -> Option<String> {
        let mut rows = self.combinations();
        rows.retain(|row| {
            let values = self.load_values(row.device, row.dtype);
            row.candidate.engine == engine && row.candidate.unsupported(values).is_none()
        });
        let options = |row: &Row| options_beside_precision(&row.candidate.options);
        let has_others = |row: &Row| {
            let is_other = |it: &&Row| (it.name(), it.dtype()) != (row.name(), row.dtype());
            rows.iter().filter(is_other).any(|it| options(it) == options(row))
        };
        let widest = rows.iter().rev().max_by_key(|row| (has_others(row), row.width()))?;
        let mut namesakes = rows.iter().filter(|row| row.name() == widest.name());
        let has_one_dtype = namesakes.all(|row| row.dtype() == widest.dtype());
        widest.name_in_dtype().filter(|_| !has_one_dtype).or_else(|| Some(widest.name()))
    }

    fn combinations(&self) -> Vec<Row<'_>> {
        let mut rows = Vec::new();
        for model in &self.models {
            for device in &self.devices {
                for dtype in &self.dtypes {
                    for &threads in &self.threads {
                        let dtype = dtype.as_deref();
                        let row = |candidate| Row { candidate, model, device, dtype, threads };
                        rows.extend(self.candidates.iter().map(row));
                    }
                }
            }
        }
        rows
    }

    /// Whether the engine accepts the values of at least one of the candidate's rows on a device.
    pub(super) fn supports(&self, candidate: &Candidate, device: &Device) -> bool {
        self.dtypes.iter().any(|dtype| {
            let values = self.load_values(device, dtype.as_deref());
            candidate.unsupported(values).is_none()
        })
    }

    /// The values of a row that its engine might refuse.
    fn load_values<'a>(
        &'a self,
        device: &'a Device,
        dtype: Option<&'a str>,
    ) -> impl Iterator<Item = LoadValue<'a>> {
        let options = self
            .options
            .iter()
            .flat_map(|(name, value)| [LoadValue::Option(name), LoadValue::OptionValue(name, value)]);
        std::iter::once(LoadValue::Device(device)).chain(dtype.map(LoadValue::Dtype)).chain(options)
    }

    /// Whether a row with these values is the verifier itself.
    fn is_verifier(&self, candidate: &Candidate, device: &Device, dtype: Option<&str>) -> bool {
        let identity =
            |it: &Candidate| (it.engine.clone(), it.preset.clone(), it.start_for(device).command.clone());
        self.verifier.as_ref().is_some_and(|verifier| identity(verifier) == identity(candidate))
            && self.verifier_device().is_same(device)
            // The default dtype of an engine on a GPU may be narrower.
            && dtype.map_or(device.is_cpu(), |dtype| dtype == VERIFIER_DTYPE)
    }
}

impl Row<'_> {
    /// The name of the engine with its preset.
    fn name(&self) -> String {
        engine_name(&self.candidate.engine, self.candidate.preset.as_deref())
    }

    /// The name with the dtype that is requested.
    fn name_in_dtype(&self) -> Option<String> {
        self.dtype().map(|dtype| name_in_dtype(&self.name(), dtype))
    }

    fn dtype(&self) -> Option<&str> {
        self.dtype.or(self.candidate.dtype.as_deref())
    }

    /// The width of the precision that is requested. An option that quantizes the weights hides their dtype.
    fn width(&self) -> [u32; 2] {
        let is_quantized = self.candidate.options.contains_key(QUANTIZE_OPTION);
        dtype::width(self.dtype().filter(|_| !is_quantized), None)
    }

    /// The label of the row: the engine and the factors that vary. The caption has the other factors.
    fn label(&self, selection: &Selection) -> String {
        let Self { candidate, model, device, dtype, threads } = self;
        let mut label = self.name();
        let is_named_alike = |it: &&Candidate| it.engine == candidate.engine && it.preset == candidate.preset;
        let mut namesakes = selection.candidates.iter().filter(is_named_alike);
        let has_own_dtype = namesakes.any(|it| it.dtype != candidate.dtype);
        let plural = if *threads == 1 { "thread" } else { "threads" };
        let factors = [
            (selection.models.len() > 1, model.name.clone()),
            (selection.devices.len() > 1, device.to_string()),
            (has_own_dtype, candidate.dtype.clone().unwrap_or_else(|| "default dtype".into())),
            (selection.dtypes.len() > 1, dtype.unwrap_or("default dtype").into()),
            (selection.threads.len() > 1, format!("{threads} {plural}")),
        ];
        for (_, name) in factors.into_iter().filter(|(varies, _)| *varies) {
            label.push_str(&format!(" {name}"));
        }
        label
    }

    fn configuration(&self, selection: &Selection) -> Configuration {
        let Self { candidate, model, device, dtype, threads } = *self;
        let unsupported = candidate.unsupported(selection.load_values(device, dtype));
        let dtype = self.dtype().map(String::from);
        let mut options = candidate.options.clone();
        options.extend(selection.options.clone());
        let mut start = candidate.start_for(device).clone();
        let is_unsupported = unsupported.is_some();
        if let Some(unsupported) = unsupported {
            start = Start::unavailable(unsupported);
        }
        Configuration {
            label: self.label(selection),
            engine: candidate.engine.clone(),
            preset: candidate.preset.clone(),
            command: start.command,
            model: model.clone(),
            device: device.clone(),
            threads,
            options,
            unavailable: start.unavailable,
            unsupported: is_unsupported,
            role: None,
            // A paused process keeps its memory on the device, so the next engine might not fit.
            alone: candidate.alone || !device.is_cpu(),
            verifies: selection.is_verifier(candidate, device, dtype.as_deref()),
            dtype,
            against: candidate.against.clone(),
        }
    }
}

/// One workload for each combination of values of the axes; one workload of a query. The user's prompt replaces the prompt lengths.
/// In a scenario of launches, such as `load`, the number of new tokens is the only axis that the user can set.
///
/// A text with a length of its own has no depth, so it is left out of a scenario where each request has one.
///
/// Among several lengths, a prompt that the context does not hold becomes the longest that it holds.
pub(super) fn workloads(selection: &Selection, scenario: &Scenario, context: Option<u32>) -> Vec<Workload> {
    let is_launch = scenario.kind == Kind::Launch;
    let (is_query, scores_text) = (scenario.kind == Kind::Query, scenario.kind == Kind::Score);
    let prompt = selection.prompt.as_ref().filter(|_| !scores_text && !is_query);
    let scored_text = selection.scored_text.as_ref().filter(|_| scores_text);
    let temperature = selection.temperature.filter(|&temperature| temperature > 0.0 && !is_query);
    let sampling = |temperature| Sampling { temperature, seed: selection.seed, ..Sampling::default() };
    let mut axes = scenario.axes_with(&selection.axes);
    if prompt.is_some() {
        axes.prompt_tokens = axes.prompt_tokens.get(..1).unwrap_or_default();
        (axes.depth, axes.prompts) = (&[], &[]);
    }
    let workload = |(point, shortened_from): (Point, Option<u32>)| Workload {
        scenario: scenario.name.into(),
        label: label(scenario.name, &words(&axes, &point, shortened_from, scenario, scored_text)),
        shortened_from,
        kind: scenario.kind,
        headline: scenario.headline,
        prompt: match (prompt, point.text.file()) {
            (Some(text), _) => Prompt::Text(text.as_str().into()),
            (None, Some(file)) => Prompt::Text(OwnText::File(file.clone())),
            (None, None) => Prompt::Tokens(point.all_prompt_tokens()),
        },
        max_new_tokens: point.new_tokens,
        shape: point.shape.with_drawn_lengths(selection.seed),
        ignore_eos: point.new_tokens > 1,
        sampling: temperature.map(sampling).filter(|_| !scores_text),
        warmup: if is_launch || scores_text { Some(0) } else { selection.warmup },
        rounds: match scenario.kind {
            Kind::Launch => 1,
            Kind::Warm | Kind::Speculative | Kind::Stress | Kind::Serve | Kind::Query | Kind::Score => {
                selection.rounds.unwrap_or(scenario.rounds)
            }
        },
        scored_text: scored_text.cloned(),
    };
    let mut points: Vec<(Point, Option<u32>)> = Vec::new();
    let is_without_depth = axes.depth.is_empty() || axes.depth.contains(&0);
    for point in axes.points() {
        if is_query {
            points.push((point, None));
            continue;
        }
        if !point.text.has_length_of_axis() && !is_without_depth {
            continue;
        }
        let has_length = prompt.is_none() && point.text.file().is_none();
        // A single length that does not fit is an error, because the user named this length and no other. The usual length of a
        // window becomes that of the context.
        let is_sweep = axes.prompt_tokens.len() > 1 || scores_text && selection.axes.prompt_tokens.is_empty();
        let is_shortened = has_length && is_sweep && point.shape.longest_of_file().is_none();
        let longest = context.filter(|_| is_shortened).and_then(|it| longest_prompt(&point, it));
        let with_length = |prompt_tokens| Point { prompt_tokens, ..point };
        let without_depth = |prompt_tokens| {
            let shape = Shape { depth: 0, ..point.shape };
            (Point { prompt_tokens, shape, ..point }, None)
        };
        let sent = match (point.shape.text.length(), context) {
            _ if !has_length => without_depth(axes.prompt_tokens[0]),
            (Length::OfAxis, _) => match longest {
                Some(longest) => (with_length(longest), Some(point.prompt_tokens)),
                None => (point, None),
            },
            (Length::Tokens(tokens), _) => without_depth(tokens),
            (Length::ToContextEnd, Some(context)) => {
                without_depth(context.saturating_sub(point.new_tokens).max(1))
            }
            (Length::BeyondContext, Some(context)) => without_depth(context.saturating_add(1)),
            // Without a known context there is no such prompt.
            (Length::ToContextEnd | Length::BeyondContext, None) => continue,
        };
        // Several lengths may become the same one.
        if !points.iter().any(|(known, _)| *known == sent.0) {
            points.push(sent);
        }
    }
    points.into_iter().map(workload).collect()
}

/// The longest prompt of a request that the context holds, if the point has a longer one. Only a prompt with nothing before it is
/// shortened, and it stays longer than the output: otherwise the request would not be what the scenario measures.
fn longest_prompt(point: &Point, context: u32) -> Option<u32> {
    let room = context.checked_sub(point.new_tokens)?;
    let is_useful = point.shape.tokens_before_prompt() == 0 && room > point.new_tokens;
    (is_useful && point.prompt_tokens > room).then_some(room)
}

/// The words of a workload's label. The length of a shortened prompt is always named, and a file of prompts has no length. The
/// user's text to score has the name of its file.
fn words(
    axes: &Axes,
    point: &Point,
    shortened_from: Option<u32>,
    scenario: &Scenario,
    scored_text: Option<&TextFile>,
) -> Vec<String> {
    let named =
        Axes { prompt_tokens: if point.text.file().is_some() { &[] } else { axes.prompt_tokens }, ..*axes };
    let mut words = named.words_of(point, &scenario.axes);
    if shortened_from.is_some() {
        let length = format!("{} {FULL_CONTEXT}", point.prompt_tokens);
        match words.first_mut() {
            Some(first) => *first = length,
            None => words.push(length),
        }
    }
    words.extend(scored_text.map(TextFile::name));
    words
}

/// The scenario, and the values that vary or are unusual. If the scenario has the name of an axis, the name is written once:
/// `batch 4`, not `batch batch 4`.
fn label(scenario: &str, words: &[String]) -> String {
    let words = words.join(" ");
    match words.strip_prefix(scenario).filter(|rest| rest.starts_with(' ')) {
        Some(rest) => format!("{scenario}{rest}"),
        None => format!("{scenario} {words}").trim_end().into(),
    }
}
