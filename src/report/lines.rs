//! A report for spreadsheets: one line for each case and value (a metric, a part of the wall time or a resource), in its own
//! unit. Failures, the overhead and the machine's limits have lines too.

use super::cost::{Cost, costs};
use super::document::{Lines, NamedField, column};
use super::precision::PrecisionImpact;
use super::precision_table::{Gain, gain, row_with};
use super::resources;
use super::rows::{Dtype, Engine, FailureSummary, MetricSummary, Row};
use super::run_report::Report;
use super::settings::SettingImpact;
use super::settings_table::sides;
use super::verdicts::{PairVerdict, evidence};

use crate::analysis::metric::limits::Limit;
use crate::analysis::metric::{Metric, MetricId};
use crate::machine::Device;
use crate::plan::Mode;
use crate::record::Overhead;
use stats::Summary;

const COLUMNS: [&str; 43] = [
    "record",
    "case",
    "scenario",
    "engine",
    "version",
    "model",
    "device",
    "dtype",
    "threads",
    "mode",
    "metric",
    "unit",
    "n",
    "launches",
    "estimate",
    "p50",
    "p90",
    "p95",
    "p99",
    "min",
    "max",
    "mean",
    "std",
    "reference",
    "times_reference",
    "low",
    "high",
    "evidence",
    "verdict",
    "is_verified",
    "blocks",
    "threshold",
    "stopped_by",
    "p",
    "p_adjusted",
    "p_welch",
    "p_mann_whitney",
    "output",
    "output_rms",
    "output_tokens",
    "output_first_difference",
    "failure",
    "message",
];

/// `price_per_hour`: that of the machine, if the user named one.
pub fn lines(report: &Report, price_per_hour: Option<f64>) -> Lines {
    let mut lines = Vec::new();
    for row in &report.rows {
        let named = name_fields(report, &row.case.label, &row.case.scenario, &row.engine);
        let mut push = |fields: Vec<NamedField>| lines.push([named.clone(), fields].concat());
        for it in &row.summaries {
            let growth = growth(row, it.metric);
            push(
                [summary_fields(it), comparison(report, row, it.metric), growth, output(report, row)]
                    .concat(),
            );
        }
        for (name, ns, count) in row.wall_time.iter().flat_map(|it| it.lines()) {
            let launches = row.wall_time.as_ref().map(|it| it.launches);
            let mut fields = metric_fields(&format!("wall_time.{name}"), "ns", count);
            fields.extend([
                (column!("launches"), launches.into()),
                (column!("estimate"), ns.into()),
                (column!("mean"), ns.into()),
            ]);
            push(fields);
        }
        // An unknown value has no line.
        for (name, unit, known) in row.resources.iter().flat_map(resources::lines) {
            let Some(known) = known else { continue };
            let mut fields = metric_fields(&format!("resources.{name}"), unit, row.samples);
            fields.extend([(column!("launches"), row.launches.into()), (column!("estimate"), known.into())]);
            push(fields);
        }
        row.failure.iter().for_each(|it| push(failure(it)));
    }
    lines.extend(report.precisions.iter().flat_map(|it| precision(report, it)));
    lines.extend(report.settings.iter().filter_map(|it| setting(report, it)));
    let costs = price_per_hour.map_or_else(Vec::new, |price| costs(report, price));
    lines.extend(costs.iter().flat_map(|it| cost(report, it)));
    lines.extend(report.overhead.iter().flat_map(|it| overhead(report, it)));
    lines.extend(report.limits.iter().map(|it| limit(report, it)));
    let failed = report.failed.iter();
    lines.extend(failed.map(|it| [name_fields(report, "", "", &it.engine), failure(&it.failure)].concat()));
    Lines { columns: &COLUMNS, lines }
}

fn name_fields(report: &Report, case: &str, scenario: &str, engine: &Engine) -> Vec<NamedField> {
    let mode = match report.mode {
        Mode::Warm => "warm",
        Mode::OneShot => "one_shot",
    };
    vec![
        (column!("record"), (&report.record).into()),
        (column!("case"), case.into()),
        (column!("scenario"), scenario.into()),
        (column!("engine"), (&engine.label).into()),
        (column!("version"), engine.version.as_deref().into()),
        (column!("model"), (&engine.model).into()),
        (column!("device"), engine.device.as_ref().map(Device::as_str).into()),
        (column!("dtype"), engine.dtype.as_ref().map(Dtype::to_string).as_deref().into()),
        (column!("threads"), engine.threads.into()),
        (column!("mode"), mode.into()),
    ]
}

