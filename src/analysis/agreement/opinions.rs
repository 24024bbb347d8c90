//! What the witness thinks of tokens that an engine gave while it was measured: given the very same text before them, how
//! much likelier would its own token have been? An engine that parts from the witness at a near tie is not wrong, whatever
//! it says from there on; one that gives what nobody would is, however well it scores.

use std::collections::BTreeMap;

use serde::Serialize;

use super::places::{Text, blocks};
use super::witness::Witness;
use crate::record::{Opinion, RunRecord};

/// What an engine's tokens give up, in nats of the witness's log-probability.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Opinions {
    pub places: usize,
    /// Of these: where the witness would have given another token.
    pub differing: usize,
    /// Over all places; those where it would have given the same count as nothing.
    pub mean: f64,
    pub worst: f64,
    /// The first place, in any sample, at which it would have given another.
    pub first: Option<usize>,
    /// The sample that gives up most, where there is one.
    pub gravest: Option<Run>,
    #[serde(skip)]
    gaps: BTreeMap<(u32, usize, u32, u32), f64>,
}

/// The places of one sample from the first one on that is worth a word.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    pub text: Text,
    pub from: usize,
    /// On average, from there on.
    pub mean: f64,
    pub places: usize,
}

impl Opinions {
    /// Those of the witness alone count; `notable` is the gap from which on a token is worth a word.
    pub fn of(record: &RunRecord, configuration: usize, witness: &Witness, notable: f64) -> Option<Self> {
        let plan = &record.header.plan;
        let asked = witness.configuration?;
        let is_about =
            |it: &&Opinion| it.witness == asked && plan.cases[it.case].configuration == configuration;
        let mut gaps = BTreeMap::new();
        let mut first: Option<usize> = None;
        let mut differing = 0;
        for opinion in record.opinions.iter().filter(is_about) {
            let Some(gap) = gap(opinion) else { continue };
            if opinion.own != opinion.theirs {
                differing += 1;
                first = Some(first.map_or(opinion.place as usize, |first| first.min(opinion.place as usize)));
            }
            gaps.insert((opinion.launch, opinion.case, opinion.index, opinion.place), gap);
        }
        if gaps.is_empty() {
            return None;
        }
        let places = gaps.len();
        Some(Self {
            places,
            differing,
            mean: gaps.values().sum::<f64>() / places as f64,
            worst: gaps.values().copied().fold(0.0, f64::max),
            first,
            gravest: gravest(record, &gaps, notable),
            gaps,
        })
    }

    /// Once it is known what they come to, nobody needs each of them.
    pub fn without_gaps(self) -> Self {
        Self { gaps: BTreeMap::new(), ..self }
    }

    /// Whether the witness saw some of the tokens that this case gave.
    pub fn is_about(&self, case: usize) -> bool {
        self.gaps.keys().any(|(_, of, ..)| *of == case)
    }

    /// What a token gives up, where the witness was asked about it.
    pub fn gap(&self, (launch, case, index): (u32, usize, u32), place: usize) -> Option<f64> {
        self.gaps.get(&(launch, case, index, u32::try_from(place).ok()?)).copied()
    }
}

/// A token of which nobody said how likely it is has no gap; one that the witness finds impossible gives up everything.
fn gap(opinion: &Opinion) -> Option<f64> {
    if opinion.own == opinion.theirs {
        return Some(0.0);
    }
    let own = opinion.own_logprob.filter(|own| own.is_finite())?;
    let theirs = opinion.theirs_logprob.filter(|theirs| !theirs.is_nan()).unwrap_or(f64::NEG_INFINITY);
    // The likelier one by a hair's breadth: rounding between two requests to the same engine.
    Some((own - theirs).max(0.0))
}

fn gravest(record: &RunRecord, gaps: &BTreeMap<(u32, usize, u32, u32), f64>, notable: f64) -> Option<Run> {
    let mut samples: BTreeMap<(u32, usize, u32), Vec<(u32, f64)>> = BTreeMap::new();
    for (&(launch, case, index, place), &gap) in gaps {
        samples.entry((launch, case, index)).or_default().push((place, gap));
    }
    let blocks = blocks(record);
    let runs = samples.into_iter().filter_map(|((launch, case, index), places)| {
        let begin = places.iter().position(|(_, gap)| *gap >= notable)?;
        let after = &places[begin..];
        Some(Run {
            text: Text::of(&record.header.plan, &blocks, launch, case, index),
            from: after[0].0 as usize,
            mean: after.iter().map(|(_, gap)| gap).sum::<f64>() / after.len() as f64,
            places: after.len(),
        })
    });
    // The first of those that give up as much.
    runs.reduce(|worst, run| if run.mean > worst.mean { run } else { worst })
}
