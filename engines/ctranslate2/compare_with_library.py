"""Compares the times of this engine with those of a plain call of the library, which has no counters.

    cargo build --release
    scripts/python-of ctranslate2 engines/ctranslate2/compare_with_library.py [MODEL] [--rounds N]

Both generate the same tokens of the same prompts with the same threads and the same converted model, in turns. Prints for each
time the medians, and the ratio with its interval of 95 %. Exits with 1 if they do not agree, or if the interval is too wide to
show it (the kit's `comparison.py`).
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kit" / "python"))

import ctranslate2
from comparison import LATER, TTFT, compare_with_library


class Library:
    """A plain call of the library with a callback for tokens."""

    def __init__(self, facts):
        self._end = facts["vocabulary_size"]
        threads = {"intra_threads": facts["threads"]}
        self._generator = ctranslate2.Generator(str(Path(facts["file"]).parent), device="cpu", compute_type="float32", **threads)

    def measure(self, prompt, new_tokens):
        start = time.perf_counter()
        ids, times = [], []

        def on_token(step):
            ids.append(step.token_id)
            times.append(time.perf_counter())
            return False

        fields = {"max_length": new_tokens, "end_token": [self._end], "include_prompt_in_result": False}
        self._generator.generate_batch([[str(id) for id in prompt]], callback=on_token, **fields)
        return {TTFT: (times[0] - start) * 1e3, LATER: (times[-1] - times[0]) * 1e3}, ids


if __name__ == "__main__":
    compare_with_library(__doc__, "ctranslate2-engine", Library)