/// The metric of a line, its unit, and the number of its values.
fn metric_fields(metric: &str, unit: &str, n: usize) -> Vec<NamedField> {
    vec![(column!("metric"), metric.into()), (column!("unit"), unit.into()), (column!("n"), n.into())]
}

fn summary_fields(MetricSummary { metric, summary }: &MetricSummary) -> Vec<NamedField> {
    let Summary { estimate, p50, p90, p95, p99, min, max, mean, std, .. } = summary;
    let mut fields = metric_fields(metric.name(), metric.unit.symbol(), summary.n);
    fields.extend([
        (column!("launches"), summary.launches.into()),
        (column!("estimate"), (*estimate).into()),
        (column!("p50"), (*p50).into()),
        (column!("p90"), (*p90).into()),
        (column!("p95"), (*p95).into()),
        (column!("p99"), (*p99).into()),
        (column!("min"), (*min).into()),
        (column!("max"), (*max).into()),
        (column!("mean"), (*mean).into()),
        (column!("std"), (*std).into()),
    ]);
    fields
}

/// The comparison of a row with its reference. A ratio above 1 is better for every metric. `threshold` is the smallest
/// difference that counts: 0.02 is 2 %.
fn comparison(report: &Report, row: &Row, metric: &Metric) -> Vec<NamedField> {
    let Some(reference) = row.reference.as_ref().filter(|_| row.failure.is_none()) else { return Vec::new() };
    if let Some(fields) = report.verdicts.pair(row, metric).and_then(pair_fields) {
        return fields;
    }
    if row.is_reference() && !report.is_wrong(row) {
        return vec![(column!("reference"), reference.into()), (column!("times_reference"), 1.0.into())];
    }
    Vec::new()
}

/// The interval and the verdict of a growth, which is no comparison.
fn growth(row: &Row, metric: &Metric) -> Vec<NamedField> {
    let growth = row.stress.and_then(|it| it.growth(metric.id));
    growth.map_or_else(Vec::new, |it| {
        let verdict = json_name(it.verdict);
        vec![
            (column!("low"), it.low.into()),
            (column!("high"), it.high.into()),
            (column!("verdict"), verdict.as_str().into()),
        ]
    })
}

/// The fields of a comparison; `None` if it was refused. Without verified outputs of both sides there is no verdict.
fn pair_fields(pair: &PairVerdict) -> Option<Vec<NamedField>> {
    let (comparison, (low, high)) = (pair.comparison()?, pair.bounds().unzip());
    let verdict = comparison.decision.verdict.filter(|_| pair.is_verified).map(json_name);
    Some(vec![
        (column!("reference"), (&pair.against).into()),
        (column!("times_reference"), pair.ratio().into()),
        (column!("low"), low.into()),
        (column!("high"), high.into()),
        (column!("evidence"), evidence(&comparison.evidence).into()),
        (column!("verdict"), verdict.as_deref().into()),
        (column!("is_verified"), pair.is_verified.into()),
        (column!("blocks"), comparison.blocks.into()),
        (column!("threshold"), comparison.decision.thresholds.difference().exp_m1().into()),
        (column!("stopped_by"), json_name(comparison.stopped_by).as_str().into()),
        (column!("p"), comparison.p.paired.into()),
        (column!("p_adjusted"), comparison.p.adjusted.into()),
        (column!("p_welch"), comparison.p.welch.into()),
        (column!("p_mann_whitney"), comparison.p.mann_whitney.into()),
    ])
}

/// The lines of a precision: its gain and its loss against the widest precision of its engine, the reference here.
fn precision(report: &Report, impact: &PrecisionImpact) -> Vec<Vec<NamedField>> {
    let line = |row: &Row, metric: &str, unit: &str, n: usize, fields: Vec<NamedField>| {
        let named = name_fields(report, &row.case.label, &row.case.scenario, &row.engine);
        [named, metric_fields(&format!("precision.{metric}"), unit, n), fields].concat()
    };
    let Gain { decode_rate, memory } = gain(report, impact);
    let gain = decode_rate.into_iter().chain(memory).filter_map(|pair| {
        let row = pair.sides(&report.rows).find(|row| row.engine.label == impact.engine)?;
        let n = row.summary(pair.metric.id).map_or(0, |it| it.n);
        Some(line(row, pair.metric.name(), pair.metric.unit.symbol(), n, pair_fields(pair)?))
    });
    let scored = row_with(report, &impact.engine, MetricId::PERPLEXITY);
    let values = [
        ("perplexity_change", "share", impact.perplexity_change),
        ("drift", "nats", impact.drift_from_widest),
    ];
    let loss = values.into_iter().filter_map(|(metric, unit, value)| {
        let fields =
            vec![(column!("reference"), (&impact.widest).into()), (column!("estimate"), value?.into())];
        Some(line(scored?, metric, unit, 1, fields))
    });
    gain.chain(loss).collect()
}

