//! Compares the cases of one configuration that differ in one setting: batch, cache, padding, depth, drafts, or the files before a
//! launch. A block measures both cases, one after the other. So the rounds are paired by their numbers, and the interval is over blocks, as
//! between engines.

use super::within::{stopped_by, stored_floor};
use crate::analysis::metric::{self, Metric, MetricId};
use crate::analysis::values::Values;
use crate::plan::axes::SettingDifference;
use crate::plan::{Order, Plan, Prompt, Workload};
use stats::{Comparison, Experiment, NoRatio, Series, StoppedBy};

/// A case against another case of its configuration, by the headline metric of both.
#[derive(Debug, Clone)]
pub struct SettingEffect {
    pub case: usize,
    pub against: usize,
    pub difference: SettingDifference,
    pub metric: &'static Metric,
    pub result: Result<Comparison, NoRatio>,
}

/// The effect of each setting that varies, in the order of the plan. A case is compared with the case that has the default value,
/// or else with the first case of the plan. All comparisons are one family of tests. `is_sound`: whether a case has results that
/// may be compared.
pub fn setting_effects(values: &Values, is_sound: impl Fn(usize) -> bool) -> Vec<SettingEffect> {
    let plan = values.plan;
    let cases: Vec<usize> = (0..plan.cases.len())
        .filter(|&case| {
            plan.cases[case].workload.kind.generates() && values.is_measured(case) && is_sound(case)
        })
        .collect();
    let pairs = cases.iter().flat_map(|&case| pairs_of(plan, &cases, case));
    let pairs: Vec<(usize, usize, SettingDifference)> = pairs.collect();
    let series = pairs.iter().map(|(case, against, _)| series(values, *case, *against));
    let experiment = Experiment {
        interleaved: plan.order == Order::Interleaved,
        seed: Some(plan.seed),
        twins: Vec::new(),
        series: series.collect(),
    };
    let compared = experiment.compare(&[(0, 1)]).into_iter().filter_map(|result| {
        let (case, against, difference) = pairs.get(result.series)?.clone();
        let metric = metric::headline(plan, &plan.cases[case].workload)?;
        Some(SettingEffect { case, against, difference, metric, result: result.result })
    });
    compared.collect()
}

/// The case with which each setting of a case is compared.
fn pairs_of(plan: &Plan, cases: &[usize], case: usize) -> Vec<(usize, usize, SettingDifference)> {
    let mut chosen: Vec<(usize, usize, SettingDifference)> = Vec::new();
    for &other in cases {
        let Some(difference) = only_difference(plan, case, other) else { continue };
        match chosen.iter_mut().find(|it| it.2.setting == difference.setting) {
            Some(known) if difference.other_is_default => *known = (case, other, difference),
            Some(_) => {}
            None => chosen.push((case, other, difference)),
        }
    }
    // A case with the default value is the other side, and so is the first case if none has the default value.
    chosen.retain(|(case, other, difference)| {
        let back = only_difference(plan, *other, *case);
        difference.other_is_default || other < case && back.is_some_and(|it| !it.other_is_default)
    });
    chosen
}

/// The setting in which two cases of a configuration differ, if they are the same work in everything else.
fn only_difference(plan: &Plan, case: usize, other: usize) -> Option<SettingDifference> {
    let [a, b] = [case, other].map(|it| &plan.cases[it]);
    let work = |it: &Workload| {
        let own_tokens = match &it.prompt {
            Prompt::Tokens(tokens) => Prompt::Tokens(tokens.saturating_sub(it.shape.tokens_before_prompt())),
            text => text.clone(),
        };
        (it.scenario.clone(), it.headline, own_tokens, it.max_new_tokens, it.sampling)
    };
    let is_same = a.configuration == b.configuration && work(&a.workload) == work(&b.workload);
    a.workload.shape.only_difference(&b.workload.shape).filter(|_| is_same)
}

