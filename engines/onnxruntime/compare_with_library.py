"""Compares the times of this engine with those of a plain loop over the library, which has no counters of its own.

    cargo build --release
    scripts/python-of onnxruntime engines/onnxruntime/compare_with_library.py [MODEL] [--rounds N]

Both generate the same tokens of the same prompts with the same threads and the same converted model, in turns. Prints for each
time the medians, and the ratio with its interval of 95 %. Exits with 1 if they do not agree, or if the interval is too wide to
show it (the kit's `comparison.py`).
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kit" / "python"))

# The library reads this variable at its import. The engine sets it too.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy
import onnxruntime_genai as genai
from comparison import LATER, TTFT, compare_with_library


class Library:
    """A plain loop over the library."""

    def __init__(self, facts):
        config = genai.Config(str(Path(facts["file"]).parent))
        size = facts["vocabulary_size"]
        session = {"session_options": {"intra_op_num_threads": facts["threads"]}}
        config.overlay(json.dumps({"model": {"eos_token_id": [size - 2], "pad_token_id": size - 1, "decoder": session}}))
        self._model = genai.Model(config)

    def measure(self, prompt, new_tokens):
        start = time.perf_counter()
        parameters = genai.GeneratorParams(self._model)
        parameters.set_search_options(max_length=len(prompt) + new_tokens, batch_size=1, do_sample=False)
        generator = genai.Generator(self._model, parameters)
        generator.append_tokens(numpy.array(prompt, numpy.int32))
        ids, times = [], []
        for _ in range(new_tokens):
            generator.generate_next_token()
            ids.append(int(generator.get_next_tokens()[0]))
            times.append(time.perf_counter())
        return {TTFT: (times[0] - start) * 1e3, LATER: (times[-1] - times[0]) * 1e3}, ids


if __name__ == "__main__":
    # The library gives the last two ids a meaning of its own.
    compare_with_library(__doc__, "onnxruntime-engine", Library, reserved_ids=2)
