//! The summary of an answer, for a person at a shell. For one sequence without cached prompt tokens, the formulas are those of
//! the orchestrator. The orchestrator ignores the summary, and computes its own results from the timestamps.

use protocol::{Iteration, Sequence};
use serde_json::{Value, json};

/// The summary of a `generated` message. It is the last field of the message's line. Percentiles are over all sequences of all
/// iterations.
pub fn summarise(iterations: &[Iteration]) -> Value {
    let sequences = || iterations.iter().flat_map(|i| i.sequences.iter().map(move |s| (i.start_ns, s)));
    let first_ms = sorted(sequences().filter_map(|(start, s)| Some(first_ns(start, s)? as f64 / 1e6)));
    let prefill = sorted(
        sequences()
            .filter_map(|(start, s)| Some(f64::from(s.prompt_tokens) * 1e9 / first_ns(start, s)? as f64)),
    );
    let decode = sorted(sequences().filter_map(|(_, s)| decode_rate(s)));
    let prompt_tokens: u64 = sequences().map(|(_, s)| u64::from(s.prompt_tokens)).sum();
    let output_tokens: usize = sequences().map(|(_, s)| output_tokens(s)).sum();
    let (first, p95) = (quantile(&first_ms, 0.5), quantile(&first_ms, 0.95));
    let (prefill, decode) = (quantile(&prefill, 0.5), quantile(&decode, 0.5));
    let plural = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let mut parts =
        vec![format!("{}, {}", plural(iterations.len(), "iteration"), plural(output_tokens, "token"))];
    if let (Some(first), Some(p95)) = (first, p95) {
        parts.push(format!("first token {first:.2} ms (p95 {p95:.2} ms)"));
    }
    parts.extend(prefill.map(|rate| format!("prefill {rate:.1} tok/s")));
    parts.extend(decode.map(|rate| format!("decode {rate:.1} tok/s")));
    json!({
        "text": parts.join("; "),
        "iterations": iterations.len(),
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "first_token_ms": first.map(round),
        "first_token_p95_ms": p95.map(round),
        "prefill_tokens_per_s": prefill.map(round),
        "decode_tokens_per_s": decode.map(round),
    })
}

/// The summary as readable lines, with the first text that the model wrote.
pub fn lines(summary: &Value, iterations: &[Iteration]) -> String {
    let text = iterations.first().and_then(|i| i.sequences.first()).and_then(text);
    let text_line = text.map(|text| format!("  wrote: {:?}\n", text.chars().take(200).collect::<String>()));
    format!("{}\n{}", summary["text"].as_str().unwrap_or_default(), text_line.unwrap_or_default())
}

/// The text that the engine added to a text, or gave in pieces.
fn text(sequence: &Sequence) -> Option<String> {
    let pieces = || Some(sequence.chunks.as_ref()?.iter().map(|chunk| chunk.text.as_str()).collect());
    sequence.text.clone().or_else(pieces)
}

fn output_tokens(sequence: &Sequence) -> usize {
    let ids = sequence.output_ids.as_ref().map(Vec::len);
    ids.or(sequence.output_tokens.map(|tokens| tokens as usize)).unwrap_or(0)
}

/// The times of the first and the last output, and the number of tokens after the first one.
fn output_times(sequence: &Sequence) -> Option<(u64, u64, usize)> {
    if let Some(chunks) = &sequence.chunks {
        let (first, last) = (chunks.first()?, chunks.last()?);
        return Some((first.ns, last.ns, output_tokens(sequence).saturating_sub(first.tokens? as usize)));
    }
    let ns = sequence.token_ns.as_ref()?;
    Some((*ns.first()?, *ns.last()?, ns.len() - 1))
}

/// The time from the start to the first output.
fn first_ns(start_ns: u64, sequence: &Sequence) -> Option<u64> {
    let in_text = || Some(sequence.chunks.as_ref()?.first()?.ns);
    let first = sequence.token_ns.as_ref().and_then(|ns| ns.first().copied()).or_else(in_text);
    first?.checked_sub(start_ns).filter(|&ns| ns > 0)
}

/// Tokens per second: the number of tokens after the first output, divided by the time from the first to the last one.
fn decode_rate(sequence: &Sequence) -> Option<f64> {
    let (first, last, tokens) = output_times(sequence)?;
    (last > first).then(|| tokens as f64 * 1e9 / (last - first) as f64)
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Quantile with interpolation between neighbours (Hyndman and Fan's type 7).
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let position = q * (sorted.len().checked_sub(1)?) as f64;
    let (low, high) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    Some(low + (high - low) * position.fract())
}

fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use protocol::Chunk;

    use super::*;

    fn iteration(start_ns: u64, prompt_tokens: u32, token_ns: &[u64]) -> Iteration {
        let (output_ids, token_ns) = (Some(vec![5; token_ns.len()]), Some(token_ns.to_vec()));
        let sequences = vec![Sequence { prompt_tokens, output_ids, token_ns, ..Sequence::default() }];
        Iteration { start_ns, end_ns: u64::MAX, sequences }
    }

    #[test]
    fn rates_are_computed_from_timestamps_by_the_documented_formulas() {
        // 10 prompt tokens in 2 ms, then 3 tokens in 6 ms.
        let first = iteration(1_000_000, 10, &[3_000_000, 5_000_000, 7_000_000, 9_000_000]);
        // The same tokens in twice the time.
        let second = iteration(1_000_000, 10, &[5_000_000, 9_000_000, 13_000_000, 17_000_000]);
        let summary = summarise(&[first, second]);
        assert_eq!(summary["first_token_ms"], 3.0);
        assert_eq!(summary["first_token_p95_ms"], 3.9);
        assert_eq!(summary["prefill_tokens_per_s"], 3750.0);
        assert_eq!(summary["decode_tokens_per_s"], 375.0);
        let text = "2 iterations, 8 tokens; first token 3.00 ms (p95 3.90 ms); prefill 3750.0 tok/s; decode 375.0 tok/s";
        assert_eq!(summary["text"], text);
    }

    #[test]
    fn a_text_has_the_rates_of_its_pieces() {
        let chunk = |ns, tokens| Chunk { ns, text: " x".into(), tokens: Some(tokens) };
        let chunks = Some(vec![chunk(3_000_000, 1), chunk(7_000_000, 3), chunk(9_000_000, 2)]);
        let sequence = Sequence { prompt_tokens: 10, chunks, output_tokens: Some(6), ..Sequence::default() };
        let iterations = [Iteration { start_ns: 1_000_000, end_ns: u64::MAX, sequences: vec![sequence] }];
        let summary = summarise(&iterations);
        assert_eq!((&summary["first_token_ms"], &summary["output_tokens"]), (&json!(2.0), &json!(6)));
        assert_eq!(summary["decode_tokens_per_s"], 833.3333);
        assert!(lines(&summary, &iterations).ends_with("  wrote: \" x x x\"\n"));
    }

    #[test]
    fn an_unknown_value_is_null_and_not_zero() {
        let summary = summarise(&[iteration(0, 10, &[4])]);
        assert!(summary["decode_tokens_per_s"].is_null() && summary["first_token_ms"].is_number());
        let summary = summarise(&[iteration(5, 10, &[])]);
        assert!(summary["first_token_ms"].is_null());
        assert_eq!(summary["text"], "1 iteration, 0 tokens");
        assert!(summarise(&[])["prefill_tokens_per_s"].is_null());
    }
}
