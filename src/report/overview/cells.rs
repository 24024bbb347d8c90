//! Values and ratios as text, in the units and the precision of the default report.

use stats::{Comparison, Phrase, Verdict, bounds_in_cell};

use crate::analysis::metric::Metric;
use crate::report::marks::Mark;
use crate::report::ranking::Compared;
use crate::report::tone::Tone;
use crate::report::verdict_lines::unbroken;
use crate::report::verdicts::Certainty;

pub fn number_with_unit(value: f64, metric: &Metric) -> String {
    let scale = metric.scale();
    format!("{} {}", scale.write(value), scale.symbol)
}

/// A comparison in a few words: `2.1x beacon [1.9, 2.4]`, `1.4x slower than beacon [1.2, 1.6]`, `same as beacon`,
/// `inconclusive: beacon [8.7 % slower, 1.3x]`, `2.0x? beacon [1.4, 2.7]; inconclusive: ...` with the reason. Without `other`, the
/// column names the other side. `is_quotient`: the ratio is that of the shown values.
pub fn comparison(compared: &Compared, other: Option<&str>, is_quotient: bool) -> String {
    let Some(value) = compared.ratio() else { return Mark::NotAvailable.to_string() };
    let (bounds, kind) = (compared.bounds(), compared.pair.metric.kind());
    let Phrase { change, bounds: interval, .. } = Phrase::in_cell(value, bounds, kind);
    let mark = if is_quotient { "" } else { Mark::NotAQuotient.sign() };
    let name = |conjunction: &str| other.map_or_else(String::new, |other| format!("{conjunction}{other}"));
    let than = name(if change.ends_with('x') { " " } else { " than " });
    match compared.verdict() {
        Some(Verdict::Faster | Verdict::Slower) => format!("{change}{mark}{than} {interval}"),
        Some(Verdict::Same) => format!("same{}", name(" as ")),
        Some(Verdict::Inconclusive) => {
            let word = Certainty::Inconclusive.words();
            match compared.pair.comparison().and_then(Comparison::why_inconclusive) {
                // The interval has one direction, so the ratio says which side is faster.
                Some(why) => {
                    let ends = unbroken(&interval);
                    format!("{change}{}{mark}{than} {ends}; {word}: {why}", Mark::Inconclusive)
                }
                None => {
                    let of_other = name(": ");
                    let ends = bounds.map_or_else(String::new, |it| unbroken(&bounds_in_cell(it, kind)));
                    format!("{word}{of_other} {ends}")
                }
            }
        }
        None => format!("{change}{}{mark}{than}", Mark::NoVerdict),
    }
}

/// The ratio of a comparison in the column of speed-ups, before the mark of its row: `18x*`, `same`, `inconclusive`.
pub fn speed_up(compared: &Compared, is_quotient: bool, mark: &str) -> String {
    let Some(value) = compared.ratio() else { return Mark::NotAvailable.to_string() };
    let change = Phrase::in_cell(value, compared.bounds(), compared.pair.metric.kind()).change;
    let quotient_mark = if is_quotient { "" } else { Mark::NotAQuotient.sign() };
    let text = match compared.verdict() {
        Some(Verdict::Faster | Verdict::Slower) => format!("{change}{quotient_mark}"),
        Some(Verdict::Same) => Certainty::Same.words().into(),
        Some(Verdict::Inconclusive) => Certainty::Inconclusive.words().into(),
        None => format!("{change}{}{quotient_mark}", Mark::NoVerdict),
    };
    format!("{text}{mark}")
}

/// The interval of a comparison with a verdict.
pub fn interval(compared: &Compared) -> Option<String> {
    let (value, bounds, kind) = (compared.ratio()?, compared.bounds()?, compared.pair.metric.kind());
    Some(match compared.verdict()? {
        Verdict::Faster | Verdict::Slower => Phrase::in_cell(value, Some(bounds), kind).bounds,
        Verdict::Same | Verdict::Inconclusive => bounds_in_cell(bounds, kind),
    })
}

pub fn toned(compared: &Compared, text: &str) -> String {
    match compared.verdict() {
        Some(Verdict::Faster) => Tone::Good.of(text),
        Some(Verdict::Slower) => Tone::Bad.of(text),
        Some(Verdict::Inconclusive) | None => Tone::Dim.of(text),
        Some(Verdict::Same) => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::metric::MetricId;
    use crate::analysis::metric::by_id;
    use crate::record::specimen::{BEACON, ORIGINAL, measured};
    use crate::report::run_report::Report;
    use crate::report::tests::decoding;

    #[test]
    fn an_inconclusive_comparison_names_the_noise_or_the_correction() {
        let engines = decoding(&["patient-original", "beacon"]);
        let report = Report::of(&measured(&engines, &[ORIGINAL, BEACON]));
        let mut pair = report.verdicts.against_reference.iter().find(|it| it.is_headline).unwrap().clone();
        let mut text = |lost_to_correction: bool| {
            let decision = &mut pair.result.as_mut().unwrap().decision;
            decision.verdict = Some(Verdict::Inconclusive);
            decision.lost_to_correction = lost_to_correction;
            comparison(&Compared::as_stored(&pair), Some("reed"), true)
        };
        let noise =
            "11.0x? reed [11.0, 11.0]; inconclusive: difference not beyond the noise of this machine (±";
        assert!(text(false).replace('\u{a0}', " ").starts_with(noise), "{}", text(false));
        let correction = "]; inconclusive: not significant among all comparisons of the run";
        assert!(text(true).ends_with(correction), "{}", text(true));
    }

    #[test]
    fn values_of_every_size_have_the_same_unit_and_queries_their_own() {
        let shown = [
            number_with_unit(18.9e6, by_id(MetricId::FIRST_TOKEN)),
            number_with_unit(4.26e9, by_id(MetricId::FIRST_TOKEN)),
            number_with_unit(93.5e3, by_id(MetricId::FIRST_TOKEN)),
            number_with_unit(93.5e3, by_id(MetricId::QUERY)),
            number_with_unit(10_210.0, by_id(MetricId::DECODE_RATE)),
            number_with_unit(16.1e9, by_id(MetricId::PEAK_MEMORY)),
        ];
        assert_eq!(shown, ["18.9 ms", "4,260 ms", "0.0935 ms", "93.5 µs", "10,200 tok/s", "16,100 MB"]);
    }
}
