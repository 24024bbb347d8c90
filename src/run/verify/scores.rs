//! Verifies log-probabilities of given ids: their number, and that each is the logarithm of a probability.

use protocol::Scored;

use crate::run::process::Cause;

/// The tolerance above 0: narrow floats may round the logarithm of almost 1 up.
const ABOVE_ZERO: f64 = 1e-3;

/// Verifies a `scored` against the sequences that were sent.
pub fn verify_scores(scored: &Scored, sequences: &[Vec<u32>]) -> Result<(), Cause> {
    let breach = |message: String| Err(Cause::Protocol(message));
    if scored.logprobs.len() != sequences.len() {
        let (found, requested) = (scored.logprobs.len(), sequences.len());
        return breach(format!("expected {requested} scored sequences, got {found}"));
    }
    for (logprobs, ids) in scored.logprobs.iter().zip(sequences) {
        let requested = ids.len().saturating_sub(1);
        if logprobs.len() != requested {
            return breach(format!("expected {requested} `logprobs` for a sequence, got {}", logprobs.len()));
        }
        // This refuses NaN too.
        let possible = |logprob: &f64| *logprob <= ABOVE_ZERO;
        if let Some(logprob) = logprobs.iter().flatten().find(|logprob| !possible(logprob)) {
            return breach(format!("a log-probability of {logprob}: a probability above 1"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(logprobs: Vec<Vec<Option<f64>>>) -> String {
        let scored = Scored { logprobs, ..Scored::default() };
        let cause = verify_scores(&scored, &[vec![1, 2, 3]]).unwrap_err();
        format!("{}: {cause}", cause.kind())
    }

    #[test]
    fn n_ids_have_n_minus_one_log_probabilities_and_none_above_zero() {
        let scored = Scored { logprobs: vec![vec![Some(-0.5), None]], ..Scored::default() };
        assert!(verify_scores(&scored, &[vec![1, 2, 3]]).is_ok());
        assert_eq!(refusal(vec![]), "protocol: expected 1 scored sequences, got 0");
        assert_eq!(refusal(vec![vec![Some(-0.5)]]), "protocol: expected 2 `logprobs` for a sequence, got 1");
        let above = refusal(vec![vec![Some(-0.5), Some(0.25)]]);
        assert_eq!(above, "protocol: a log-probability of 0.25: a probability above 1");
        assert!(refusal(vec![vec![Some(f64::NAN), None]]).contains("a log-probability of NaN"));
    }

    #[test]
    fn a_log_probability_rounded_to_just_above_zero_is_valid() {
        let scored = Scored { logprobs: vec![vec![Some(5e-4), Some(0.0)]], ..Scored::default() };
        assert!(verify_scores(&scored, &[vec![1, 2, 3]]).is_ok());
    }
}
