//! The results of an experiment: configurations against each other, for every metric.
//!
//! Configurations and metrics are numbers here; the caller knows their names.

use serde::Serialize;

use super::bootstrap;
use super::decision::{Decision, Undecided, decide};
use super::interval::{Design, Evidence, FIRM, Interval};
use super::noise_floor::NoiseFloor;
use super::quantile::median;
use super::ratio::{Blocks, Ratios, Refusal, Rounds};
use super::significance::{mann_whitney, welch};
use super::stopping::{Analysis, Rule, StoppedBy};

/// The direction in which a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Higher,
    Lower,
}

#[derive(Debug, Clone)]
pub struct Experiment {
    /// Whether the configurations were measured in turn. If they were measured one after the other, drift looks like a
    /// difference: there is evidence, but no verdict.
    pub interleaved: bool,
    /// The seed of the bootstrap. `None` skips it: it takes longer than everything else together.
    pub seed: Option<u64>,
    pub twins: Vec<Twin>,
    pub series: Vec<Series>,
}

/// The same configuration measured once more: the difference between the two is noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Twin {
    pub twin: usize,
    pub of: usize,
}

/// One metric in one scenario.
#[derive(Debug, Clone)]
pub struct Series {
    pub better: Better,
    /// Whether a build fails on it. Only gating series share in the risk of a false alarm.
    pub gating: bool,
    /// Scenarios end one by one.
    pub stopped_by: StoppedBy,
    /// The calibrated noise floors of the configurations in this scenario and metric. Configurations beyond the last have none.
    pub floors: Vec<Option<NoiseFloor>>,
    /// The values of each configuration; empty where it failed.
    pub configurations: Vec<Blocks>,
}

/// One configuration against another, for one series.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub series: usize,
    pub configuration: usize,
    pub against: usize,
    /// On the log ratio; above zero is better, for every metric.
    pub evidence: Evidence,
    /// From 20 blocks on, a bootstrap interval beside that of t.
    pub bootstrap: Option<(f64, f64)>,
    pub decision: Decision,
    /// The number of blocks that both have.
    pub blocks: usize,
    /// The number of blocks in which one failed.
    pub unpaired: usize,
    pub stopped_by: StoppedBy,
    /// Without pairing: noise common to both sides then hides their difference.
    pub p_welch: Option<f64>,
    pub p_mann_whitney: Option<f64>,
}

/// Two-sided p values for no difference, corrected for interim analyses. `None` where there are too few blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Probabilities {
    /// The p value of the interval: the two always agree.
    pub paired: Option<f64>,
    /// `paired` adjusted by Holm's method among the gating comparisons.
    pub adjusted: Option<f64>,
    pub welch: Option<f64>,
    pub mann_whitney: Option<f64>,
}

impl Comparison {
    pub fn p(&self) -> Probabilities {
        Probabilities {
            paired: self.decision.p,
            adjusted: self.decision.p_adjusted,
            welch: self.p_welch,
            mann_whitney: self.p_mann_whitney,
        }
    }
}

/// A comparison before the decision whether its difference counts.
struct Paired {
    series: usize,
    pair: (usize, usize),
    ratios: Ratios,
    undecided: Undecided,
}

impl Experiment {
    /// Compares the first of each pair with the second, series by series. A pair that cannot be compared has its reason. A pair
    /// with an empty side is left out: the report shows its failures elsewhere.
    pub fn compare(&self, pairs: &[(usize, usize)]) -> Vec<Result<Comparison, NotCompared>> {
        let each = (0..self.series.len()).flat_map(|series| pairs.iter().map(move |&pair| (series, pair)));
        let found: Vec<_> = each.filter_map(|(series, pair)| self.pair(series, pair)).collect();
        let undecided: Vec<Undecided> = found.iter().flatten().map(|paired| paired.undecided).collect();
        let mut decisions = decide(&undecided).into_iter();
        let decided = found.into_iter().map(|found| {
            let paired = found?;
            // Each paired comparison has a decision.
            Ok(decisions.next().map(|decision| self.comparison(paired, decision)))
        });
        decided.filter_map(Result::transpose).collect()
    }

    /// The interim analysis: whether the gating series of these pairs need more blocks.
    pub fn analyse(&self, rule: Rule, blocks: usize, pairs: &[(usize, usize)]) -> Analysis {
        let gating = self.series.iter().filter(|series| series.gating);
        let ratios = gating.flat_map(|series| pairs.iter().filter_map(|&pair| series.ratios(pair)?.ok()));
        let widths =
            ratios.filter_map(|ratios| Some(Evidence::of(&ratios, Design::Interim).firm()?.half_width()));
        rule.analyse(blocks, &widths.collect::<Vec<_>>())
    }

