//! The comparisons between rows: ratios with their certainty, geometric means and noise floors, with labels in place of indices.

mod calibration;

use std::collections::BTreeSet;

use serde::Serialize;

pub use calibration::{Calibration, Uncalibrated};

use super::rows::{Row, group_by_key};
use super::run_data::RunData;
use crate::analysis::agreement::Status;
use crate::analysis::compare::{self, Compared};
use crate::analysis::metric::{self, Metric, Unit};
use crate::analysis::values::Measured;
use crate::plan::{Plan, Role, Workload};
use crate::text::line;
use stats::{Comparison, Evidence, NoRatio, NoiseFloor, Ratios, Verdict, geometric_mean};

#[derive(Debug, Clone, Default)]
pub struct Verdicts {
    /// Each row against its reference, by every metric that both have.
    pub against_reference: Vec<PairVerdict>,
    /// Every pair of rows. The correction for many comparisons is stronger here, so a small difference in
    /// `against_reference` may be inconclusive here.
    pub all_pairs: Vec<PairVerdict>,
    /// Each row against the earlier program of its baseline, if this run measured that program again.
    pub against_baseline: Vec<PairVerdict>,
    /// Each row against the widest precision of its engine, if the engine has several precisions.
    pub against_widest: Vec<PairVerdict>,
    /// The effects of presets, in the words of their manifests.
    pub preset_effects: Vec<PresetEffect>,
    pub means: Vec<Mean>,
    pub noise: Vec<Noise>,
    pub calibration: Calibration,
}

/// A preset against another preset of its engine, by every metric that both have.
#[derive(Debug, Clone)]
pub struct PresetEffect {
    pub effect: String,
    pub pairs: Vec<PairVerdict>,
}

#[derive(Debug, Clone)]
pub struct PairVerdict {
    /// The workload's label.
    pub case: String,
    pub metric: &'static Metric,
    /// Labels of configurations.
    pub engine: String,
    pub against: String,
    pub is_headline: bool,
    /// Whether the outputs of both sides are verified. Views for people hide other ratios: an engine that runs no model would be the
    /// fastest, and a setting with which an engine skips work the best. JSON and CSV have all ratios, with the status of each output.
    pub is_verified: bool,
    pub result: Result<Comparison, String>,
    pub sentence: String,
}

/// The geometric mean of an engine's headline ratios over all workloads without prefix caches. JSON has these names, so they never
/// change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mean {
    pub engine: String,
    pub against: String,
    #[serde(rename = "times")]
    pub ratio: f64,
    pub workloads: usize,
    pub is_conclusive: bool,
    /// Whether the outputs of the engine and of the reference are verified. Views for people show only verified means.
    pub is_verified: bool,
    /// Whether an observation contradicts a claim of the engine, so that its results may look too good.
    pub is_contradicted: bool,
}

/// The noise floors of this run, from a configuration and its twin: each workload with the noise floor of its headline metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Noise {
    pub engine: String,
    pub floors: Vec<(String, NoiseFloor)>,
}

/// The certainty of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    Differs,
    Same,
    Inconclusive,
    /// Too few blocks, or `--order sequential`.
    NoVerdict,
}

impl Certainty {
    pub const ALL: [Self; 4] = [Self::Differs, Self::Same, Self::Inconclusive, Self::NoVerdict];

    /// The words of a report for this certainty.
    pub fn words(self) -> &'static str {
        match self {
            Self::Differs => "faster, slower",
            Self::Same => "same",
            Self::Inconclusive => "inconclusive",
            Self::NoVerdict => "no verdict",
        }
    }

    pub fn about(self) -> &'static str {
        match self {
            Self::Differs => "the interval excludes 1, and the difference exceeds 2 % and the noise floor",
            Self::Same => "the whole interval is within 2 % of 1",
            Self::Inconclusive => "neither a difference nor `same` is certain",
            Self::NoVerdict => "there are too few blocks, or the engines ran one after the other",
        }
    }

    /// The explanation below a table.
    pub fn legend(self) -> String {
        format!("{}: {}", self.words(), self.about())
    }
}

