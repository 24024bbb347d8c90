//! Turns the results of output checks into a verification status with reasons.

use super::bounds::{AGREES, Bounds, EXACT, NEAR_TIE, Precision, Requested};
use super::costs::Cost;
use super::coverage::{lacking_features, missing, not_checked, why_no_answers, with_each_hint_once};
use super::early_text::EarlyText;
use super::gaps::Gaps;
use super::greedy::{FirstDifference, Greedy};
use super::scores::Scores;
use super::status::{Agreement, Status, digits_beside, no_checks, two_digits};
use super::token_loss::TokenLoss;
use super::tokens::wrong_counts;
use super::tokens_alone;
use super::verifier::{Against, Verifier};
use crate::record::{RunRecord, Sample};
use crate::text::{plural, with_commas};

/// The largest gap of a token that rounding changes, as a multiple of the largest difference of a log-probability. Both tokens of
/// a tie may differ, and generated text may differ more than held-out text.
const MAX_GAP_OF_ROUNDING: f64 = 4.0;
/// The largest root mean square of score differences, in nats, at which near ties are rare: about one in a thousand texts. A
/// different token then counts as a near tie only if the verifier checked it.
const MAX_RMS_OF_RARE_TIES: f64 = 1e-4;

/// The agreement of a configuration: the status with its reasons.
pub fn judge(record: &RunRecord, configuration: usize) -> Agreement {
    let requested = Requested::of(&record.header.plan.configurations[configuration]);
    let launches = || record.launches.iter().filter(|launch| launch.configuration == configuration);
    let precision = Precision::of(launches(), &requested);
    let cost =
        Cost::of(record, configuration, launches(), &requested).filter(|_| precision != Precision::Full);
    let bounds = cost.as_ref().map_or(precision.bounds(), |cost| cost.tighten(precision.bounds()));
    let mut agreement = Agreement {
        status: Status::Unverified,
        against: Against::Nothing,
        precision,
        cost,
        bounds,
        scores: None,
        greedy: None,
        gaps: None,
        token_loss: None,
        early_text: None,
        lacking: Vec::new(),
        reasons: Vec::new(),
    };
    if no_checks(record).is_some() {
        return agreement;
    }
    // These errors are found without a verifier in this run.
    let errors: Vec<String> = wrong_counts(record, configuration);
    let verifier = match Verifier::of(record, configuration) {
        Ok(verifier) => verifier,
        Err(_) if !errors.is_empty() => {
            return Agreement { status: Status::Wrong, reasons: errors, ..agreement };
        }
        Err(why) => {
            // The engine's own reasons explain nothing if the verifier gave no answers.
            if let Some(why) = why_no_answers(record, configuration, &why) {
                return Agreement { reasons: vec![why], ..agreement };
            }
            let recorded = not_checked(record, configuration);
            let reasons = if recorded.is_empty() { vec![why] } else { recorded };
            let reasons = with_each_hint_once(reasons);
            return Agreement { reasons, lacking: lacking_features(record, configuration), ..agreement };
        }
    };
    if verifier.is_itself(configuration) && errors.is_empty() {
        // The verifier is exact by definition.
        return Agreement { status: Status::Exact, against: Against::Itself, ..agreement };
    }
    let scored = record.scored.iter().filter(|it| it.configuration == configuration);
    let texts =
        scored.filter_map(|it| Some((it.sequence, verifier.logprobs(it.sequence)?, it.logprobs.as_slice())));
    agreement.scores = Scores::of(texts);
    agreement.greedy = Greedy::of(record, configuration, &verifier);
    // After dependent prompts, rounding to few bits makes some tokens unlikely. So there only the number of such tokens counts.
    let counts = |it: &Sample| !it.dependent || precision < Precision::Bits6;
    agreement.gaps = Gaps::of(record, configuration, &verifier, bounds.gap, counts);
    let (greedy, cost) = (agreement.greedy.as_ref(), agreement.cost.as_ref());
    agreement.token_loss = TokenLoss::of(record, configuration, &verifier, greedy, cost);
    agreement.early_text = EarlyText::of(record, configuration, &verifier, precision);
    agreement.against = verifier.against.clone();
    let results = Results { agreement: &agreement, bounds, verifier: verifier_name(&verifier.against) };
    let Differences { wrong, unchecked, tie } = results.differences();
    let can_score = tokens_alone::can_score(record, configuration);
    let without_scores = || tokens_alone::wrong_token(&agreement, &results.verifier_of_this_run());
    let wrong_token = if can_score { None } else { without_scores() };
    let wrong_tokens =
        [results.wrong_early_text(), results.wrong_tokens(), results.wrong_loss(), wrong_token];
    let wrong_tokens = wrong_tokens.into_iter().flatten();
    let wrong_tokens = wrong_tokens.chain(tokens_alone::wrong_counts(record, configuration, &verifier));
    let wrong = results.wrong_scores().into_iter().chain(wrong_tokens).chain(wrong);
    let wrong: Vec<String> = wrong.chain(errors).collect();
    let missing = missing(record, configuration, &verifier, &agreement);
    // Without a missing part, the tokens alone verify too little, which more features of the engine would change.
    let is_of_engine = missing.is_empty() || missing.iter().any(|it| it.is_of_engine);
    let lacking = if is_of_engine { lacking_features(record, configuration) } else { Vec::new() };
    let missing: Vec<String> = unchecked.into_iter().chain(missing.into_iter().map(|it| it.why)).collect();
    let (status, reasons) = match &agreement.scores {
        _ if !wrong.is_empty() && tokens_alone::may_misread(record, configuration, precision) => {
            (Status::Unverified, tokens_alone::misread(&wrong))
        }
        _ if !wrong.is_empty() => (Status::Wrong, wrong),
        Some(scores) if missing.is_empty() => results.status(scores, tie),
        None if missing.is_empty() && !can_score => tokens_alone::status(record, configuration, &agreement),
        _ => (Status::Unverified, with_each_hint_once(missing)),
    };
    Agreement { status, reasons, lacking, ..agreement }
}