/// The line of a setting: a case against another case of its engine, which is the reference here.
fn setting(report: &Report, impact: &SettingImpact) -> Option<Vec<NamedField>> {
    let ((row, _), metric) = (sides(report, impact)?, impact.pair.metric);
    let n = row.summary(metric.id).map_or(0, |it| it.n);
    let named = name_fields(report, &row.case.label, &row.case.scenario, &row.engine);
    let setting = format!("setting.{}.{}", impact.setting, metric.name());
    Some([named, metric_fields(&setting, metric.unit.symbol(), n), pair_fields(&impact.pair)?].concat())
}

/// The lines of a cost: that of a million tokens, and the saving over each other configuration, which is the reference here. A
/// ratio above 1 is cheaper.
fn cost(report: &Report, cost: &Cost) -> Vec<Vec<NamedField>> {
    let row = cost.row;
    let n = row.summary(MetricId::THROUGHPUT).map_or(0, |it| it.n);
    let line = |metric: &str, fields: Vec<NamedField>| {
        let named = name_fields(report, cost.case, &row.case.scenario, &row.engine);
        [named, metric_fields(metric, "price", n), fields].concat()
    };
    let own = line("cost.million_tokens", vec![(column!("estimate"), cost.million_tokens.into())]);
    let ratios = cost.ratios.iter().map(|it| {
        let fields = vec![
            (column!("estimate"), it.saved.into()),
            (column!("reference"), it.against.into()),
            (column!("times_reference"), it.times_cheaper.into()),
        ];
        line("cost.saved", fields)
    });
    std::iter::once(own).chain(ratios).collect()
}

/// The verification status of the row's engine, its drift, the number of scored tokens, and the position of the first token
/// that differs from the verifier's answer.
fn output(report: &Report, row: &Row) -> Vec<NamedField> {
    let Some(agreement) = report.output_of(row).map(|it| &it.agreement) else { return Vec::new() };
    vec![
        (column!("output"), agreement.status.name().into()),
        (column!("output_rms"), agreement.rms().into()),
        (column!("output_tokens"), agreement.scores.as_ref().map(|scores| scores.tokens).into()),
        (column!("output_first_difference"), agreement.first_difference().into()),
    ]
}

/// The lines of the orchestrator's overhead. Their case is empty, and their engine is `orchestrate`.
fn overhead(report: &Report, overhead: &Overhead) -> Vec<Vec<NamedField>> {
    let values =
        [("overhead.request", overhead.request_ns), ("overhead.streamed_token", overhead.streamed_token_ns)];
    let line = |(name, ns): (&str, u64)| {
        let mut fields =
            [own_name_fields(report, None, None), metric_fields(name, "ns", overhead.requests as usize)]
                .concat();
        fields.extend([(column!("launches"), 1u32.into()), (column!("estimate"), ns.into())]);
        fields
    };
    values.map(line).to_vec()
}

/// The line of one limit of the machine, also with `orchestrate` as engine: the best probe, and the range of all probes.
fn limit(report: &Report, limit: &Limit) -> Vec<NamedField> {
    let named = own_name_fields(report, Some(limit.key.device.clone()), limit.key.threads);
    let name = format!("limit.{}", limit.key.name());
    let mut fields = [named, metric_fields(&name, limit.key.rate_unit(), limit.probes.len())].concat();
    let best = limit.best();
    fields.extend([
        (column!("estimate"), best.into()),
        (column!("min"), limit.least().into()),
        (column!("max"), best.into()),
    ]);
    fields
}

/// The name columns of values that this program measured itself.
fn own_name_fields(report: &Report, device: Option<Device>, threads: Option<u32>) -> Vec<NamedField> {
    let version = Some(report.orchestrate_version.clone());
    let orchestrate = Engine { label: "orchestrate".into(), version, device, threads, ..Engine::default() };
    name_fields(report, "", "", &orchestrate)
}

fn failure(failure: &FailureSummary) -> Vec<NamedField> {
    vec![
        (column!("failure"), failure.kind.as_str().into()),
        (column!("message"), failure.line().as_str().into()),
    ]
}

fn json_name(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}