impl Verdicts {
    /// All verdicts. A configuration with wrong output is in no comparison.
    /// `precisions`: the pairs of a row and the widest precision of its engine.
    pub fn of(data: &RunData, rows: &[(usize, Row)], precisions: Vec<(usize, usize)>) -> Self {
        let (record, plan) = (data.record, data.plan);
        let measured = Measured::from(&data.values);
        let is_sound = |configuration: usize| !data.agreements[configuration].is_wrong();
        let only_sound = |pairs: Vec<(usize, usize)>| -> Vec<(usize, usize)> {
            pairs.into_iter().filter(|&(a, b)| is_sound(a) && is_sound(b)).collect()
        };
        let verdicts_of = |pairs: &[(usize, usize)]| -> Vec<PairVerdict> {
            let comparisons = compare::compare_within(&measured, pairs).into_iter();
            comparisons.map(|compared| PairVerdict::of(data, compared)).collect()
        };
        let (with_reference, all) = (only_sound(plan.pairs()), only_sound(compare::all_pairs(plan)));
        let against_reference = verdicts_of(&with_reference);
        // With one engine besides the reference, both lists are equal, so the comparison is made once.
        let all_pairs = if all == with_reference { against_reference.clone() } else { verdicts_of(&all) };
        Self {
            means: means(rows, &against_reference),
            noise: noise(&measured),
            calibration: Calibration::of(record),
            against_widest: verdicts_of(&only_sound(precisions)),
            against_baseline: verdicts_of(&only_sound(compare::within::rerun_pairs(plan))),
            preset_effects: preset_effects(plan, rows, is_sound, verdicts_of),
            against_reference,
            all_pairs,
        }
    }

    /// The comparisons of verified engines for the view: all pairs, or each row against its reference.
    pub fn for_view(&self, pairs: bool) -> impl Iterator<Item = &PairVerdict> {
        let pairs = if pairs { &self.all_pairs } else { &self.against_reference };
        pairs.iter().filter(|pair| pair.is_verified)
    }

    /// The comparison of a row with its reference, by the headline. Both are verified.
    pub fn headline(&self, row: &Row) -> Option<&PairVerdict> {
        self.headline_for_view(row, false)
    }

    /// Like `headline`, but of the view's list. The list of all pairs has a stronger correction for many comparisons.
    pub fn headline_for_view(&self, row: &Row, pairs: bool) -> Option<&PairVerdict> {
        find_pair(self.for_view(pairs), row, row.case.headline?)
    }

    /// The comparison of a row with its reference, by a metric, also if an output is unverified.
    pub fn pair(&self, row: &Row, metric: &Metric) -> Option<&PairVerdict> {
        find_pair(self.against_reference.iter(), row, metric)
    }
}

fn find_pair<'a>(
    mut pairs: impl Iterator<Item = &'a PairVerdict>,
    row: &Row,
    metric: &Metric,
) -> Option<&'a PairVerdict> {
    let reference = row.reference.as_ref()?;
    let matches = |pair: &&PairVerdict| {
        pair.case == row.case.label
            && pair.metric.id == metric.id
            && (&pair.engine, &pair.against) == (&row.engine.label, reference)
    };
    pairs.find(matches)
}

impl PairVerdict {
    fn of(data: &RunData, compared: Compared) -> Self {
        let plan = data.plan;
        let label = |configuration: usize| line(&plan.configurations[configuration].label);
        let sides = [compared.configuration, compared.against];
        Self {
            is_verified: sides.iter().all(|side| data.agreements[*side].status != Status::Unverified),
            sentence: line(&compare::sentence(plan, &compared)),
            case: line(&compared.workload),
            metric: compared.metric,
            engine: label(compared.configuration),
            against: label(compared.against),
            is_headline: compared.gating,
            result: compared.result.map_err(|refusal| refusal.to_string()),
        }
    }

