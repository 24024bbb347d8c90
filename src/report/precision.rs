//! The impact of precision: the loss (perplexity, drift) of each precision of an engine against the engine's own widest one. The
//! gain is in `Verdicts::against_widest`, and `precision_table` shows both.

use serde::Serialize;

use super::run_data::RunData;
use crate::analysis::claims::{self, Contradiction};
use crate::analysis::metric::{change_of_perplexity, drift_from};
use crate::engines::manifest::options_beside_precision;
use crate::plan::dtype;
use crate::plan::scenario::Kind;
use crate::record::TextScores;

/// A configuration and the widest precision of its engine. JSON has these names: add, never rename.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PrecisionImpact {
    pub engine: String,
    /// The configuration of the widest precision, which may be this one.
    pub widest: String,
    /// The change of the perplexity against the widest precision, on the same windows, as a share.
    pub perplexity_change: Option<f64>,
    /// The root mean square of the differences from the log-probabilities of the widest precision, in nats.
    pub drift_from_widest: Option<f64>,
    #[serde(skip)]
    pub configuration: usize,
    #[serde(skip)]
    pub against: usize,
}

/// The measured configurations of each engine that has several dtypes. Those of one engine have the same program, model,
/// device, threads and options, so they differ only in the precision. Wrong and contradicted ones are left out.
pub fn impacts(data: &RunData, contradictions: &[Contradiction]) -> Vec<PrecisionImpact> {
    let plan = data.plan;
    let is_trusted = |it: usize| {
        let is_wrong = data.agreements.get(it).is_some_and(|agreement| agreement.is_wrong());
        !is_wrong && !claims::is_contradicted(contradictions, it)
    };
    let rows: Vec<usize> =
        plan.row_indices().filter(|&it| data.is_measured_row(it) && is_trusted(it)).collect();
    let alike = |a: usize, b: usize| {
        let key = |at: usize| {
            let it = &plan.configurations[at];
            let options = options_beside_precision(&it.options);
            (&it.engine, &it.command, &it.model.path, &it.device, it.threads, options)
        };
        key(a) == key(b)
    };
    let width = |at: usize| {
        let reported = data.engines[at].dtype.as_ref();
        let compute = reported.and_then(|it| it.compute.as_deref());
        dtype::width(reported.map(|it| it.weights.as_str()), compute)
    };
    let impact = |&row: &usize| {
        let others: Vec<usize> = rows.iter().copied().filter(|&other| alike(row, other)).collect();
        let varies = others.iter().any(|&other| data.engines[other].dtype != data.engines[row].dtype);
        // Of equal widths, the first row counts.
        let widest = others.into_iter().rev().max_by_key(|&it| width(it))?;
        let both = scores(data, row).zip(scores(data, widest));
        varies.then(|| PrecisionImpact {
            engine: data.engines[row].label.clone(),
            widest: data.engines[widest].label.clone(),
            perplexity_change: both.and_then(|(own, other)| change_of_perplexity(own, other)),
            drift_from_widest: both.and_then(|(own, other)| drift_from(own, other)),
            configuration: row,
            against: widest,
        })
    };
    let mut impacts: Vec<PrecisionImpact> = rows.iter().filter_map(impact).collect();
    // The rows of each engine, the widest first.
    impacts.sort_by(|a, b| {
        let narrower = || width(b.configuration).cmp(&width(a.configuration));
        let is_widest = |it: &PrecisionImpact| it.configuration == it.against;
        a.against.cmp(&b.against).then_with(|| is_widest(b).cmp(&is_widest(a))).then_with(narrower)
    });
    impacts
}

/// The scores that a configuration gave to the first text of the run.
fn scores<'a>(data: &RunData<'a>, configuration: usize) -> Option<&'a TextScores> {
    let mut cases = data.plan.cases_of(configuration).into_iter();
    let case = cases.find(|&case| data.plan.cases[case].workload.kind == Kind::Score)?;
    data.values.samples(case).find_map(|it| it.scores.as_ref())
}
