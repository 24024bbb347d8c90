//! The loss of a text, and what follows from it: perplexity, and bits per byte.

/// The log-probabilities of some tokens, added up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Loss {
    nats: f64,
    tokens: usize,
}

impl Loss {
    /// The loss of all tokens of these texts. `None` without tokens, or if one of them is impossible: then there is no finite
    /// loss.
    pub fn of<'a>(texts: impl IntoIterator<Item = &'a [Option<f64>]>) -> Option<Self> {
        let mut loss = Self::default();
        for logprob in texts.into_iter().flatten() {
            loss.nats -= logprob.filter(|it| it.is_finite())?;
            loss.tokens += 1;
        }
        (loss.tokens > 0 && loss.nats.is_finite()).then_some(loss)
    }

    pub fn tokens(self) -> usize {
        self.tokens
    }

    /// The mean loss of a token, in nats.
    pub fn mean(self) -> f64 {
        self.nats / self.tokens as f64
    }

    /// The exponential of the mean over tokens. `None` if that is too large for a number.
    pub fn perplexity(self) -> Option<f64> {
        Some(self.mean().exp()).filter(|it| it.is_finite())
    }

    /// The bits of all tokens together, divided by the bytes of their text.
    pub fn bits_per_byte(self, text_bytes: u64) -> Option<f64> {
        let bits = self.nats / std::f64::consts::LN_2;
        (text_bytes > 0).then(|| bits / text_bytes as f64)
    }
}

/// The root mean square of the differences between two lists of log-probabilities of the same tokens. `None` if they have
/// different lengths or no token, if only one side finds a token impossible, or if the result is too large for a number.
pub fn drift<'a>(
    one: impl IntoIterator<Item = &'a Option<f64>>,
    other: impl IntoIterator<Item = &'a Option<f64>>,
) -> Option<f64> {
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    let (mut squares, mut tokens) = (0.0, 0_u32);
    loop {
        let difference = match (one.next(), other.next()) {
            (None, None) => {
                let drift = (tokens > 0).then(|| (squares / f64::from(tokens)).sqrt());
                return drift.filter(|it| it.is_finite());
            }
            (Some(Some(a)), Some(Some(b))) => a - b,
            (Some(None), Some(None)) => 0.0,
            _ => return None,
        };
        squares += difference * difference;
        tokens += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perplexity_is_the_exponential_of_the_mean_over_tokens_and_not_over_windows() {
        // Two tokens of ln 8 in one window, and one of ln 2 in another.
        let windows = [vec![Some(-(8.0_f64.ln())); 2], vec![Some(-(2.0_f64.ln()))]];
        let loss = Loss::of(windows.iter().map(Vec::as_slice)).unwrap();
        let expected = (2.0 * 8.0_f64.ln() + 2.0_f64.ln()) / 3.0;
        assert!((loss.mean() - expected).abs() < 1e-12);
        assert!((loss.perplexity().unwrap() - expected.exp()).abs() < 1e-12);
        // Seven bits in fourteen bytes.
        assert!((loss.bits_per_byte(14).unwrap() - 0.5).abs() < 1e-12);
        assert_eq!((loss.tokens(), loss.bits_per_byte(0)), (3, None));
    }

    #[test]
    fn an_impossible_token_leaves_no_loss_and_no_tokens_leave_none() {
        assert_eq!(Loss::of([&[Some(-1.0), None][..]]), None);
        assert_eq!(Loss::of([&[][..]]), None);
        assert_eq!(Loss::of([&[Some(-1000.0)][..]]).unwrap().perplexity(), None, "too large for a number");
        assert_eq!(Loss::of([&[Some(f64::MIN); 2][..]]), None);
        assert_eq!(drift(&[Some(f64::MIN)], &[Some(-1.0)]), None);
    }

    #[test]
    fn drift_is_the_root_mean_square_of_the_differences() {
        let one = [Some(-1.0), Some(-2.0), None];
        assert_eq!(drift(&one, &[Some(-1.0), Some(-2.0), None]), Some(0.0));
        let expected = (25.0_f64 / 2.0).sqrt();
        assert_eq!(drift(&one[..2], &[Some(-4.0), Some(-6.0)]), Some(expected));
        assert_eq!(drift(&one, &[Some(-1.0), Some(-2.0)]), None);
        assert_eq!(drift(&one, &[Some(-1.0), Some(-2.0), Some(-3.0)]), None);
    }
}
