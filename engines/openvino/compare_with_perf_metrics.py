"""Compares the times of this engine with OpenVINO GenAI's own counters (`perf_metrics`) of the same requests.

    cargo build --release -p openvino-engine
    scripts/python-of openvino engines/openvino/compare_with_perf_metrics.py models/embedded

Generates with the worker's own code, and prints for each request the TTFT and the time of a later token by the kit's timestamps and
by the library's, and their ratio. Exits with 1 if the median of a ratio differs from 1 by more than MAX_DIFFERENCE.
"""

import argparse
import os
import random
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

ENGINE = Path(__file__).resolve().parent
ROOT = ENGINE.parents[1]
sys.path[:0] = [str(ENGINE), str(ENGINE.parent / "kit" / "python")]

from engine_kit import Job, Phases, Tokens
from worker import DEFAULT_DTYPE, DTYPES, OpenVINO

MAX_DIFFERENCE = 0.03

# The first requests allocate the KV cache and are not compared.
WARM_UP_REQUESTS = 3


def main():
    parser = argparse.ArgumentParser(description="Compares this engine's times with OpenVINO GenAI's own counters.")
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--dtype", choices=DTYPES, default=DEFAULT_DTYPE)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=64)
    arguments = parser.parse_args()
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
    os.environ.setdefault("ORCHESTRATE_ENGINE_PROGRAM", str(target / "release" / "openvino-engine"))
    fields = {"model": arguments.model, "dtype": arguments.dtype, "threads": arguments.threads}
    model = OpenVINO().load(SimpleNamespace(options={}, context_tokens=None, **fields), Phases())
    facts = model.facts()
    print(f"{arguments.model} in {facts['weights_dtype']}/{facts['compute_dtype']}, {facts['threads']} threads")
    print("request    TTFT ms  perf_metrics  ratio    token ms  perf_metrics  ratio")
    ratios = []
    for number in range(WARM_UP_REQUESTS + arguments.requests):
        times, counters = measure(model, arguments.prompt_tokens, arguments.new_tokens)
        if number >= WARM_UP_REQUESTS:
            ratios.append([time / counter for time, counter in zip(times, counters)])
            columns = zip(times, counters, ratios[-1])
            row = "  ".join(f"{time:10.3f}  {counter:12.3f}  {ratio:.3f}" for time, counter, ratio in columns)
            print(f"{number - WARM_UP_REQUESTS:7}{row}", flush=True)
    medians = [statistics.median(column) for column in zip(*ratios)]
    print("median ratio: TTFT {:.4f}, token {:.4f}".format(*medians))
    sys.exit(not all(abs(median - 1) <= MAX_DIFFERENCE for median in medians))  # NaN fails too


def measure(model, prompt_tokens, new_tokens):
    """The TTFT and the time of a later token of one request, in milliseconds: by the kit, and by the library."""
    size = model.facts()["vocabulary_size"]
    job = Job([[random.randrange(size) for _ in range(prompt_tokens)]], new_tokens, ignore_eos=True)
    start_ns = time.perf_counter_ns()
    tokens = Tokens(job, [], 0, start_ns)
    model.generate(job, tokens)
    (sequence,) = tokens.iteration()["sequences"]
    first_ns, last_ns = sequence["token_ns"][0], sequence["token_ns"][-1]
    (metrics,) = model.perf_metrics()
    times = ((first_ns - start_ns) / 1e6, (last_ns - first_ns) / (new_tokens - 1) / 1e6)
    return times, (metrics.get_ttft().mean, metrics.get_tpot().mean)


if __name__ == "__main__":
    main()