    /// A case against another case of the same configuration. `cases`: the labels of both.
    pub fn of_cases(
        data: &RunData,
        metric: &'static Metric,
        configuration: usize,
        cases: [String; 2],
        result: Result<Comparison, NoRatio>,
    ) -> Self {
        let [case, against] = cases;
        let engine = line(&data.plan.configurations[configuration].label);
        let subject = format!("`{engine}`");
        let sentence = compare::sentence::of_cases(data.plan, metric, subject, [&case, &against], &result);
        let sentence = line(&sentence);
        let result = result.map_err(|refusal| refusal.to_string());
        let is_verified = data.agreements[configuration].status != Status::Unverified;
        Self { sentence, case, metric, engine, against, is_headline: true, is_verified, result }
    }

    /// The comparison, where it was not refused.
    pub fn comparison(&self) -> Option<&Comparison> {
        self.result.as_ref().ok()
    }

    /// The speed-up of the engine over the other side: above 1 is better, for every metric.
    pub fn ratio(&self) -> Option<f64> {
        Some(self.comparison()?.evidence.estimate().exp()).filter(|ratio| ratio.is_finite())
    }

    /// The ends of the interval; without an interval, the lowest and the highest ratio of the rounds.
    pub fn bounds(&self) -> Option<(f64, f64)> {
        let (low, high) = self.comparison()?.evidence.ends();
        Some((low.exp(), high.exp())).filter(|(low, high)| low.is_finite() && high.is_finite())
    }

    pub fn certainty(&self) -> Option<Certainty> {
        Some(match self.comparison()?.decision.verdict {
            Some(Verdict::Faster | Verdict::Slower) => Certainty::Differs,
            Some(Verdict::Same) => Certainty::Same,
            Some(Verdict::Inconclusive) => Certainty::Inconclusive,
            None => Certainty::NoVerdict,
        })
    }

    /// The difference in time, or for a rate in time per token. It is negative if the engine takes less time. It is computed from
    /// the paired ratio and the estimate of `against`.
    pub fn difference_ns(&self, rows: &[Row]) -> Option<f64> {
        let ratio = self.ratio()?;
        let against = self.sides(rows).find(|row| row.engine.label == self.against)?;
        let estimate = against.summary(self.metric.id)?.estimate;
        let against_ns = match self.metric.unit {
            Unit::Nanoseconds => estimate,
            Unit::TokensPerSecond => 1e9 / estimate,
            _ => return None,
        };
        Some(against_ns * (1.0 / ratio - 1.0)).filter(|it| it.is_finite())
    }

    /// Whether one side failed. A failed case has no results, so its ratios are not shown either.
    pub fn has_failed(&self, rows: &[Row]) -> bool {
        self.sides(rows).any(|row| row.failure.is_some())
    }

    pub fn sides<'a>(&'a self, rows: &'a [Row]) -> impl Iterator<Item = &'a Row> {
        let side = |row: &&Row| [&self.engine, &self.against].contains(&&row.engine.label);
        rows.iter().filter(side).filter(|row| row.case.label == self.case)
    }
}

pub fn evidence(evidence: &Evidence) -> &'static str {
    match evidence {
        Evidence::RangeOnly { .. } => "within_launch",
        Evidence::Tentative(_) => "tentative",
        Evidence::Firm(_) => "firm",
    }
}

/// The effects of presets. A preset that changes only the dtype has none on a device where both presets run in the same dtype.
fn preset_effects(
    plan: &Plan,
    rows: &[(usize, Row)],
    is_sound: impl Fn(usize) -> bool,
    verdicts_of: impl Fn(&[(usize, usize)]) -> Vec<PairVerdict>,
) -> Vec<PresetEffect> {
    let dtype = |at: usize| {
        rows.iter().find(|(case, _)| plan.cases[*case].configuration == at).map(|(_, row)| &row.engine.dtype)
    };
    let options = |configuration: usize| &plan.configurations[configuration].options;
    let differ = |a: usize, b: usize| dtype(a) != dtype(b) || options(a) != options(b);
    let all = plan.preset_comparisons().into_iter().filter(|it| differ(it.configuration, it.against));
    all.filter(|it| is_sound(it.configuration) && is_sound(it.against))
        .map(|it| PresetEffect {
            effect: line(it.effect),
            pairs: verdicts_of(&[(it.configuration, it.against)]),
        })
        .filter(|it| !it.pairs.is_empty())
        .collect()
}

