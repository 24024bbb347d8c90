//! The choice among the engines of a model, by the latency of a chat answer.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::result::{Choice, EngineWithReason, ModelRecommendation, SpeedUp};
use crate::analysis::agreement::Status;
use crate::analysis::compare::all_pairs;
use crate::analysis::compare::latency::ChatLatency;
use crate::analysis::metric::MetricId;
use crate::analysis::values::Measured;
use crate::plan::dtype::{bits, is_narrower};
use crate::report::ranking::{Unranked, why_unranked};
use crate::report::rows::Row;
use crate::report::run_data::RunData;
use crate::report::run_report::Report;
use crate::text::line;
use stats::{Comparison, Verdict};

/// The largest ratio of latencies at which engines tie. If a difference is inconclusive and larger, the engine with the lower
/// estimated latency is recommended.
pub const MAX_TIE_RATIO: f64 = 1.1;

/// The configurations of a record that may be recommended: they can have a rank, and have a latency. `excluded` has the others,
/// each with the reason.
pub struct Candidates {
    /// The workload of the time to first token.
    pub first_token: Option<String>,
    /// The workload of the decode rate.
    pub decode: Option<String>,
    eligible: Vec<Candidate>,
    excluded: Vec<(String, EngineWithReason)>,
    comparisons: BTreeMap<(usize, usize), Comparison>,
}

struct Candidate {
    configuration: usize,
    model: String,
    /// Bits of a weight, if the dtype is known.
    bits: Option<f64>,
    is_unquantized: bool,
    choice: Choice,
}

impl Candidates {
    pub fn of(data: &RunData, report: &Report) -> Self {
        let mut all = Self {
            first_token: None,
            decode: None,
            eligible: Vec::new(),
            excluded: Vec::new(),
            comparisons: BTreeMap::new(),
        };
        let is_sound = |index: usize| !data.agreements[index].is_wrong();
        let pairs: Vec<(usize, usize)> =
            all_pairs(data.plan).into_iter().filter(|&(a, b)| is_sound(a) && is_sound(b)).collect();
        let measured = Measured::from(&data.values);
        let Some(latency) = ChatLatency::of(&measured, &pairs) else { return all };
        all.first_token = latency.first_token.map(|it| line(&it.label));
        all.decode = latency.decode.map(|it| line(&it.label));
        for pair in latency.pairs {
            let Ok(comparison) = pair.result else { continue };
            all.comparisons.insert((pair.against, pair.configuration), comparison.inverted());
            all.comparisons.insert((pair.configuration, pair.against), comparison);
        }
        let cases: Vec<String> = all.first_token.iter().chain(&all.decode).cloned().collect();
        for configuration in (0..data.engines.len()).filter(|&it| data.is_measured_row(it)) {
            let engine = &data.engines[configuration];
            let of_engine = report.rows.iter().filter(|row| row.engine.label == engine.label);
            let rows: Vec<&Row> = of_engine.filter(|row| cases.contains(&row.case.label)).collect();
            let why = rows.iter().find_map(|row| why_unranked(report, row, row.case.headline?));
            let estimate = latency.estimates.get(&configuration).copied();
            match (why, estimate) {
                _ if report.no_checks.is_some() => {
                    all.exclude(data, report, configuration, Some(Unranked::Unverified))
                }
                (None, Some(latency_ns)) if rows.len() == cases.len() => {
                    all.eligible.push(candidate(data, report, configuration, &rows, latency_ns));
                }
                (why, _) => all.exclude(data, report, configuration, why),
            }
        }
        all
    }

    fn exclude(&mut self, data: &RunData, report: &Report, configuration: usize, why: Option<Unranked>) {
        let engine = &data.engines[configuration];
        let agreement = &data.agreements[configuration];
        let because = || agreement.reasons.first().map_or_else(String::new, |why| format!(": {}", line(why)));
        let (reason, hint) = match why {
            Some(Unranked::Unverified) if report.no_checks.is_some() => {
                ("its output was not checked".into(), None)
            }
            Some(Unranked::Unverified) => (format!("its output is unverified{}", because()), None),
            Some(Unranked::Wrong) => (format!("its output is wrong{}", because()), None),
            Some(Unranked::Contradicted) => {
                let mut claims = report.contradictions.iter();
                let claim = claims.find(|it| it.label == engine.label);
                let both = claim.map_or_else(String::new, |it| {
                    format!(" about {}: reported {}, observed {}", it.about.name(), it.reported, it.observed)
                });
                (format!("a claim is contradicted{both}"), None)
            }
            Some(Unranked::Failed) => {
                let of_engine = report.rows.iter().filter(|row| row.engine.label == engine.label);
                let failure = of_engine.filter_map(|row| row.failure.as_ref()).next();
                let hint = failure.and_then(|it| it.hint.as_ref()?.lines().next().map(String::from));
                (failure.map_or_else(|| "it failed".into(), |it| format!("it failed: {}", it.line())), hint)
            }
            Some(Unranked::NoValue) | None => ("it has no value in one of the cases".into(), None),
        };
        let excluded = EngineWithReason { engine: engine.label.clone(), reason, hint };
        self.excluded.push((engine.model.clone(), excluded));
    }