    /// The interim analysis for the levels of these configurations, without a comparison.
    pub fn analyse_levels(&self, rule: Rule, blocks: usize, configurations: &[usize]) -> Analysis {
        let gating = self.series.iter().filter(|series| series.gating);
        let given =
            gating.flat_map(|series| configurations.iter().filter_map(|&it| series.configurations.get(it)));
        let levels = given.map(levels).filter(|levels| levels.len() >= FIRM);
        let widths =
            levels.filter_map(|levels| Some(Interval::of_mean(&levels, Design::Interim)?.half_width()));
        rule.analyse(blocks, &widths.collect::<Vec<_>>())
    }

    fn pair(&self, index: usize, pair: (usize, usize)) -> Option<Result<Paired, NotCompared>> {
        let series = &self.series[index];
        let (configuration, against) = pair;
        let ratios = match series.ratios(pair)? {
            Ok(ratios) => ratios,
            Err(refusal) => return Some(Err(NotCompared { series: index, configuration, against, refusal })),
        };
        let stored = [configuration, against].map(|side| series.floors.get(side).copied().flatten());
        let undecided = Undecided {
            evidence: Evidence::of(&ratios, series.design()),
            floor: NoiseFloor::highest(stored.into_iter().chain(self.twins_of(series, pair))),
            interleaved: self.interleaved,
            gating: series.gating,
        };
        Some(Ok(Paired { series: index, pair, ratios, undecided }))
    }

    fn comparison(&self, paired: Paired, decision: Decision) -> Comparison {
        let Paired { series: index, pair, ratios, undecided } = paired;
        let (series, blocks) = (&self.series[index], ratios.blocks().len());
        let sides = [pair.0, pair.1].map(|side| levels(&series.configurations[side]));
        let corrected = |p: f64| series.design().corrected(p, sides[0].len().min(sides[1].len()));
        let judged = |p: Option<f64>| p.filter(|_| undecided.judged().is_some()).map(corrected);
        let bootstrap = |seed| bootstrap::of_mean(ratios.blocks(), series.design().computed_at(blocks), seed);
        Comparison {
            series: index,
            configuration: pair.0,
            against: pair.1,
            evidence: undecided.evidence,
            bootstrap: self.seed.and_then(bootstrap),
            decision,
            blocks,
            unpaired: ratios.unpaired(),
            stopped_by: series.stopped_by,
            p_welch: judged(welch(&sides[0], &sides[1])),
            p_mann_whitney: judged(mann_whitney(&sides[0], &sides[1])),
        }
    }

    /// The noise floors from the twins of either side of a pair.
    fn twins_of(&self, series: &Series, pair: (usize, usize)) -> impl Iterator<Item = Option<NoiseFloor>> {
        let twins = self.twins.iter().filter(move |it| it.of == pair.0 || it.of == pair.1);
        twins.map(|it| NoiseFloor::of_twin(&series.ratios((it.twin, it.of))?.ok()?))
    }
}

impl Series {
    fn design(&self) -> Design {
        if self.stopped_by == StoppedBy::Fixed { Design::Fixed } else { Design::Interim }
    }

    /// The log ratios of a pair, turned so that above zero is better; `None` where one side is empty.
    fn ratios(&self, (configuration, against): (usize, usize)) -> Option<Result<Ratios, Refusal>> {
        let given = |index: usize| self.configurations.get(index).filter(|blocks| !blocks.is_empty());
        let (ours, theirs) = (given(configuration)?, given(against)?);
        Some(match self.better {
            Better::Higher => Ratios::paired(ours, theirs),
            Better::Lower => Ratios::paired(theirs, ours),
        })
    }
}

/// The logarithm of the median of each block.
pub fn levels(blocks: &Blocks) -> Vec<f64> {
    let median_of = |rounds: &Rounds| median(&rounds.values().copied().collect::<Vec<f64>>());
    blocks.values().filter_map(|rounds| Some(median_of(rounds)?.ln())).collect()
}

/// A pair with values that cannot be compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NotCompared {
    pub series: usize,
    pub configuration: usize,
    pub against: usize,
    pub refusal: Refusal,
}

#[cfg(test)]
mod tests;
