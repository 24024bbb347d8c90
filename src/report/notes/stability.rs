//! How the results of a row changed while they were measured.

use crate::analysis::metric::{Better, Metric, Per};
use crate::plan::{Mode, Order};
use crate::record::WarmUpEnd;
use crate::report::rows::Row;
use crate::report::run_data::RunData;
use crate::text::three_digits;
use stats::{self, MIN_VERDICT_BLOCKS, median};

/// A first request that takes this many times as long as the others was not warm.
const SLOW_FIRST_FACTOR: f64 = 1.25;
/// A smaller rise or fall over a run is normal for a good machine.
const MIN_DRIFT_SHARE: f64 = 0.1;
/// A drift has a Kendall's tau above this, or below its negative, between the number of a block and the block's level: the median
/// of `costs`. Over five blocks, one row in sixty has such a tau by chance; over eight, one in 576.
const MIN_DRIFT_TAU: f64 = 0.8;
/// A row gets a note if at least this share of its values, and at least this number of them, are outliers.
const MIN_OUTLIER_SHARE: f64 = 0.05;
const MIN_OUTLIERS: usize = 3;

/// The cases whose level rises or falls from block to block, with the ratio of the last level to the first.
pub fn drifting(data: &RunData, rows: &[(usize, Row)]) -> Vec<(usize, f64)> {
    let measured = rows.iter().filter(|(_, row)| row.failure.is_none());
    let drifting = measured.filter_map(|(case, row)| {
        let levels = block_levels(data, *case, row.case.headline?)?;
        Some((*case, drift(&levels)?))
    });
    drifting.collect()
}

/// Notes about rows that drift. If most rows, and at least two, drift in one direction, one note about them replaces the notes
/// about single rows.
pub fn drifts(data: &RunData, rows: &[(usize, Row)], drifting: &[(usize, f64)]) -> Vec<String> {
    let validity = match data.plan.order {
        Order::Interleaved => {
            "ratios remain valid, because rounds are interleaved; absolute values are unreliable"
        }
        Order::Sequential => "neither values nor ratios are reliable; hint: leave out `--order sequential`",
    };
    // Each block launches and warms up anew. So the machine is the cause, and a longer warm-up does not help.
    let remedy = format!("{validity}; close other programs, or measure again later");
    let direction_of = |ratio: f64| if ratio > 1.0 { "slower" } else { "faster" };
    let size = |ratio: f64| ratio.max(1.0 / ratio);
    let percent = |ratio: f64| three_digits(100.0 * (size(ratio) - 1.0));
    let count = rows.iter().filter(|(_, row)| row.failure.is_none()).count();
    for direction in ["slower", "faster"] {
        let drifts = drifting.iter().map(|(_, ratio)| *ratio);
        let drifts: Vec<f64> = drifts.filter(|ratio| direction_of(*ratio) == direction).collect();
        let drifting_count = drifts.len();
        if drifting_count > 1 && drifting_count > count / 2 {
            let by = percent(drifts.into_iter().map(size).fold(1.0, f64::max));
            return vec![format!(
                "{drifting_count} of {count} rows become {direction} from block to block, by up to {by} %: {remedy}"
            )];
        }
    }
    let note = |(case, row): &(usize, Row)| {
        let (_, ratio) = drifting.iter().find(|(other, _)| other == case)?;
        let (direction, by) = (direction_of(*ratio), percent(*ratio));
        Some(format!(
            "{}: becomes {direction} from block to block, by {by} % over the run: {remedy}",
            row_name(row)
        ))
    };
    rows.iter().filter_map(note).collect()
}

/// Notes about a first measured request that is slower than the others.
pub fn slow_firsts(data: &RunData, rows: &[(usize, Row)]) -> Vec<String> {
    let slow = rows.iter().filter_map(|(case, row)| {
        let ratio = three_digits(slow_first_ratio(data, *case, row)?);
        let more = longer_warm_up(row);
        Some(format!(
            "{}: its first measured request takes {ratio} times as long as the others; hint: `--warmup {more}`",
            row_name(row)
        ))
    });
    slow.collect()
}

/// The ratio of the first request to the others, as the median over launches, where it is too large.
fn slow_first_ratio(data: &RunData, case: usize, row: &Row) -> Option<f64> {
    let metric = row.case.headline.filter(|metric| metric.per == Per::Sample && row.failure.is_none())?;
    let is_warm = data.plan.mode == Mode::Warm && data.plan.cases[case].workload.kind.is_warm();
    let ratios = costs(data, case, metric).filter(|_| is_warm).filter_map(|(_, costs)| {
        let (first, others) = costs.split_first()?;
        Some(first / median(others).filter(|_| others.len() > 1)?)
    });
    median(&ratios.collect::<Vec<_>>()).filter(|ratio| *ratio >= SLOW_FIRST_FACTOR)
}

/// The note about warm-ups that ran out of time. It has all rows, because one option applies to all.
pub fn unsteady(rows: &[(usize, Row)]) -> Vec<String> {
    const REASON: &str = "not steady at the end of its warm-up time";
    let timed_out = |row: &Row| row.warm_ups.iter().filter(|it| it.ended_by == WarmUpEnd::Time).count();
    let unsteady = rows.iter().map(|(_, row)| row).filter(|row| row.failure.is_none() && timed_out(row) > 0);
    let unsteady: Vec<&Row> = unsteady.collect();
    let launches = |row: &Row| {
        let total = row.warm_ups.len();
        format!("{} of {total} {}", timed_out(row), if total == 1 { "launch" } else { "launches" })
    };
    let Some(more) = unsteady.iter().map(|row| longer_warm_up(row)).max() else { return Vec::new() };
    let note = match unsteady.as_slice() {
        [row] => format!("{}: {REASON}, in {}", row_name(row), launches(row)),
        rows => {
            let named = rows.iter().map(|row| format!("{} in {}", row_name(row), launches(row)));
            format!("{REASON}: {}", named.collect::<Vec<_>>().join(", "))
        }
    };
    vec![format!("{note}; hint: `--warmup {more}`")]
}