    pub fn for_model(&self, model: &str) -> ModelRecommendation {
        let of_model: Vec<&Candidate> = self.eligible.iter().filter(|it| it.model == model).collect();
        let (unquantized, quantized): (Vec<&Candidate>, Vec<&Candidate>) =
            of_model.iter().partition(|it| it.is_unquantized);
        let excluded = self.excluded.iter().filter(|(of, _)| of == model);
        ModelRecommendation {
            model: model.to_string(),
            best: self.choose(&of_model),
            without_quantization: self.choose(&unquantized),
            lower_precision: self.choose(&quantized),
            not_recommended: excluded.map(|(_, excluded)| excluded.clone()).collect(),
        }
    }

    fn choose(&self, candidates: &[&Candidate]) -> Option<Choice> {
        let by_latency =
            |a: &&&Candidate, b: &&&Candidate| a.choice.latency_ns.total_cmp(&b.choice.latency_ns);
        let fastest = candidates.iter().min_by(by_latency)?;
        let ties = || candidates.iter().filter(|it| self.is_tie(fastest, it));
        let chosen = ties().min_by(|a, b| preference(a, b)).unwrap_or(fastest);
        let others = candidates.iter().filter(|it| it.configuration != chosen.configuration);
        // The chosen engine is compared with the fastest of the others, whether or not the two tie.
        let next = others.min_by(by_latency);
        let ties = ties().filter(|it| it.configuration != chosen.configuration);
        let ties = ties.map(|it| it.choice.engine.clone()).collect();
        let against = next.and_then(|next| self.against(chosen, next));
        Some(Choice { against, ties, ..chosen.choice.clone() })
    }

    /// Whether another engine ties with the fastest: the difference is inconclusive, and small.
    fn is_tie(&self, fastest: &Candidate, other: &Candidate) -> bool {
        if fastest.configuration == other.configuration {
            return true;
        }
        let comparison = self.comparisons.get(&(fastest.configuration, other.configuration));
        let is_a_difference =
            comparison.and_then(|it| it.decision.verdict).is_some_and(Verdict::is_a_difference);
        !is_a_difference && other.choice.latency_ns <= MAX_TIE_RATIO * fastest.choice.latency_ns
    }

    fn against(&self, chosen: &Candidate, next: &Candidate) -> Option<SpeedUp> {
        let comparison = self.comparisons.get(&(chosen.configuration, next.configuration))?;
        let (low, high) = comparison.evidence.ends();
        Some(SpeedUp {
            engine: next.choice.engine.clone(),
            ratio: comparison.evidence.estimate().exp(),
            low: low.exp(),
            high: high.exp(),
            verdict: comparison.decision.verdict,
            why_inconclusive: comparison.why_inconclusive(),
            blocks: comparison.blocks,
        })
    }
}

/// The order among engines that tie: the better status, the higher precision, the smaller memory, the lower latency.
fn preference(a: &Candidate, b: &Candidate) -> Ordering {
    let precision = |it: &Candidate| it.bits.unwrap_or(0.0);
    let memory = |it: &Candidate| it.choice.peak_bytes.unwrap_or(f64::INFINITY);
    let by_status = a.choice.status.cmp(&b.choice.status);
    let by_precision = || precision(b).total_cmp(&precision(a));
    let by_memory = || memory(a).total_cmp(&memory(b));
    by_status
        .then_with(by_precision)
        .then_with(by_memory)
        .then(a.choice.latency_ns.total_cmp(&b.choice.latency_ns))
}

fn candidate(
    data: &RunData,
    report: &Report,
    configuration: usize,
    rows: &[&Row],
    latency_ns: f64,
) -> Candidate {
    let engine = &data.engines[configuration];
    let agreement = &data.agreements[configuration];
    let estimate = |id: MetricId| {
        let row = rows.iter().find(|row| row.case.headline.map(|it| it.id) == Some(id))?;
        row.summary(id).map(|summary| summary.estimate)
    };
    let weights = engine.dtype.as_ref().map(|dtype| dtype.weights.as_str());
    let model = data.plan.configurations[configuration].model.dtype.as_deref();
    // A dtype of unknown width could be narrow, so it does not count as the model's own precision.
    let has_own_precision = weights.zip(model).is_some_and(|(weights, model)| {
        bits(weights).is_some() && bits(model).is_some() && !is_narrower(weights, model)
    });
    let of_engine = report.rows.iter().filter(|row| row.engine.label == engine.label);
    let peaks = of_engine.filter_map(|row| row.summary(MetricId::PEAK_MEMORY)).map(|it| it.estimate);
    Candidate {
        configuration,
        model: engine.model.clone(),
        bits: weights.and_then(bits),
        is_unquantized: has_own_precision || agreement.status == Status::Exact,
        choice: Choice {
            engine: engine.label.clone(),
            dtype: engine.dtype.as_ref().map(ToString::to_string),
            status: agreement.status,
            nats: agreement.rms(),
            latency_ns,
            first_token_ns: estimate(MetricId::FIRST_TOKEN),
            decode_rate: estimate(MetricId::DECODE_RATE),
            peak_bytes: peaks.reduce(f64::max),
            against: None,
            ties: Vec::new(),
        },
    }
}
