//! Compares the configurations of an experiment with each other, by every metric. Configurations and metrics are indices here;
//! the caller knows their names.

use serde::Serialize;

use super::decision::{Decision, Undecided, decide};
use super::interval::{Design, Evidence, Interval, MIN_VERDICT_BLOCKS, bootstrap};
use super::noise_floor::NoiseFloor;
use super::ratio::{Blocks, NoRatio, Ratios, Rounds};
use super::significance::{mann_whitney, welch};
use super::stopping::{Analysis, Rule, StoppedBy};
use super::summary::median;
use super::verdict::Verdict;

/// The direction in which a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    Higher,
    Lower,
}

#[derive(Debug, Clone)]
pub struct Experiment {
    /// Whether the rounds of the configurations were interleaved, as in `Undecided`.
    pub interleaved: bool,
    /// The seed of the bootstrap. `None` skips the bootstrap, which takes longer than everything else together.
    pub seed: Option<u64>,
    pub twins: Vec<Twin>,
    pub series: Vec<Series>,
}

/// A configuration that is measured twice in an experiment: the difference between the two is noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Twin {
    pub twin: usize,
    /// The original configuration.
    pub of: usize,
}

/// One metric of one workload.
#[derive(Debug, Clone)]
pub struct Series {
    pub better: Better,
    /// Whether this metric can fail a build.
    pub gating: bool,
    /// The reason why this workload ended. Workloads end independently.
    pub stopped_by: StoppedBy,
    /// The calibrated noise floors of the configurations in this workload and metric. A configuration beyond the end of the
    /// list has no floor.
    pub floors: Vec<Option<NoiseFloor>>,
    /// The values of each configuration; empty for a configuration that failed.
    pub configurations: Vec<Blocks>,
}

/// The comparison of one configuration with another in one series, or the reason why there is none.
#[derive(Debug, Clone, PartialEq)]
pub struct PairResult {
    pub series: usize,
    pub configuration: usize,
    pub against: usize,
    pub result: Result<Comparison, NoRatio>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The evidence on the log ratio: above zero is better, for every metric.
    pub evidence: Evidence,
    /// The bootstrap interval, for 20 to 200 blocks.
    pub bootstrap: Option<(f64, f64)>,
    pub decision: Decision,
    /// The number of blocks in which the two share a round.
    pub blocks: usize,
    /// The number of blocks in which the two share no round.
    pub unpaired: usize,
    pub stopped_by: StoppedBy,
    pub p: Probabilities,
    /// The highest noise floor known for the two configurations.
    pub floor: Option<SourcedFloor>,
}

/// A noise floor with its source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SourcedFloor {
    pub floor: NoiseFloor,
    pub source: FloorSource,
    /// The configuration that was measured against itself.
    pub of: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloorSource {
    /// An earlier calibration on this machine.
    Calibration,
    /// A twin in the same experiment.
    Twin,
}

/// Two-sided p values for no difference, corrected for interim analyses. `None` without a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Probabilities {
    /// The p value of the interval, so that both always agree.
    pub paired: Option<f64>,
    /// `paired` adjusted by Holm's method among the gating comparisons; `None` for other comparisons.
    pub adjusted: Option<f64>,
    /// Welch's test without pairing, so noise common to both sides may hide a difference.
    pub welch: Option<f64>,
    /// The test of Mann and Whitney, also without pairing.
    pub mann_whitney: Option<f64>,
}

impl Comparison {
    /// The comparison with both sides exchanged.
    pub fn inverted(&self) -> Self {
        let verdict = self.decision.verdict.map(Verdict::inverted);
        Self {
            evidence: self.evidence.inverted(),
            bootstrap: self.bootstrap.map(|(low, high)| (-high, -low)),
            decision: Decision { verdict, ..self.decision },
            ..self.clone()
        }
    }
}

impl Experiment {
    /// Compares the first of each pair with the second, series by series. A pair with an empty side is left out: the report
    /// shows its failures elsewhere.
    pub fn compare(&self, pairs: &[(usize, usize)]) -> Vec<PairResult> {
        let series = self.series.iter().enumerate();
        let series_and_pair = series.flat_map(|series| pairs.iter().map(move |&pair| (series, pair)));
        let paired = series_and_pair
            .filter_map(|((index, series), pair)| Some(((index, series), pair, series.ratios(pair)?)));
        let paired: Vec<_> = paired.collect();
        let with_floors = paired.iter().filter_map(|((_, series), pair, ratios)| {
            Some(self.undecided(series, *pair, ratios.as_ref().ok()?))
        });
        let (undecided, floors): (Vec<Undecided>, Vec<Option<SourcedFloor>>) = with_floors.unzip();
        let decisions = undecided.iter().zip(decide(&undecided));
        let mut decided = decisions.zip(floors);
        let compared = paired.into_iter().filter_map(|((index, series), pair, ratios)| {
            let result = match ratios {
                // Each pair with ratios has a decision.
                Ok(ratios) => Ok(self.comparison(series, pair, &ratios, decided.next()?)),
                Err(refusal) => Err(refusal),
            };
            let (configuration, against) = pair;
            Some(PairResult { series: index, configuration, against, result })
        });
        compared.collect()
    }

