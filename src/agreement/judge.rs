//! Figures to a standing, with the reasons.

use super::bounds::{AGREES, Bounds, EXACT, NEAR_TIE, Precision};
use super::greedy::{Greedy, Parting};
use super::opinions::Opinions;
use super::scores::Scores;
use super::tokens::counted_otherwise;
use super::witness::{Against, Witness};
use super::words::{counted, figures};
use super::{Agreement, Standing, unasked};
use crate::record::RunRecord;
use crate::report::safe::line;

/// So many tokens must have been judged before tokens alone say something.
const ENOUGH_TOKENS: usize = 32;
/// Scores that lie nearer than this leave room for so few near ties, about one in a thousand texts, that a token which parts
/// needs no witness of its own.
const TOO_NEAR_FOR_A_TIE: f64 = 1e-4;

pub fn judge(record: &RunRecord, configuration: usize) -> Agreement {
    let it = &record.header.plan.configurations[configuration];
    let launches = record.launches.iter().filter(|launch| launch.configuration == configuration);
    let precision = Precision::of(launches, it.dtype.as_deref(), it.model.dtype.as_deref());
    let mut found = Agreement {
        standing: Standing::Unverified,
        against: Against::Nobody,
        precision,
        scores: None,
        greedy: None,
        opinions: None,
        reasons: Vec::new(),
    };
    if unasked(record).is_some() {
        return found;
    }
    let counts = counted_otherwise(record, configuration);
    let witness = match Witness::of(record, configuration) {
        Ok(witness) => witness,
        // Counts need no witness.
        Err(_) if !counts.is_empty() => {
            return Agreement { standing: Standing::Wrong, reasons: counts, ..found };
        }
        Err(why) => {
            found.reasons = unproved(record, configuration);
            if found.reasons.is_empty() {
                found.reasons.push(why);
            }
            return found;
        }
    };
    if witness.is_itself(configuration) && counts.is_empty() {
        // By definition.
        return Agreement { standing: Standing::Exact, against: Against::Itself, ..found };
    }
    let bounds = precision.bounds();
    let scored = record.scored.iter().filter(|it| it.configuration == configuration);
    let texts =
        scored.filter_map(|it| Some((it.sequence, witness.logprobs(it.sequence)?, it.logprobs.as_slice())));
    found.scores = Scores::of(texts);
    found.greedy = Greedy::of(record, configuration, &witness);
    found.opinions = Opinions::of(record, configuration, &witness, bounds.gap);
    found.against = witness.against.clone();
    let facts = Facts { found: &found, bounds, whom: whom(&witness.against) };
    let mut wrong: Vec<String> = facts.wrong_scores().into_iter().collect();
    wrong.extend(facts.wrong_tokens());
    let (parted, ties) = facts.partings();
    wrong.extend(parted);
    wrong.extend(counts);
    let (standing, reasons) = match wrong.is_empty() {
        false => (Standing::Wrong, wrong),
        true => facts.standing(ties, unproved(record, configuration)),
    };
    let opinions = found.opinions.map(Opinions::without_gaps);
    Agreement { standing, reasons, opinions, ..found }
}

fn whom(against: &Against) -> String {
    match against {
        Against::Engine { label } => format!("`{label}`"),
        Against::Kept { by } => format!("{by} (kept)"),
        Against::Itself | Against::Nobody => "the witness".into(),
    }
}

/// Why it, or every configuration on its model, was not asked for something.
fn unproved(record: &RunRecord, configuration: usize) -> Vec<String> {
    let model = &record.header.plan.configurations[configuration].model.path;
    let concerns = |it: &&crate::record::Unproved| match it.configuration {
        Some(of) => of == configuration,
        None => it.model.as_ref().is_none_or(|of| of == model),
    };
    let said = |it: &crate::record::Unproved| match &it.hint {
        Some(hint) => format!("{} (hint: {})", line(&it.reason), line(hint)),
        None => line(&it.reason),
    };
    record.unproved.iter().filter(concerns).map(said).collect()
}

struct Facts<'a> {
    found: &'a Agreement,
    bounds: Bounds,
    whom: String,
}