/// The means of all engines but the references. Verified engines come first, then unverified engines, then engines with a
/// contradicted claim; within each group, the best comes first. An engine that failed in a workload or is wrong has no mean.
fn means(rows: &[(usize, Row)], pairs: &[PairVerdict]) -> Vec<Mean> {
    // A scored text has no ratios, and an engine with a prefix cache computes less than one without.
    let rows = || rows.iter().filter(|(_, row)| !row.case.scores_text && !row.case.prefix_cache);
    let cases: BTreeSet<&str> = rows().map(|(_, row)| row.case.label.as_str()).collect();
    let compared = rows().filter(|(_, row)| !row.is_reference());
    let engines = group_by_key(
        compared.filter_map(|(_, row)| Some(((&row.engine.label, row.reference.as_ref()?), row))),
    );
    let mean = |((engine, against), rows): ((&String, &String), Vec<&Row>)| {
        let pair = |row: &&Row| {
            let mut of_case = pairs.iter().filter(|it| it.is_headline && it.case == row.case.label);
            let pair = of_case.find(|it| (&it.engine, &it.against) == (engine, against))?;
            // A ratio without a verdict is in no mean.
            (row.failure.is_none() && pair.certainty()? != Certainty::NoVerdict).then_some(pair)
        };
        let verdicts: Vec<&PairVerdict> = rows.iter().filter_map(pair).collect();
        let ratios: Vec<Option<f64>> = verdicts.iter().map(|pair| pair.ratio()).collect();
        let ratio = geometric_mean(&ratios).filter(|_| cases.len() > 1 && verdicts.len() == cases.len())?;
        Some(Mean {
            engine: engine.clone(),
            against: against.clone(),
            ratio,
            workloads: cases.len(),
            is_conclusive: verdicts.iter().all(|pair| pair.certainty() != Some(Certainty::Inconclusive)),
            is_verified: verdicts.iter().all(|pair| pair.is_verified),
            is_contradicted: rows.iter().any(|row| row.contradicted),
        })
    };
    let mut means: Vec<Mean> = engines.into_iter().filter_map(mean).collect();
    let rank = |mean: &Mean| (!mean.is_contradicted, mean.is_verified);
    means.sort_by(|a, b| rank(b).cmp(&rank(a)).then(b.ratio.total_cmp(&a.ratio)));
    means
}

fn noise(measured: &Measured) -> Vec<Noise> {
    let plan = &measured.record.header.plan;
    let floor = |index: usize, workload: &Workload, twin: usize, original: usize| {
        let headline = metric::headline(plan, workload)?;
        let blocks = |configuration| measured.blocks(index, headline.index()?, configuration);
        NoiseFloor::of_twin(&Ratios::paired(blocks(twin)?, blocks(original)?).ok()?)
    };
    let twins = plan.configurations.iter().enumerate().filter_map(|(twin, it)| match it.role {
        Some(Role::Twin { of }) => Some((twin, of)),
        _ => None,
    });
    let noise = twins.filter_map(|(twin, of)| {
        let workloads = measured.workloads.iter().enumerate();
        let floors = workloads
            .filter_map(|(index, workload)| Some((line(&workload.label), floor(index, workload, twin, of)?)));
        let floors: Vec<(String, NoiseFloor)> = floors.collect();
        let engine = line(&plan.configurations[of].label);
        (!floors.is_empty()).then_some(Noise { engine, floors })
    });
    noise.collect()
}

#[cfg(test)]
mod tests;