/// Notes about outliers within a launch. All results include them. A row with a slow first request is left out, because it has
/// a note about this request.
pub fn outliers(data: &RunData, rows: &[(usize, Row)]) -> Vec<String> {
    let measured = rows.iter().filter(|(_, row)| row.failure.is_none());
    let more = data.more_blocks();
    let many = measured.filter(|(case, row)| slow_first_ratio(data, *case, row).is_none()).filter_map(|(case, row)| {
        let metric = row.case.headline.filter(|metric| metric.per == Per::Sample)?;
        let launches: Vec<Vec<f64>> = costs(data, *case, metric).map(|(_, costs)| costs).collect();
        let n: usize = launches.iter().map(Vec::len).sum();
        let flagged = count_outliers(&launches);
        let share = flagged as f64 / n as f64;
        (flagged >= MIN_OUTLIERS && share >= MIN_OUTLIER_SHARE).then(|| {
            let percent = three_digits(100.0 * share);
            format!(
                "{}: {flagged} of {n} values ({percent} %) are outliers within their launch, and all are included; close other \
                 programs, or take more blocks; hint: `--blocks {more}`",
                row_name(row)
            )
        })
    });
    many.collect()
}

/// Counts the outliers among the deviations from the median of each launch, because launches may differ in level. A value that
/// equals this median is left out: its deviation of zero would make the other deviations look large.
fn count_outliers(launches: &[Vec<f64>]) -> usize {
    let deviations = launches.iter().flat_map(|values| {
        let level = median(values).unwrap_or(1.0);
        values.iter().map(move |value| value.ln() - level.ln()).filter(|deviation| *deviation != 0.0)
    });
    stats::outliers(&deviations.collect::<Vec<_>>()).into_iter().filter(|is_outlier| *is_outlier).count()
}

fn row_name(row: &Row) -> String {
    format!("`{}` `{}`", row.engine.label, row.case.label)
}

/// Twice the largest number of warm-up requests of this row, and at least four.
fn longer_warm_up(row: &Row) -> u32 {
    let requests = row.warm_ups.iter().map(|warm_up| warm_up.requests).chain(row.case.warmup);
    requests.max().unwrap_or(0).max(2).saturating_mul(2)
}

/// For each launch, its block and the costs of its requests, in order. The cost is the value of the metric, or its inverse if a
/// higher value is better. So a higher cost is worse for every metric.
fn costs(data: &RunData, case: usize, metric: &Metric) -> impl Iterator<Item = (u32, Vec<f64>)> + use<> {
    let better = metric.better;
    let cost = move |value: f64| if better == Better::Lower { value } else { 1.0 / value };
    data.values.of_metric(case, metric).series().map(move |(block, values)| {
        (block, values.into_iter().map(cost).filter(|cost| cost.is_finite() && *cost > 0.0).collect())
    })
}

/// The median cost of a request in each block, in order; `None` with too few blocks.
fn block_levels(data: &RunData, case: usize, metric: &Metric) -> Option<Vec<f64>> {
    let mut levels: Vec<(u32, f64)> = Vec::new();
    for (block, costs) in costs(data, case, metric) {
        // Only the first launch of a block counts.
        if let Some(level) = median(&costs)
            && levels.iter().all(|(other, _)| *other != block)
        {
            levels.push((block, level));
        }
    }
    levels.sort_unstable_by_key(|(block, _)| *block);
    (levels.len() >= MIN_VERDICT_BLOCKS).then(|| levels.into_iter().map(|(_, level)| level).collect())
}

/// The most levels that are compared. If there are more, only every second or every third level is used, and so on.
const MAX_LEVELS: usize = 200;

/// The ratio of the last level to the first, where levels rise or fall steadily and far. It is the median of all slopes (Sen,
/// "Estimates of the Regression Coefficient Based on Kendall's Tau", Journal of the American Statistical Association 63
/// (1968)), extended over the whole run.
fn drift(levels: &[f64]) -> Option<f64> {
    // The number of slopes grows with the square of the number of levels.
    let step = levels.len().div_ceil(MAX_LEVELS).max(1);
    let levels: Vec<f64> = levels.iter().copied().step_by(step).collect();
    let (mut slopes, mut signs) = (Vec::new(), 0.0);
    for (later, level) in levels.iter().enumerate() {
        for (earlier, earlier_level) in levels[..later].iter().enumerate() {
            let rise = level.ln() - earlier_level.ln();
            slopes.push(rise / (later - earlier) as f64);
            signs += if rise == 0.0 { 0.0 } else { rise.signum() };
        }
    }
    let tau: f64 = signs / slopes.len().max(1) as f64;
    let ratio = (median(&slopes)? * (levels.len() - 1) as f64).exp();
    let is_large = ratio.max(1.0 / ratio) >= 1.0 + MIN_DRIFT_SHARE;
    (tau.abs() > MIN_DRIFT_TAU && is_large).then_some(ratio)
}