fn verifier_name(against: &Against) -> String {
    match against {
        Against::Engine { label } => format!("`{label}`"),
        Against::ReferenceAnswers { by } => format!("{by} (reference answers)"),
        Against::Itself | Against::Nothing => "the verifier".into(),
    }
}

/// The differences between the greedy tokens of an engine and of the verifier: the first of each kind, as a sentence.
#[derive(Default)]
struct Differences {
    /// The first difference in f32 that is no near tie.
    wrong: Option<String>,
    /// The first difference that is unlikely to be a near tie and that the verifier did not check.
    unchecked: Option<String>,
    /// The first difference that is no error: at a near tie (with the gap), unchecked, or after rounding.
    tie: Option<String>,
}

/// The results of one configuration, with its bounds: those of its precision, which its cost may narrow.
struct Results<'a> {
    agreement: &'a Agreement,
    bounds: Bounds,
    verifier: String,
}

impl Results<'_> {
    /// The reason why the scores are wrong.
    fn wrong_scores(&self) -> Option<String> {
        let scores = self.agreement.scores.as_ref()?;
        let (verifier, precision) = (&self.verifier, self.agreement.precision.name());
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
            let values = plural(with_commas(scores.missing), "log-probability value");
            return Some(format!("it gives {values} too many"));
        }
        let Bounds { rms, stretch_rms, .. } = self.bounds;
        // All values are finite, so the root mean square may be infinite but is never NaN.
        if scores.rms > rms {
            return Some(format!(
                "its log-probabilities of {} held-out tokens differ from those of {verifier} by {} nats (root mean square); the \
                 bound for {precision} is {}{}",
                with_commas(scores.tokens),
                digits_beside(scores.rms, &[rms]),
                two_digits(rms),
                self.cost_in_words(|it| it.rms)
            ));
        }
        let worst = scores.worst.filter(|worst| worst.rms > stretch_rms)?;
        Some(format!(
            "over ids {} to {} of held-out text {} its log-probabilities differ from those of {verifier} by {} nats (root \
             mean square; {} over all); the bound for {precision} is {}{}",
            with_commas(worst.from),
            with_commas(worst.to),
            worst.sequence,
            digits_beside(worst.rms, &[stretch_rms]),
            two_digits(scores.rms),
            two_digits(stretch_rms),
            self.cost_in_words(|it| it.stretch_rms)
        ))
    }

    /// The end of a sentence about a narrowed bound: `: bf16 costs 0.008 nats on this model`. Empty if the cost narrows no bound.
    fn cost_in_words(&self, value: fn(&Cost) -> f64) -> String {
        let Some(cost) = &self.agreement.cost else { return String::new() };
        let usual = self.agreement.precision.bounds();
        let is_narrowed = (self.bounds.rms, self.bounds.stretch_rms) != (usual.rms, usual.stretch_rms);
        let nats = two_digits(value(cost));
        if is_narrowed { format!(": {} costs {nats} nats on this model", cost.dtypes) } else { String::new() }
    }

    /// The reason why all measured tokens together are too unlikely for the reported dtypes.
    fn wrong_loss(&self) -> Option<String> {
        let cost = self.agreement.cost.as_ref()?;
        let loss = self.agreement.token_loss.as_ref()?;
        let bound = loss.bound.filter(|bound| loss.nats > *bound)?;
        let differ = if loss.differing == 1 { "differs" } else { "differ" };
        Some(format!(
            "{} of {} generated tokens {differ} from those of {}: in sum {} nats less likely; the bound for {} on this model is {}",
            with_commas(loss.differing),
            with_commas(loss.positions),
            self.verifier_of_this_run(),
            two_digits(loss.nats),
            cost.dtypes,
            two_digits(bound)
        ))
    }

    /// The reason why the tokens after dependent prompts show that the engine computes only a part of each prompt.
    fn wrong_early_text(&self) -> Option<String> {
        let early_text = self.agreement.early_text.as_ref().filter(|it| it.is_wrong())?;
        let precision = self.agreement.precision;
        Some(format!(
            "it computes only a part of each prompt, or computes long prompts wrong. {} of its {} tokens that can depend on the \
             first half of a prompt are less likely than those of {} by more than {} nats. Rounding to {} explains few such tokens",
            with_commas(early_text.unlikely),
            with_commas(early_text.answers),
            self.verifier_of_this_run(),
            two_digits(precision.bounds().gap),
            precision.name()
        ))
    }

    /// The reason why the measured tokens are wrong.
    fn wrong_tokens(&self) -> Option<String> {
        let gaps = self.agreement.gaps.as_ref()?;
        if gaps.mean <= self.bounds.gap && gaps.worst <= self.bounds.worst_gap {
            return None;
        }
        let verifier = self.verifier_of_this_run();
        let (tokens, mean, positions) = match &gaps.worst_tail {
            Some(tail) if tail.positions > 1 => {
                let tokens = format!("from token {} of {} on, its tokens", tail.from, tail.text.name());
                (tokens, tail.mean, tail.positions)
            }
            Some(tail) => {
                let (token, text, nats) = (tail.from, tail.text.name(), two_digits(tail.mean));
                return Some(format!(
                    "token {token} of {text} is {nats} nats less likely than that of {verifier}"
                ));
            }
            None => ("its tokens".to_string(), gaps.mean, gaps.positions),
        };
        let (nats, positions) = (two_digits(mean), with_commas(positions));
        Some(format!(
            "{tokens} are {nats} nats less likely than those of {verifier}, on average over {positions} tokens"
        ))
    }

    /// The verifier's name, for its answers on measured tokens. These answers always come from an engine in this run.
    fn verifier_of_this_run(&self) -> String {
        match &self.agreement.against {
            Against::Engine { label } => format!("`{label}`"),
            _ => "the verifier".into(),
        }
    }

    /// The differences of tokens if the scores are exact. In f32, only a near tie explains such a difference.
    fn differences(&self) -> Differences {
        let mut first = Differences::default();
        let gap = |it: &FirstDifference| self.agreement.gaps.as_ref()?.gap(it.sample?, it.position);
        let scores = self.agreement.scores.as_ref().filter(|it| it.rms <= EXACT);
        let Some(scores) = scores else { return first };
        let differs = |position: usize, text: String, gap: f64| {
            format!(
                "it differs from {} at token {position} of {text}, by {} nats, although its log-probabilities are exact",
                self.verifier_of_this_run(),
                two_digits(gap)
            )
        };
        let largest = self.agreement.token_loss.as_ref().and_then(|it| it.largest.as_ref());
        let is_full = self.agreement.precision == Precision::Full;
        let near_tie = NEAR_TIE.max(MAX_GAP_OF_ROUNDING * scores.largest);
        if let Some(largest) = largest.filter(|it| is_full && it.gap > near_tie) {
            let wrong = differs(largest.position, largest.text.name(), largest.gap);
            return Differences { wrong: Some(wrong), ..Differences::default() };
        }
        for difference in self.agreement.greedy.iter().flat_map(|it| &it.differences) {
            let (text, position) = (difference.text.name(), difference.position);
            match gap(difference) {
                Some(gap) if gap <= NEAR_TIE => {
                    let gap = two_digits(gap);
                    first.tie.get_or_insert_with(|| {
                        format!("from token {position} of {text} on, its tokens differ, after a near tie (two tokens that differ by {gap} nats)")
                    });
                }
                Some(gap) if is_full => {
                    let why = differs(position, text, gap);
                    return Differences { wrong: Some(why), ..Differences::default() };
                }
                None if is_full && scores.rms <= MAX_RMS_OF_RARE_TIES => {
                    first.unchecked.get_or_insert_with(|| {
                        format!(
                            "it differs from {} at token {position} of {text}; the verifier did not check that token",
                            self.verifier
                        )
                    });
                }
                _ => {
                    first.tie.get_or_insert_with(|| {
                        format!("from token {position} of {text} on, its tokens differ")
                    });
                }
            }
        }
        first
    }

    /// The status of a complete check without errors.
    fn status(&self, scores: &Scores, tie: Option<String>) -> (Status, Vec<String>) {
        let Agreement { greedy, gaps, token_loss, .. } = self.agreement;
        let is_equal = greedy.as_ref().is_none_or(|it| it.differing == 0);
        // The count over all tokens of outputs comes first. If it is unknown or zero, the count over single checked positions is
        // used.
        let all = token_loss.as_ref().map(|it| (it.differing, it.positions));
        let some = gaps.as_ref().map(|it| (it.differing, it.positions));
        let differing = all.into_iter().chain(some).find(|(differing, _)| *differing > 0);
        if scores.rms > AGREES {
            let difference = format!("{} nats (root mean square)", digits_beside(scores.rms, &[AGREES]));
            let why = format!("its log-probabilities differ from those of {} by {difference}", self.verifier);
            return (Status::Drifts, vec![why]);
        }
        if scores.rms <= EXACT && is_equal && differing.is_none() {
            return (Status::Exact, Vec::new());
        }
        let different_tokens = || {
            let (differing, positions) = differing?;
            let differ = if differing == 1 { "differs" } else { "differ" };
            let (differing, positions) = (with_commas(differing), with_commas(positions));
            Some(format!("{differing} of its {positions} checked tokens {differ} from the verifier's"))
        };
        let reason = if scores.rms > EXACT { None } else { tie.or_else(different_tokens) };
        (Status::Agrees, reason.into_iter().collect())
    }
}
