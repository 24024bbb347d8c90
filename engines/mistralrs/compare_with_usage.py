"""Compares the times of this engine with those that mistral.rs itself reports for the very same requests.

    scripts/python-of mistralrs engines/mistralrs/compare_with_usage.py FOLDER [--prompt 512] [--tokens 64] [--requests 5]

mistral.rs reports a time of the prompt and a time of the completion with the last token of an answer (`usage`), in whole
milliseconds. The engine's time to the first token and its time from the first token to the last cover the same work. Prints both
and their ratio, and exits with 1 if the medians differ by more than MAX_DIFFERENCE and more than the clock's millisecond.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

ENGINE = Path(__file__).resolve().parent
sys.path[:0] = [str(ENGINE), str(ENGINE.parent / "kit" / "python")]

from engine_kit import PROTOCOL_OUT, Job, Phases, Tokens
from worker import MistralRs

MAX_DIFFERENCE = 0.03
# mistral.rs's clock counts whole milliseconds.
CLOCK_MS = 1.0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=5)
    arguments = parser.parse_args()
    fields = dict(model=arguments.folder, dtype=arguments.dtype, threads=arguments.threads, context_tokens=None, options={})
    model = MistralRs().load(SimpleNamespace(**fields), Phases())
    pairs = [times(model, arguments, number) for number in range(arguments.requests + 1)]
    # The first request warms up.
    is_close = [report(part, [pair[part] for pair in pairs[1:]]) for part in ("prompt", "completion")]
    sys.exit(not all(is_close))


def times(model, arguments, number):
    """The times of one request in ms, of the engine and of mistral.rs, for the prompt and for the completion."""
    vocabulary = model.facts()["vocabulary_size"]
    prompt = [(31 * number + 7 * index * index + 3 * index) % vocabulary for index in range(arguments.prompt)]
    job = Job([prompt], arguments.tokens, ignore_eos=True)
    start_ns = time.perf_counter_ns()
    tokens = Tokens(job, (), start_ns, 0)
    model.generate(job, tokens)
    (sequence,) = tokens.iteration()["sequences"]
    first, last = (sequence["token_ns"][index] / 1e6 for index in (0, -1))
    usage = model.usage[0]
    return {
        "prompt": (first, usage.total_prompt_time_sec * 1e3),
        "completion": (last - first, usage.total_completion_time_sec * 1e3),
    }


def report(part, pairs):
    engine, library = (statistics.median(values) for values in zip(*pairs))
    line = f"{part:<11} engine {engine:10.2f} ms   mistral.rs {library:10.2f} ms   ratio {engine / library:.4f}\n"
    # The kit has moved stdout, because libraries print there.
    os.write(PROTOCOL_OUT, line.encode())
    return abs(engine - library) <= max(MAX_DIFFERENCE * library, CLOCK_MS)


if __name__ == "__main__":
    main()
