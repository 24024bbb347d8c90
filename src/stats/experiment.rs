//! What an experiment found: configurations against each other, for every metric.
//!
//! Configurations and metrics are numbers here; what they are called is known to whoever asks.

use serde::Serialize;

use super::bootstrap;
use super::decision::{Decision, Undecided, decide};
use super::floor::Floor;
use super::interval::{Design, Evidence, FIRM, Interval};
use super::median;
use super::ratio::{Blocks, Ratios, Refusal, Rounds};
use super::significance::{mann_whitney, welch};
use super::stopping::{Look, Rule, StoppedBy};

/// Which of two values of a metric is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Higher,
    Lower,
}

#[derive(Debug, Clone)]
pub struct Experiment {
    /// Whether the configurations were measured in turn. Where they were measured one after the other, what drifted
    /// meanwhile passes for a difference: there is evidence, and no verdict on it.
    pub interleaved: bool,
    /// Of the bootstrap; without one there is none: it takes longer than everything else together.
    pub seed: Option<u64>,
    pub twins: Vec<Twin>,
    pub series: Vec<Series>,
}

/// The same engine in the same configuration once more: what the two differ by is noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Twin {
    pub twin: usize,
    pub of: usize,
}

/// One metric in one scenario.
#[derive(Debug, Clone)]
pub struct Series {
    pub better: Better,
    /// Whether somebody's build fails on it. Only these share in the risk of a false alarm.
    pub gating: bool,
    /// Scenarios end one by one.
    pub stopped_by: StoppedBy,
    /// What `calibrate` stored for each configuration in this scenario and metric; configurations beyond the last
    /// have none.
    pub floors: Vec<Option<Floor>>,
    /// What each configuration gave; nothing where it failed.
    pub configurations: Vec<Blocks>,
}

/// One configuration against another, for one series.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub series: usize,
    pub configuration: usize,
    pub against: usize,
    /// On the log ratio; above zero is better, whichever way the metric counts.
    pub evidence: Evidence,
    /// From 20 blocks on, a second opinion on the interval.
    pub bootstrap: Option<(f64, f64)>,
    pub decision: Decision,
    /// Blocks that both have.
    pub blocks: usize,
    /// Blocks that one of them failed in.
    pub unpaired: usize,
    pub stopped_by: StoppedBy,
    /// Without the pairing: what both sides suffered together hides what lies between them.
    pub p_welch: Option<f64>,
    pub p_mann_whitney: Option<f64>,
}

/// Two-sided p values for the hypothesis that there is no difference, corrected where the experiment was looked at on
/// the way. `None` where there are too few blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Probabilities {
    /// Of the interval: the two agree always.
    pub paired: Option<f64>,
    /// `paired`, by Holm's method among the gating comparisons.
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

/// What is known of a comparison before it is decided whether its difference counts.
struct Paired {
    series: usize,
    pair: (usize, usize),
    ratios: Ratios,
    undecided: Undecided,
}

impl Experiment {
    /// Each first of a pair against its second, series by series. A pair without a comparison has its reason; a pair of
    /// which one side gave nothing at all is left out, for its failures are told elsewhere.
    pub fn compare(&self, pairs: &[(usize, usize)]) -> Vec<Result<Comparison, NotCompared>> {
        let each = (0..self.series.len()).flat_map(|series| pairs.iter().map(move |&pair| (series, pair)));
        let found: Vec<_> = each.filter_map(|(series, pair)| self.pair(series, pair)).collect();
        let undecided: Vec<Undecided> = found.iter().flatten().map(|paired| paired.undecided).collect();
        let mut decisions = decide(&undecided).into_iter();
        let decided = found.into_iter().map(|found| {
            let paired = found?;
            // There is one for each that was paired.
            Ok(decisions.next().map(|decision| self.comparison(paired, decision)))
        });
        decided.filter_map(Result::transpose).collect()
    }

    /// Whether more blocks are needed for these pairs, as far as gating series go.
    pub fn look(&self, rule: Rule, blocks: usize, pairs: &[(usize, usize)]) -> Look {
        let gating = self.series.iter().filter(|series| series.gating);
        let ratios = gating.flat_map(|series| pairs.iter().filter_map(|&pair| series.ratios(pair)?.ok()));
        let widths =
            ratios.filter_map(|ratios| Some(Evidence::of(&ratios, Design::Looked).firm()?.half_width()));
        rule.look(blocks, &widths.collect::<Vec<_>>())
    }

    /// The same for the levels of these configurations, each by itself: there is nothing to compare them with.
    pub fn look_at_levels(&self, rule: Rule, blocks: usize, configurations: &[usize]) -> Look {
        let gating = self.series.iter().filter(|series| series.gating);
        let given =
            gating.flat_map(|series| configurations.iter().filter_map(|&it| series.configurations.get(it)));
        let levels = given.map(levels).filter(|levels| levels.len() >= FIRM);
        let widths =
            levels.filter_map(|levels| Some(Interval::of_mean(&levels, Design::Looked)?.half_width()));
        rule.look(blocks, &widths.collect::<Vec<_>>())
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
            floor: Floor::highest(stored.into_iter().chain(self.twins_of(series, pair))),
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

    /// What either side of a pair and its twin differ by.
    fn twins_of(&self, series: &Series, pair: (usize, usize)) -> impl Iterator<Item = Option<Floor>> {
        let twins = self.twins.iter().filter(move |it| it.of == pair.0 || it.of == pair.1);
        twins.map(|it| Floor::of_twin(&series.ratios((it.twin, it.of))?.ok()?))
    }
}

impl Series {
    fn design(&self) -> Design {
        if self.stopped_by == StoppedBy::Asked { Design::Fixed } else { Design::Looked }
    }

    /// Of the first of a pair to the second, turned so that above zero is better; `None` where one gave nothing.
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

/// A pair that has values and no comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NotCompared {
    pub series: usize,
    pub configuration: usize,
    pub against: usize,
    pub refusal: Refusal,
}

#[cfg(test)]
mod tests;
