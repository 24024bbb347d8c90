"""The summary of an answer, for a person at a shell.

For one sequence without cached prompt tokens, the formulas are those of the orchestrator. The orchestrator ignores the summary,
and computes its own results from the timestamps.
"""

import json
import math


def summarise(iterations):
    """The summary, with the same fields as in the Rust kit. Percentiles are over all sequences of all iterations; None means
    unknown."""
    sequences = [(iteration["start_ns"], sequence) for iteration in iterations for sequence in iteration["sequences"]]
    ttft_ms, prefill_tokens_per_s, decode_tokens_per_s = [], [], []
    for start_ns, sequence in sequences:
        token_ns = sequence["token_ns"]
        if token_ns and token_ns[0] > start_ns:
            ttft_ms.append((token_ns[0] - start_ns) / 1e6)
            prefill_tokens_per_s.append(sequence["prompt_tokens"] * 1e9 / (token_ns[0] - start_ns))
        if token_ns and token_ns[-1] > token_ns[0]:
            # The number of tokens after the first, divided by the time from the first to the last.
            decode_tokens_per_s.append((len(token_ns) - 1) * 1e9 / (token_ns[-1] - token_ns[0]))
    summary = {
        "text": None,
        "iterations": len(iterations),
        "prompt_tokens": sum(sequence["prompt_tokens"] for _, sequence in sequences),
        "output_tokens": sum(len(sequence["output_ids"]) for _, sequence in sequences),
        "first_token_ms": quantile(ttft_ms, 0.5),
        "first_token_p95_ms": quantile(ttft_ms, 0.95),
        "prefill_tokens_per_s": quantile(prefill_tokens_per_s, 0.5),
        "decode_tokens_per_s": quantile(decode_tokens_per_s, 0.5),
    }
    summary["text"] = _text(summary)
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in summary.items()}


def summary_lines(summary, iterations):
    """The summary as readable lines, with the first text that the model wrote."""
    text = next((s["text"] for iteration in iterations for s in iteration["sequences"] if s.get("text") is not None), None)
    line = "" if text is None else f"  wrote: {json.dumps(text[:200], ensure_ascii=False)}\n"
    return f"{summary['text']}\n{line}"


def quantile(values, q):
    """Quantile with interpolation between neighbours (Hyndman and Fan's type 7)."""
    if not values:
        return None
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low, high = ordered[math.floor(position)], ordered[math.ceil(position)]
    return low + (high - low) * (position % 1)


def _text(summary):
    parts = [f"{_count(summary['iterations'], 'iteration')}, {_count(summary['output_tokens'], 'token')}"]
    if summary["first_token_ms"] is not None:
        parts.append(f"first token {summary['first_token_ms']:.2f} ms (p95 {summary['first_token_p95_ms']:.2f} ms)")
    for name in ("prefill", "decode"):
        if (rate := summary[f"{name}_tokens_per_s"]) is not None:
            parts.append(f"{name} {rate:.1f} tok/s")
    return "; ".join(parts)


def _count(count, word):
    return f"{count} {word}{'' if count == 1 else 's'}"
