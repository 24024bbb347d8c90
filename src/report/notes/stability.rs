//! How the results of a row changed while they were measured.

use crate::analysis::metric::{Better, Metric, Per};
use crate::plan::scenario::Kind;
use crate::plan::{Mode, Order};
use crate::record::WarmUpEnd;
use crate::report::rows::Row;
use crate::report::run_data::RunData;
use crate::text::three_digits;
use stats::{self, MIN_VERDICT_BLOCKS, median};

/// A first request that takes longer by this factor than the others was not warm.
const SLOW_FIRST: f64 = 1.25;
/// A smaller rise or fall over a run is normal for a good machine.
const DRIFT: f64 = 0.1;
/// Kendall's tau between level and block, from -1 to 1, above which it is hardly chance: one row in sixty exceeds it by
/// chance over five blocks, and fewer over more.
const STEADILY: f64 = 0.8;
/// The share of values far from the others that gets a note. `FEW_OUTLIERS` is the least number.
const OUTLIERS: f64 = 0.05;
const FEW_OUTLIERS: usize = 3;

/// The cases whose level rises or falls from block to block, with the ratio of the last level to the first.
pub fn drifting(data: &RunData, rows: &[(usize, Row)]) -> Vec<(usize, f64)> {
    let measured = rows.iter().filter(|(_, row)| row.fault.is_none());
    let drifting = measured.filter_map(|(case, row)| {
        let levels = block_levels(data, *case, row.case.headline?)?;
        Some((*case, drift(&levels)?))
    });
    drifting.collect()
}

pub fn drifts(data: &RunData, rows: &[(usize, Row)], drifting: &[(usize, f64)]) -> Vec<String> {
    let hold = match data.plan.order {
        Order::Interleaved => "ratios remain valid, because rounds are interleaved; absolute values do not",
        Order::Sequential => "neither values nor ratios are reliable; hint: leave out `--order sequential`",
    };
    // Each block launches and warms up anew. So the machine is the cause, and a longer warm-up does not help.
    let remedy = format!("{hold}; close other programs, or measure again later");
    let direction_of = |times: f64| if times > 1.0 { "slower" } else { "faster" };
    let size = |times: f64| times.max(1.0 / times);
    let percent = |times: f64| three_digits(100.0 * (size(times) - 1.0));
    let count = rows.iter().filter(|(_, row)| row.fault.is_none()).count();
    // A drift of most rows in one direction comes from the machine.
    for direction in ["slower", "faster"] {
        let drifts = drifting.iter().map(|(_, times)| *times);
        let drifts: Vec<f64> = drifts.filter(|times| direction_of(*times) == direction).collect();
        let all = drifts.len();
        if all > 1 && all > count / 2 {
            let by = percent(drifts.into_iter().map(size).fold(1.0, f64::max));
            return vec![format!(
                "{all} of {count} rows become {direction} from block to block, by up to {by} %: {remedy}"
            )];
        }
    }
    let note = |(case, row): &(usize, Row)| {
        let (_, times) = drifting.iter().find(|(other, _)| other == case)?;
        let (direction, by) = (direction_of(*times), percent(*times));
        Some(format!(
            "{}: becomes {direction} from block to block, by {by} % over the run: {remedy}",
            row_name(row)
        ))
    };
    rows.iter().filter_map(note).collect()
}

/// Notes about a first measured request that differs from the others.
pub fn slow_firsts(data: &RunData, rows: &[(usize, Row)]) -> Vec<String> {
    let slow = rows.iter().filter_map(|(case, row)| {
        let times = three_digits(excess_of_first(data, *case, row)?);
        let more = longer_warm_up(row);
        Some(format!(
            "{}: its first measured request takes {times} times as long as the others: `--warmup {more}`",
            row_name(row)
        ))
    });
    slow.collect()
}

/// The ratio of the first request to the others, as the median over launches, where it is too large.
fn excess_of_first(data: &RunData, case: usize, row: &Row) -> Option<f64> {
    let metric = row.case.headline.filter(|metric| metric.per == Per::Sample && row.fault.is_none())?;
    let is_warm = data.plan.mode == Mode::Warm && data.plan.cases[case].workload.kind == Kind::Warm;
    let excess = costs(data, case, metric).filter(|_| is_warm).filter_map(|(_, costs)| {
        let (first, others) = costs.split_first()?;
        Some(first / median(others).filter(|_| others.len() > 1)?)
    });
    median(&excess.collect::<Vec<_>>()).filter(|excess| *excess >= SLOW_FIRST)
}

/// Notes about warm-ups that ran out of time.
pub fn unsteady(rows: &[(usize, Row)]) -> Vec<String> {
    let unsteady = rows.iter().filter_map(|(_, row)| {
        let ended = row.warm_ups.iter().filter(|warm_up| warm_up.ended_by == WarmUpEnd::Time).count();
        let more = longer_warm_up(row);
        (ended > 0 && row.fault.is_none()).then(|| {
            let of = row.warm_ups.len();
            let launches = if of == 1 { "launch" } else { "launches" };
            format!(
                "{}: not steady at the end of its warm-up time, in {ended} of {of} {launches}: `--warmup {more}`",
                row_name(row)
            )
        })
    });
    unsteady.collect()
}