fn series(values: &Values, case: usize, against: usize) -> Series {
    let (record, plan) = (values.record, values.plan);
    let headline = metric::headline(plan, &plan.cases[case].workload);
    let both = [case, against];
    let floor = |case: usize| {
        let planned = &plan.cases[case];
        let metric = headline.map_or(MetricId::TOTAL, |it| it.id);
        stored_floor(record, planned.configuration, &planned.workload.label, metric).map(|it| it.paired)
    };
    let blocks = |case: usize| {
        headline.map_or_else(Default::default, |metric| values.of_metric(case, metric).blocks())
    };
    // Without a fixed number of blocks, the results of either case may have ended its blocks.
    let ends = both.map(|case| stopped_by(record, &plan.cases[case].workload.label));
    Series {
        better: headline.map_or(stats::Better::Higher, |it| it.better),
        gating: true,
        stopped_by: if ends[0] == StoppedBy::Fixed { ends[1] } else { ends[0] },
        floors: both.map(floor).to_vec(),
        configurations: both.map(blocks).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Selection;
    use crate::plan::axes::AxisValues;
    use crate::record::RunRecord;
    use crate::record::specimen::timed::{self, RequestPosition};
    use stats::{Random, Verdict};

    /// A record of `decode` at these depths. A thousand tokens of depth add half to the time of a token. One factor slows all
    /// requests of a block.
    fn record(depths: &[u32]) -> RunRecord {
        let axes = AxisValues { depth: depths.to_vec(), ..AxisValues::default() };
        let selection = Selection { axes, ..timed::selection(&["reference", "other"], &["decode"]) };
        timed::measured(&selection, 5, |RequestPosition { workload, block, round, .. }| {
            let depth = workload.rsplit(' ').next().and_then(|it| it.parse().ok()).unwrap_or(0.0);
            let of_block = 1.0 + Random::seeded(u64::from(block)).unit() / 2.0;
            Some((10.0 + 5.0 * depth / 1000.0) * of_block * (1.0 + f64::from(round) / 1000.0))
        })
    }

    fn compared(record: &RunRecord) -> Vec<(String, String, f64)> {
        let label = |case: usize| record.header.plan.cases[case].workload.label.clone();
        let plan = &record.header.plan;
        // The reference has a twin, which is no row.
        let is_row = |case: usize| plan.configurations[plan.cases[case].configuration].role.is_none();
        let effects = setting_effects(&Values::of(record), is_row);
        let effects = effects.iter().map(|it| {
            let comparison = it.result.as_ref().unwrap();
            assert_eq!(comparison.decision.verdict, Some(Verdict::Slower), "{it:?}");
            let [a, b] = [it.case, it.against].map(|case| record.header.plan.cases[case].configuration);
            assert_eq!((a, it.difference.setting, it.metric.name()), (b, "depth", "decode_rate"));
            (label(it.case), label(it.against), comparison.evidence.estimate().exp())
        });
        effects.collect()
    }

    #[test]
    fn each_engine_has_the_effect_of_each_depth_against_none() {
        let effects = compared(&record(&[1000, 0, 2000]));
        let names: Vec<(&str, &str)> = effects.iter().map(|it| (&*it.0, &*it.1)).collect();
        let of_engine = [("decode depth 1000", "decode"), ("decode depth 2000", "decode")];
        assert_eq!(names, [of_engine, of_engine].concat());
        for (effect, expected) in effects.iter().zip([10.0 / 15.0, 0.5, 10.0 / 15.0, 0.5]) {
            assert!((effect.2 / expected - 1.0).abs() < 0.01, "{effect:?}");
        }
    }

    #[test]
    fn without_a_case_of_the_default_value_the_first_one_is_the_other_side() {
        let effects = compared(&record(&[500, 1500, 2500]));
        let names: Vec<(&str, &str)> = effects.iter().take(2).map(|it| (&*it.0, &*it.1)).collect();
        let first = "decode depth 500";
        assert_eq!(names, [("decode depth 1500", first), ("decode depth 2500", first)]);
    }

    #[test]
    fn a_case_without_sound_results_is_not_compared() {
        let record = record(&[0, 1000]);
        let count = |is_sound: &dyn Fn(usize) -> bool| setting_effects(&Values::of(&record), is_sound).len();
        // Two engines and a twin.
        assert_eq!((count(&|_| true), count(&|case| case != 0), count(&|_| false)), (3, 2, 0));
    }
}
