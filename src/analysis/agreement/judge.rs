//! Turns the results of output checks into a verification status with reasons.

use super::bounds::{AGREES, Bounds, EXACT, NEAR_TIE, Precision, Requested};
use super::coverage::{missing, not_checked};
use super::gaps::Gaps;
use super::greedy::{FirstDifference, Greedy};
use super::scores::Scores;
use super::status::{Agreement, Status, no_checks, two_digits};
use super::tokens::wrong_counts;
use super::verifier::{Against, Verifier};
use crate::record::RunRecord;
use crate::text::with_commas;

/// Below this difference of scores near ties are rare, about one in a thousand texts. A token that differs then counts as a near
/// tie only if the verifier says so.
const TOO_NEAR_FOR_A_TIE: f64 = 1e-4;

pub fn judge(record: &RunRecord, configuration: usize) -> Agreement {
    let it = &record.header.plan.configurations[configuration];
    let launches = record.launches.iter().filter(|launch| launch.configuration == configuration);
    let precision = Precision::of(launches, &Requested::of(it));
    let mut found = Agreement {
        status: Status::Unverified,
        against: Against::Nothing,
        precision,
        scores: None,
        greedy: None,
        gaps: None,
        reasons: Vec::new(),
    };
    if no_checks(record).is_some() {
        return found;
    }
    let counts = wrong_counts(record, configuration);
    let verifier = match Verifier::of(record, configuration) {
        Ok(verifier) => verifier,
        // Counts need no verifier.
        Err(_) if !counts.is_empty() => {
            return Agreement { status: Status::Wrong, reasons: counts, ..found };
        }
        Err(why) => {
            let recorded = not_checked(record, configuration);
            let reasons = if recorded.is_empty() { vec![why] } else { recorded };
            return Agreement { reasons, ..found };
        }
    };
    if verifier.is_itself(configuration) && counts.is_empty() {
        // The verifier is exact by definition.
        return Agreement { status: Status::Exact, against: Against::Itself, ..found };
    }
    let bounds = precision.bounds();
    let scored = record.scored.iter().filter(|it| it.configuration == configuration);
    let texts =
        scored.filter_map(|it| Some((it.sequence, verifier.logprobs(it.sequence)?, it.logprobs.as_slice())));
    found.scores = Scores::of(texts);
    found.greedy = Greedy::of(record, configuration, &verifier);
    found.gaps = Gaps::of(record, configuration, &verifier, bounds.gap);
    found.against = verifier.against.clone();
    let results = Results { found: &found, bounds, verifier: verifier_name(&verifier.against) };
    let Differences { wrong, unchecked, tie } = results.differences();
    let wrong = results.wrong_scores().into_iter().chain(results.wrong_tokens()).chain(wrong);
    let wrong: Vec<String> = wrong.chain(counts).collect();
    let missing = missing(record, configuration, &verifier, &found);
    let missing: Vec<String> = unchecked.into_iter().chain(missing).collect();
    let (status, reasons) = match &found.scores {
        _ if !wrong.is_empty() => (Status::Wrong, wrong),
        Some(scores) if missing.is_empty() => results.status(scores, tie),
        _ => (Status::Unverified, missing),
    };
    Agreement { status, reasons, ..found }
}

fn verifier_name(against: &Against) -> String {
    match against {
        Against::Engine { label } => format!("`{label}`"),
        Against::StoredAnswers { by } => format!("{by} (stored answers)"),
        Against::Itself | Against::Nothing => "the verifier".into(),
    }
}

/// The differences between an engine's greedy tokens and the verifier's: the first of each kind.
#[derive(Default)]
struct Differences {
    /// A difference without a near tie.
    wrong: Option<String>,
    /// A difference where a near tie is unlikely, and the verifier did not check it.
    unchecked: Option<String>,
    /// A difference at a near tie, with the gap.
    tie: Option<String>,
}

struct Results<'a> {
    found: &'a Agreement,
    bounds: Bounds,
    verifier: String,
}