    /// The interim analysis: whether the gating series of these pairs need more blocks. A pair that has too few common blocks for
    /// an interval needs more; the caller leaves out those that can get none. A pair with an empty side is left out.
    pub fn analyse(&self, rule: Rule, blocks: usize, pairs: &[(usize, usize)]) -> Analysis {
        let gating = self.series.iter().filter(|series| series.gating);
        let half_width = |series: &Series, pair| {
            let ratios = series.ratios(pair)?.ok()?;
            let interval = Evidence::of(&ratios, Design::Interim).interval_of_enough_blocks();
            Some(interval.map_or(f64::INFINITY, |it| it.half_width()))
        };
        let half_widths =
            gating.flat_map(|series| pairs.iter().filter_map(move |&pair| half_width(series, pair)));
        rule.analyse(blocks, &half_widths.collect::<Vec<_>>())
    }

    /// The interim analysis of a run without pairs: whether these configurations, each alone, need more blocks.
    pub fn analyse_without_pairs(&self, rule: Rule, blocks: usize, configurations: &[usize]) -> Analysis {
        let gating = self.series.iter().filter(|series| series.gating);
        let configurations =
            gating.flat_map(|series| configurations.iter().filter_map(|&it| series.configurations.get(it)));
        let levels = configurations.map(levels).filter(|levels| levels.len() >= MIN_VERDICT_BLOCKS);
        let half_widths =
            levels.filter_map(|levels| Some(Interval::of_mean(&levels, Design::Interim)?.half_width()));
        rule.analyse(blocks, &half_widths.collect::<Vec<_>>())
    }

    fn undecided(
        &self,
        series: &Series,
        pair: (usize, usize),
        ratios: &Ratios,
    ) -> (Undecided, Option<SourcedFloor>) {
        let floor = self.highest_floor(series, pair);
        let undecided = Undecided {
            evidence: Evidence::of(ratios, series.design()),
            floor: floor.map(|it| it.floor),
            interleaved: self.interleaved,
            gating: series.gating,
        };
        (undecided, floor)
    }

    /// The highest noise floor among the stored floors of both sides and the floors from their twins in this run. A quiet run
    /// does not lower the calibrated floor, because the noise may return. A noisy run raises the floor. Values are not pooled:
    /// the many values of a quiet calibration would hide the few values of a noisy run.
    fn highest_floor(&self, series: &Series, pair: (usize, usize)) -> Option<SourcedFloor> {
        let stored = [pair.0, pair.1].into_iter().filter_map(|of| {
            let floor = series.floors.get(of).copied().flatten()?;
            Some(SourcedFloor { floor, source: FloorSource::Calibration, of })
        });
        let size = |it: &SourcedFloor| it.floor.log_ratio();
        stored.chain(self.twin_floors(series, pair)).max_by(|a, b| size(a).total_cmp(&size(b)))
    }

    fn comparison(
        &self,
        series: &Series,
        pair: (usize, usize),
        ratios: &Ratios,
        ((undecided, decision), floor): ((&Undecided, Decision), Option<SourcedFloor>),
    ) -> Comparison {
        let (blocks, design) = (ratios.blocks().len(), series.design());
        let sides = [pair.0, pair.1].map(|side| levels(&series.configurations[side]));
        let has_interval = undecided.verdict_interval().is_some();
        let correct = |p: f64| design.correct_p(p, sides[0].len().min(sides[1].len()));
        let bootstrap = |seed| bootstrap(ratios.blocks(), design.t_confidence(blocks), seed);
        Comparison {
            evidence: undecided.evidence,
            bootstrap: self.seed.and_then(bootstrap),
            decision,
            blocks,
            unpaired: ratios.unpaired(),
            stopped_by: series.stopped_by,
            p: Probabilities {
                paired: decision.p,
                adjusted: decision.p_adjusted,
                welch: welch(&sides[0], &sides[1]).filter(|_| has_interval).map(correct),
                mann_whitney: mann_whitney(&sides[0], &sides[1]).filter(|_| has_interval).map(correct),
            },
            floor,
        }
    }

    /// The noise floors from the twins of either side of a pair.
    fn twin_floors(&self, series: &Series, pair: (usize, usize)) -> impl Iterator<Item = SourcedFloor> {
        let twins = self.twins.iter().filter(move |it| it.of == pair.0 || it.of == pair.1);
        twins.filter_map(|it| {
            let floor = NoiseFloor::of_twin(&series.ratios((it.twin, it.of))?.ok()?)?;
            Some(SourcedFloor { floor, source: FloorSource::Twin, of: it.of })
        })
    }
}

impl Series {
    fn design(&self) -> Design {
        if self.stopped_by == StoppedBy::Fixed { Design::Fixed } else { Design::Interim }
    }

    /// The log ratios of a pair, with the sign at which above zero is better; `None` if one side is empty.
    fn ratios(&self, (configuration, against): (usize, usize)) -> Option<Result<Ratios, NoRatio>> {
        let blocks_of = |index: usize| self.configurations.get(index).filter(|blocks| !blocks.is_empty());
        let (first, second) = (blocks_of(configuration)?, blocks_of(against)?);
        Some(match self.better {
            Better::Higher => Ratios::paired(first, second),
            Better::Lower => Ratios::paired(second, first),
        })
    }
}

/// The level of each block: the logarithm of the median of its rounds.
pub fn levels(blocks: &Blocks) -> Vec<f64> {
    let median_of = |rounds: &Rounds| median(&rounds.values().copied().collect::<Vec<f64>>());
    blocks.values().filter_map(|rounds| Some(median_of(rounds)?.ln())).collect()
}

#[cfg(test)]
mod tests;