impl Facts<'_> {
    fn wrong_scores(&self) -> Option<String> {
        let Some(scores) = &self.found.scores else { return None };
        let (whom, allowed) = (&self.whom, self.found.precision.words());
        if let Some((text, place)) = scores.first_missing {
            let others = match scores.missing {
                1 => String::new(),
                missing => format!(", the first of {}", counted(missing)),
            };
            return Some(format!(
                "it finds id {} of held-out text {text} impossible, or leaves it out, where {whom} does not{others}",
                counted(place)
            ));
        }
        if scores.missing > 0 {
            return Some(format!("it gives {} log-probabilities too many", counted(scores.missing)));
        }
        let Bounds { whole, stretch, .. } = self.bounds;
        // Of finite values: infinite at most, and never no number.
        if scores.rms > whole {
            return Some(format!(
                "its log-probabilities of {} held-out tokens differ from those of {whom} by {} (root mean square, nats), \
                 and {allowed} explain {}",
                counted(scores.tokens),
                figures(scores.rms),
                figures(whole)
            ));
        }
        let worst = scores.worst.filter(|worst| worst.rms > stretch)?;
        Some(format!(
            "over ids {} to {} of held-out text {} its log-probabilities differ from those of {whom} by {} (root mean \
             square, nats; {} over all), and {allowed} explain {}",
            counted(worst.from),
            counted(worst.to),
            worst.sequence,
            figures(worst.rms),
            figures(scores.rms),
            figures(stretch)
        ))
    }

    fn wrong_tokens(&self) -> Option<String> {
        let opinions = self.found.opinions.as_ref()?;
        if opinions.mean <= self.bounds.gap && opinions.worst <= self.bounds.worst_gap {
            return None;
        }
        let whom = &self.whom_asked();
        Some(match &opinions.gravest {
            Some(run) if run.places > 1 => format!(
                "from token {} on of {} it gives tokens that {whom} finds {} nats less likely than its own, on average over \
                 {}",
                run.from,
                run.text.name(),
                figures(run.mean),
                counted(run.places)
            ),
            Some(run) => format!(
                "token {} of {} is one that {whom} finds {} nats less likely than its own",
                run.from,
                run.text.name(),
                figures(run.mean)
            ),
            None => format!(
                "{whom} finds its tokens {} nats less likely than its own, on average over {}",
                figures(opinions.mean),
                counted(opinions.places)
            ),
        })
    }

    /// Opinions are always those of an engine in this run.
    fn whom_asked(&self) -> String {
        match &self.found.against {
            Against::Engine { label } => format!("`{label}`"),
            _ => "the witness".into(),
        }
    }

    /// An engine in f32 that scores as the witness does has no reason to part from it but a near tie: the first place where it
    /// parts without one, and else how near the ties were.
    fn partings(&self) -> (Option<String>, Option<String>) {
        let Some(Greedy { partings, .. }) = &self.found.greedy else { return (None, None) };
        let gap = |it: &Parting| self.found.opinions.as_ref()?.gap(it.sample?, it.place);
        let Some(scores) = self.found.scores.as_ref().filter(|it| it.rms <= EXACT) else {
            return (None, None);
        };
        let mut nearest: Option<String> = None;
        for parting in partings {
            let (text, place) = (parting.text.name(), parting.place);
            match gap(parting) {
                Some(gap) if gap <= NEAR_TIE => {
                    let gap = if gap == 0.0 { "nothing".into() } else { format!("{} nats", figures(gap)) };
                    nearest.get_or_insert_with(|| {
                        format!("it parts at token {place} of {text}, at a near tie ({gap} between the two)")
                    });
                }
                Some(gap) if self.found.precision == Precision::Full => {
                    let why = format!(
                        "it parts from {} at token {place} of {text}, which that finds {} nats less likely than its own, though \
                         its log-probabilities are exact",
                        self.whom_asked(),
                        figures(gap)
                    );
                    return (Some(why), None);
                }
                None if self.found.precision == Precision::Full && scores.rms <= TOO_NEAR_FOR_A_TIE => {
                    let why = format!(
                        "it parts from {} at token {place} of {text}, though its log-probabilities differ by {} only",
                        self.whom,
                        figures(scores.rms)
                    );
                    return (Some(why), None);
                }
                _ => {
                    nearest.get_or_insert_with(|| format!("it parts at token {place} of {text}"));
                }
            }
        }
        (None, nearest)
    }

    fn standing(&self, tie: Option<String>, unproved: Vec<String>) -> (Standing, Vec<String>) {
        let Agreement { scores, greedy, opinions, .. } = self.found;
        let Some(scores) = scores else { return self.by_tokens(unproved) };
        let agrees = greedy.as_ref().is_some_and(|it| it.parted == 0);
        let differing = opinions.as_ref().is_some_and(|it| it.differing > 0);
        let distance = || format!("{} (root mean square, nats)", figures(scores.rms));
        if scores.rms > AGREES {
            let why = format!("its log-probabilities differ from those of {} by {}", self.whom, distance());
            return (Standing::Drifts, vec![why]);
        }
        if scores.rms <= EXACT && agrees && !differing {
            return (Standing::Exact, Vec::new());
        }
        let unseen = || "its log-probabilities are exact; none of its ids could be compared".to_string();
        let reason = match tie {
            _ if scores.rms > EXACT => None,
            Some(tie) => Some(tie),
            None if greedy.is_none() && !differing => Some(unseen()),
            None => opinions.as_ref().filter(|it| it.differing > 0).map(|it| {
                format!("{} of {} tokens are not the witness's", counted(it.differing), counted(it.places))
            }),
        };
        (Standing::Agrees, reason.into_iter().collect())
    }

    /// Without scores: where enough tokens were seen, they speak for themselves.
    fn by_tokens(&self, unproved: Vec<String>) -> (Standing, Vec<String>) {
        let Agreement { greedy, opinions, .. } = self.found;
        let equal = greedy.as_ref().map_or(0, |it| it.equal);
        let places = opinions.as_ref().map_or(0, |it| it.places);
        // Who parts, and nobody was asked how far, may be anything from there on.
        let explained = greedy.as_ref().is_none_or(|it| it.parted == 0) || places > 0;
        let enough = equal.max(places) >= ENOUGH_TOKENS && explained;
        let standing = match opinions.as_ref().map_or(0.0, |it| it.mean) {
            _ if !enough => Standing::Unverified,
            mean if mean <= AGREES => Standing::Agrees,
            _ => Standing::Drifts,
        };
        let mut reasons = unproved;
        if standing == Standing::Unverified && reasons.is_empty() {
            let seen = equal.max(places);
            reasons.push(match seen {
                0 => "it gave neither log-probabilities nor ids to compare".into(),
                seen => format!(
                    "it gave no log-probabilities, and {} of its tokens could be compared",
                    counted(seen)
                ),
            });
        } else if standing != Standing::Unverified {
            reasons.insert(0, format!("by {} of its tokens alone", counted(equal.max(places))));
        }
        (standing, reasons)
    }
}
