//! Compares log-probabilities of a given text with the verifier's.

use serde::Serialize;

/// The number of tokens in a stretch; the last stretch of a text may have fewer or more. It is small enough
/// to show an error that grows with the position, at the end of a text. It is large enough that a single
/// token does not decide.
pub const STRETCH_TOKENS: usize = 128;

/// The differences of log-probabilities, in nats.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Scores {
    /// The root mean square over all tokens.
    pub rms: f64,
    /// The number of compared tokens.
    pub tokens: usize,
    /// The largest difference of one token.
    pub largest: f64,
    /// The stretch with the largest root mean square.
    pub worst: Option<Stretch>,
    /// The number of values that the verifier has and the engine lacks, because the engine found the token impossible or left
    /// the value out. Values of the engine after the verifier's last one count too.
    pub missing: usize,
    /// The first value that the engine lacks: the index of the text, and the position of the id in the text.
    pub first_missing: Option<(usize, usize)>,
}

/// A part of one text.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Stretch {
    /// The index of the text.
    pub sequence: usize,
    /// The first and the last id of the stretch with a log-probability, counted from 0.
    pub from: usize,
    pub to: usize,
    pub rms: f64,
}

impl Scores {
    /// The differences over texts: the index of each text, the verifier's values and the engine's values. `None` without values
    /// to compare.
    pub fn of<'a>(
        texts: impl Iterator<Item = (usize, &'a [Option<f64>], &'a [Option<f64>])>,
    ) -> Option<Self> {
        let (mut scores, mut all) = (Self::default(), Squares::default());
        for (sequence, verifier, engine) in texts {
            for (from, to) in stretches(verifier.len()) {
                let mut of_stretch = Squares::default();
                for position in from..to {
                    // An id that the verifier finds impossible has no difference.
                    let Some(expected) = finite(verifier.get(position)) else { continue };
                    match finite(engine.get(position)) {
                        Some(given) => of_stretch.add(given - expected),
                        None => {
                            scores.missing += 1;
                            // There is a value for every id but the first.
                            scores.first_missing.get_or_insert((sequence, position + 1));
                        }
                    }
                }
                scores.largest = scores.largest.max(of_stretch.largest);
                all.sum += of_stretch.sum;
                all.count += of_stretch.count;
                let stretch = of_stretch.rms().map(|rms| Stretch { sequence, from: from + 1, to, rms });
                let is_worse = |it: &Stretch| scores.worst.is_none_or(|worst| it.rms > worst.rms);
                if let Some(stretch) = stretch.filter(is_worse) {
                    scores.worst = Some(stretch);
                }
            }
            scores.missing += engine.len().saturating_sub(verifier.len());
        }
        scores.tokens = all.count;
        scores.rms = all.rms().unwrap_or(0.0);
        (scores.tokens + scores.missing > 0).then_some(scores)
    }
}

#[derive(Default)]
struct Squares {
    sum: f64,
    count: usize,
    largest: f64,
}

impl Squares {
    fn add(&mut self, difference: f64) {
        self.sum += difference * difference;
        self.count += 1;
        self.largest = self.largest.max(difference.abs());
    }

    /// The root mean square. It is infinite if a difference is too large to be squared.
    fn rms(&self) -> Option<f64> {
        (self.count > 0).then(|| (self.sum / self.count as f64).sqrt())
    }
}

fn finite(value: Option<&Option<f64>>) -> Option<f64> {
    value.copied().flatten().filter(|value| value.is_finite())
}

/// The stretches of a text with this many values. A remainder of half a stretch or less belongs to the last
/// full stretch.
fn stretches(count: usize) -> impl Iterator<Item = (usize, usize)> {
    let stretches = ((count + STRETCH_TOKENS / 2 - 1) / STRETCH_TOKENS).max(1);
    (0..stretches).map(move |number| {
        let end = if number + 1 == stretches { count } else { (number + 1) * STRETCH_TOKENS };
        (number * STRETCH_TOKENS, end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(verifier: &[Option<f64>], engine: &[Option<f64>]) -> Option<Scores> {
        Scores::of(std::iter::once((0, verifier, engine)))
    }

    #[test]
    fn the_rms_is_the_root_of_the_mean_square() {
        let found = compare(&[Some(-1.0), Some(-2.0)], &[Some(-1.3), Some(-1.6)]).unwrap();
        assert!((found.rms - 0.125_f64.sqrt()).abs() < 1e-12, "{found:?}");
        assert!((found.largest - 0.4).abs() < 1e-12);
        assert_eq!((found.tokens, found.missing), (2, 0));
    }

    #[test]
    fn a_late_error_shows_in_the_worst_stretch() {
        let verifier = vec![Some(-1.0); 1151];
        // The last 128 values differ by 1 nat; the last stretch has 127 of them.
        let late = |position| if position < 1023 { Some(-1.0) } else { Some(-2.0) };
        let found = compare(&verifier, &(0..1151).map(late).collect::<Vec<_>>()).unwrap();
        assert!((found.rms - (128.0_f64 / 1151.0).sqrt()).abs() < 1e-12);
        let worst = found.worst.unwrap();
        assert_eq!((worst.from, worst.to), (1025, 1151));
        assert!((worst.rms - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_short_remainder_belongs_to_the_previous_stretch() {
        let ranges = |count| stretches(count).collect::<Vec<_>>();
        assert_eq!(ranges(0), [(0, 0)]);
        assert_eq!(ranges(20), [(0, 20)]);
        assert_eq!(ranges(128), [(0, 128)]);
        assert_eq!(ranges(192), [(0, 192)]);
        assert_eq!(ranges(193), [(0, 128), (128, 193)]);
    }

    #[test]
    fn missing_scores_are_counted_only_where_the_verifier_has_a_score() {
        let found = compare(&[Some(-1.0), None, Some(-1.0)], &[None, Some(-9.0)]).unwrap();
        assert_eq!((found.tokens, found.missing, found.first_missing), (0, 2, Some((0, 1))));
        assert_eq!(compare(&[None], &[Some(-1.0)]), None);
        assert_eq!(compare(&[Some(-1.0)], &[Some(-1.0), Some(-1.0)]).unwrap().missing, 1);
    }

    #[test]
    fn nan_and_huge_scores_are_large_differences_without_a_panic() {
        let found = compare(&[Some(-1.0), Some(-1.0)], &[Some(f64::NAN), Some(-f64::MAX)]).unwrap();
        assert_eq!((found.missing, found.rms), (1, f64::INFINITY));
    }
}
