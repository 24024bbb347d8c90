"""Compares the times of this engine with those that mistral.rs itself reports for the very same requests.

    scripts/python-of mistralrs engines/mistralrs/compare_with_usage.py [MODEL] [--dtype f32]

mistral.rs reports a time of the prompt and a time of the completion with the last token of an answer (`usage`), in whole
milliseconds. The engine's time to the first token and its time from the first token to the last cover the same work. Prints the
medians of both, and exits with 1 if they differ by more than 3 % and more than a millisecond (the kit's `comparison.py`).
"""

import sys
from pathlib import Path

ENGINE = Path(__file__).resolve().parent
sys.path[:0] = [str(ENGINE), str(ENGINE.parent / "kit" / "python")]
import comparison

from comparison import LATER, TTFT
from engine_tests import load
from worker import MistralRs

# mistral.rs's clock counts whole milliseconds.
CLOCK_MS = 1.0


def main():
    parser = comparison.parser(__doc__, rounds=5, prompt_tokens=512)
    parser.add_argument("--dtype", default="f32")
    options = parser.parse_args()
    model = load(MistralRs(), options.model.resolve(), dtype=options.dtype, threads=options.threads)
    size = model.facts()["vocabulary_size"]

    def measure(round):
        prompt = comparison.random_prompt(size, options.prompt_tokens, round)
        times = comparison.measure_model(model, prompt, options.new_tokens)
        (usage,) = model.usage
        return times, {TTFT: usage.total_prompt_time_sec * 1e3, LATER: usage.total_completion_time_sec * 1e3}

    comparison.compare_counters(options.rounds, measure, "mistral.rs", CLOCK_MS)


if __name__ == "__main__":
    main()
