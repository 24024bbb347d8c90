"""Compares the times of this engine with those of a plain loop over the library, which has no counters of its own.

    cargo build --release
    scripts/python-of onnxruntime engines/onnxruntime/compare_with_library.py target/release/onnxruntime-engine [MODEL] [ROUNDS]

Both generate the same tokens of the same prompts with the same threads and the same converted model, in turns. Prints for each
time the medians in milliseconds, and the median of the rounds' ratios with its interval of 95 %. Exits with 1 if an interval lies
outside of 1 ± MAX_DIFFERENCE.
"""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

# The library reads this variable at its import. The engine sets it too.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy
import onnxruntime_genai as genai

EMBEDDED = Path(__file__).resolve().parents[2] / "models" / "embedded"
PROMPT_TOKENS, NEW_TOKENS, THREADS = 128, 64, 1
MAX_DIFFERENCE = 0.03
RESAMPLES = 2000


class Engine:
    """The engine's program with a loaded model."""

    def __init__(self, program, model):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([program], text=True, **pipes)
        self.facts = self._answer({"type": "load", "model": str(model), "dtype": "f32", "threads": THREADS})

    def _answer(self, request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            answer = json.loads(line)
            if answer["type"] == "failed":
                sys.exit(f"error: {answer['message']}")
            if answer["type"] != "progress":
                return answer
        sys.exit("error: the engine ended")

    def times(self, prompt):
        """The ids, the time to the first token, and the time between tokens, in milliseconds."""
        request = {"type": "generate", "prompt_ids": prompt, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
        iteration = self._answer(request)["iterations"][0]
        sequence = iteration["sequences"][0]
        times = sequence["token_ns"]
        between = (times[-1] - times[0]) / (len(times) - 1)
        return sequence["output_ids"], (times[0] - iteration["start_ns"]) / 1e6, between / 1e6


class Library:
    """A plain loop over the library."""

    def __init__(self, folder, vocabulary_size):
        config = genai.Config(str(folder))
        ids = {"eos_token_id": [vocabulary_size - 2], "pad_token_id": vocabulary_size - 1}
        session = {"session_options": {"intra_op_num_threads": THREADS}}
        config.overlay(json.dumps({"model": {**ids, "decoder": session}}))
        self._model = genai.Model(config)

    def times(self, prompt):
        start = time.perf_counter()
        parameters = genai.GeneratorParams(self._model)
        parameters.set_search_options(max_length=len(prompt) + NEW_TOKENS, batch_size=1, do_sample=False)
        generator = genai.Generator(self._model, parameters)
        generator.append_tokens(numpy.array(prompt, numpy.int32))
        ids, times = [], []
        for _ in range(NEW_TOKENS):
            generator.generate_next_token()
            ids.append(int(generator.get_next_tokens()[0]))
            times.append(time.perf_counter())
        return ids, (times[0] - start) * 1e3, (times[-1] - times[0]) / (NEW_TOKENS - 1) * 1e3


def interval(ratios):
    """The median of the ratios and its interval of 95 %, by resampling rounds."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return median(ratios), medians[RESAMPLES // 40], medians[-RESAMPLES // 40]


def main(program, model=EMBEDDED, rounds="30"):
    engine = Engine(program, model)
    vocabulary_size = engine.facts["vocabulary_size"]
    library = Library(Path(engine.facts["file"]).parent, vocabulary_size)
    draw, results = random.Random(1), []
    for number in range(int(rounds) + 1):
        prompt = [draw.randrange(vocabulary_size - 2) for _ in range(PROMPT_TOKENS)]
        pair = [None, None]
        # The first of a round changes, because the second finds the model in the caches of the processor.
        for side in (0, 1) if number % 2 else (1, 0):
            pair[side] = (engine, library)[side].times(prompt)
        if pair[0][0] != pair[1][0]:
            sys.exit("error: the engine and the library generated different tokens")
        # The first round warms both up.
        results += [pair] if number else []
    is_within = True
    for name, index in (("TTFT", 1), ("between tokens", 2)):
        sides = [[pair[side][index] for pair in results] for side in (0, 1)]
        ratio, low, high = interval([own / other for own, other in zip(*sides)])
        medians = f"engine {median(sides[0]):.3f} ms, library {median(sides[1]):.3f} ms"
        print(f"{name}: {medians}, ratio {ratio:.3f} [{low:.3f}, {high:.3f}]")
        is_within &= low <= 1 + MAX_DIFFERENCE and high >= 1 - MAX_DIFFERENCE
    sys.exit(not is_within)


if __name__ == "__main__":
    main(*sys.argv[1:])