impl Results<'_> {
    fn wrong_scores(&self) -> Option<String> {
        let scores = self.found.scores.as_ref()?;
        let (verifier, allowed) = (&self.verifier, self.found.precision.name());
        if let Some((text, position)) = scores.first_missing {
            let others = match scores.missing {
                1 => String::new(),
                missing => format!(", the first of {} such ids", with_commas(missing)),
            };
            return Some(format!(
                "it gives no finite log-probability for id {} of held-out text {text}, unlike {verifier}{others}",
                with_commas(position)
            ));
        }
        if scores.missing > 0 {
            return Some(format!("it gives {} log-probabilities too many", with_commas(scores.missing)));
        }
        let Bounds { rms, stretch_rms, .. } = self.bounds;
        // All values are finite, so the result may be infinite but is never NaN.
        if scores.rms > rms {
            return Some(format!(
                "its log-probabilities of {} held-out tokens differ from those of {verifier} by {} (root mean square, nats); the \
                 bound for {allowed} is {}",
                with_commas(scores.tokens),
                two_digits(scores.rms),
                two_digits(rms)
            ));
        }
        let worst = scores.worst.filter(|worst| worst.rms > stretch_rms)?;
        Some(format!(
            "over ids {} to {} of held-out text {} its log-probabilities differ from those of {verifier} by {} (root mean \
             square, nats; {} over all); the bound for {allowed} is {}",
            with_commas(worst.from),
            with_commas(worst.to),
            worst.sequence,
            two_digits(worst.rms),
            two_digits(scores.rms),
            two_digits(stretch_rms)
        ))
    }

    fn wrong_tokens(&self) -> Option<String> {
        let gaps = self.found.gaps.as_ref()?;
        if gaps.mean <= self.bounds.gap && gaps.worst <= self.bounds.worst_gap {
            return None;
        }
        let verifier = self.engine_name();
        let (tokens, mean, positions) = match &gaps.worst_run {
            Some(run) if run.positions > 1 => {
                let tokens = format!("from token {} on of {}, its tokens", run.from, run.text.name());
                (tokens, run.mean, run.positions)
            }
            Some(run) => {
                let (token, text, nats) = (run.from, run.text.name(), two_digits(run.mean));
                return Some(format!(
                    "token {token} of {text} is {nats} nats less likely than that of {verifier}"
                ));
            }
            None => ("its tokens".to_string(), gaps.mean, gaps.positions),
        };
        let (nats, positions) = (two_digits(mean), with_commas(positions));
        Some(format!(
            "{tokens} are {nats} nats less likely than those of {verifier}, on average over {positions}"
        ))
    }

    /// The verifier's name, for its answers on measured tokens: these always come from an engine in this run.
    fn engine_name(&self) -> String {
        match &self.found.against {
            Against::Engine { label } => format!("`{label}`"),
            _ => "the verifier".into(),
        }
    }

    /// Differences of tokens where the scores are exact. In f32 only a near tie explains one.
    fn differences(&self) -> Differences {
        let mut found = Differences::default();
        let gap = |it: &FirstDifference| self.found.gaps.as_ref()?.gap(it.sample?, it.position);
        let scores = self.found.scores.as_ref().filter(|it| it.rms <= EXACT);
        let (Some(scores), Some(greedy)) = (scores, &self.found.greedy) else { return found };
        for difference in &greedy.differences {
            let (text, position) = (difference.text.name(), difference.position);
            match gap(difference) {
                Some(gap) if gap <= NEAR_TIE => {
                    let gap = if gap == 0.0 { "nothing".into() } else { format!("{} nats", two_digits(gap)) };
                    found.tie.get_or_insert_with(|| {
                        format!("it differs from token {position} of {text} on, after a near tie ({gap} between the two tokens)")
                    });
                }
                Some(gap) if self.found.precision == Precision::Full => {
                    let why = format!(
                        "it differs from {} at token {position} of {text}, by {} nats, although its log-probabilities are exact",
                        self.engine_name(),
                        two_digits(gap)
                    );
                    return Differences { wrong: Some(why), ..Differences::default() };
                }
                None if self.found.precision == Precision::Full && scores.rms <= TOO_NEAR_FOR_A_TIE => {
                    found.unchecked.get_or_insert_with(|| {
                        format!(
                            "it differs from {} at token {position} of {text}; the verifier did not check that token",
                            self.verifier
                        )
                    });
                }
                _ => {
                    found.tie.get_or_insert_with(|| format!("it differs from token {position} of {text} on"));
                }
            }
        }
        found
    }

    fn status(&self, scores: &Scores, tie: Option<String>) -> (Status, Vec<String>) {
        let Agreement { greedy, gaps, .. } = self.found;
        let is_equal = greedy.as_ref().is_none_or(|it| it.differing == 0);
        let differing = gaps.as_ref().filter(|it| it.differing > 0);
        if scores.rms > AGREES {
            let distance = format!("{} (root mean square, nats)", two_digits(scores.rms));
            let why = format!("its log-probabilities differ from those of {} by {distance}", self.verifier);
            return (Status::Drifts, vec![why]);
        }
        if scores.rms <= EXACT && is_equal && differing.is_none() {
            return (Status::Exact, Vec::new());
        }
        let others = || {
            let it = differing?;
            Some(format!(
                "{} of {} tokens differ from the verifier's",
                with_commas(it.differing),
                with_commas(it.positions)
            ))
        };
        let reason = if scores.rms > EXACT { None } else { tie.or_else(others) };
        (Status::Agrees, reason.into_iter().collect())
    }
}