/// Notes about values far from the others of their launch, which stay in every value. A slow first request has its own note.
pub fn outliers(data: &RunData, rows: &[(usize, Row)]) -> Vec<String> {
    let measured = rows.iter().filter(|(_, row)| row.fault.is_none());
    let more = data.more_blocks();
    let many = measured.filter(|(case, row)| excess_of_first(data, *case, row).is_none()).filter_map(|(case, row)| {
        let metric = row.case.headline.filter(|metric| metric.per == Per::Sample)?;
        let launches: Vec<Vec<f64>> = costs(data, *case, metric).map(|(_, costs)| costs).collect();
        let n: usize = launches.iter().map(Vec::len).sum();
        let found = far_from_their_launch(&launches);
        let share = found as f64 / n as f64;
        (found >= FEW_OUTLIERS && share >= OUTLIERS).then(|| {
            let percent = three_digits(100.0 * share);
            format!(
                "{}: {found} of {n} values ({percent} %) are outliers within their launch, and all are included; close other \
                 programs, or use more blocks: `--blocks {more}`",
                row_name(row)
            )
        })
    });
    many.collect()
}

/// The number of values far from the median of their launch, by the deviations of all launches: launches may differ in
/// level. The median itself has no deviation, and would make the others look large.
fn far_from_their_launch(launches: &[Vec<f64>]) -> usize {
    let deviations = launches.iter().flat_map(|values| {
        let level = median(values).unwrap_or(1.0);
        values.iter().map(move |value| value.ln() - level.ln()).filter(|deviation| *deviation != 0.0)
    });
    stats::outliers(&deviations.collect::<Vec<_>>()).into_iter().filter(|flagged| *flagged).count()
}

fn row_name(row: &Row) -> String {
    format!("`{}` `{}`", row.engine.label, row.case.label)
}

/// Twice the largest number of warm-up requests of this row.
fn longer_warm_up(row: &Row) -> u32 {
    let had = row.warm_ups.iter().map(|warm_up| warm_up.requests).chain(row.case.warmup);
    had.max().unwrap_or(0).max(2).saturating_mul(2)
}

/// The block of each launch and the costs of its requests, in order. A higher cost is worse, for every metric.
fn costs(data: &RunData, case: usize, metric: &Metric) -> impl Iterator<Item = (u32, Vec<f64>)> + use<> {
    let better = metric.better;
    let cost = move |value: f64| if better == Better::Lower { value } else { 1.0 / value };
    data.values.of_metric(case, metric).series().map(move |(block, values)| {
        (block, values.into_iter().map(cost).filter(|cost| cost.is_finite() && *cost > 0.0).collect())
    })
}

/// The cost of a request in each block, in order; `None` with too few blocks.
fn block_levels(data: &RunData, case: usize, metric: &Metric) -> Option<Vec<f64>> {
    let mut levels: Vec<(u32, f64)> = Vec::new();
    for (block, costs) in costs(data, case, metric) {
        // The first launch of a block counts.
        if let Some(level) = median(&costs)
            && levels.iter().all(|(other, _)| *other != block)
        {
            levels.push((block, level));
        }
    }
    levels.sort_unstable_by_key(|(block, _)| *block);
    (levels.len() >= MIN_VERDICT_BLOCKS).then(|| levels.into_iter().map(|(_, level)| level).collect())
}

const MOST_LEVELS: usize = 200;

/// The ratio of the last level to the first, where they rise or fall steadily and far: the median of all slopes (Sen,
/// "Estimates of the Regression Coefficient Based on Kendall's Tau", Journal of the American Statistical Association 63
/// (1968)) over the length of the run.
fn drift(levels: &[f64]) -> Option<f64> {
    // The number of slopes grows with the square of the levels. Every second or third of many levels gives the same slope.
    let step = levels.len().div_ceil(MOST_LEVELS).max(1);
    let levels: Vec<f64> = levels.iter().copied().step_by(step).collect();
    let (mut slopes, mut signs) = (Vec::new(), 0.0);
    for (later, level) in levels.iter().enumerate() {
        for (earlier, before) in levels[..later].iter().enumerate() {
            let rise = level.ln() - before.ln();
            slopes.push(rise / (later - earlier) as f64);
            signs += if rise == 0.0 { 0.0 } else { rise.signum() };
        }
    }
    let tau: f64 = signs / slopes.len().max(1) as f64;
    let times = (median(&slopes)? * (levels.len() - 1) as f64).exp();
    let far = times.max(1.0 / times) >= 1.0 + DRIFT;
    (tau.abs() > STEADILY && far).then_some(times)
}
