"""Compares the times of this engine with those of a plain call of the library, which has no counters.

    cargo build --release
    scripts/python-of ctranslate2 engines/ctranslate2/compare_with_library.py target/release/ctranslate2-engine [MODEL] [ROUNDS]

Both generate the same tokens of the same prompts with the same threads and the same converted model, in turns. Prints for each
time the medians in milliseconds, and the median of the rounds' ratios with its interval of 95 %. Exits with 1 if an interval lies
outside of 1 ± MAX_DIFFERENCE.
"""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import ctranslate2

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
    """A plain call of the library with a callback for tokens."""

    def __init__(self, folder, vocabulary_size):
        self._end = vocabulary_size
        self._generator = ctranslate2.Generator(str(folder), device="cpu", compute_type="float32", intra_threads=THREADS)

    def times(self, prompt):
        start = time.perf_counter()
        ids, times = [], []

        def on_token(step):
            ids.append(step.token_id)
            times.append(time.perf_counter())
            return False

        fields = {"max_length": NEW_TOKENS, "end_token": [self._end], "include_prompt_in_result": False}
        self._generator.generate_batch([[str(id) for id in prompt]], callback=on_token, **fields)
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
