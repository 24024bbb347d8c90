"""Compares the engine with tinygrad's own benchmark, `python -m tinygrad.llm --benchmark`, in turns: the time of a decoded token.

    scripts/python-of tinygrad engines/tinygrad/compare_with_benchmark.py MODEL.gguf

Both compute the same tokens after the same prompt (BOS) with the same clang, threads, kernels and context, each in a process of
its own for each round. Prints both medians and their ratio for each round, and the interval of the ratio over the rounds (95 %).
Exits with 1 if the interval is outside of 1 ± 0.03. `--rounds N`, `--tokens N` and `--threads N`
change the defaults. tinygrad's program needs a tokenizer that it knows: the model `tiny-llama` of `orchestrate model synth` has one.
"""

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "kit" / "python")]

# The tokens at the start that one of the two may compile.
SKIPPED = 4
MARGIN = 0.03
CONTEXT = 1024

# The quantile 0.975 of Student's t by degrees of freedom.
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=5, choices=range(2, 11))
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    environment, bos = environment_of(arguments)
    ratios = []
    for number in range(arguments.rounds):
        measures = [lambda: tool_ms(arguments, environment), lambda: engine_ms(arguments, environment, bos)]
        # The order changes in each round, so that a drift of the machine favours neither.
        order = (0, 1) if number % 2 == 0 else (1, 0)
        times = {index: measures[index]() for index in order}
        ratios.append(times[1] / times[0])
        print(f"round {number + 1}: tinygrad.llm {times[0]:.2f} ms, engine {times[1]:.2f} ms, ratio {ratios[-1]:.3f}", flush=True)
    low, high = interval(ratios)
    print(f"ratio of the times {math.exp(statistics.mean(map(math.log, ratios))):.3f}, 95 % interval {low:.3f} to {high:.3f}")
    sys.exit(int(low > 1 + MARGIN or high < 1 - MARGIN))


def interval(ratios):
    """The 95 % interval of the geometric mean of paired ratios."""
    logs = [math.log(ratio) for ratio in ratios]
    half_width = T[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(statistics.mean(logs) - half_width), math.exp(statistics.mean(logs) + half_width)


def environment_of(arguments):
    """The environment of tinygrad's program, with the engine's clang and its compiled kernels, and the BOS id."""
    import compiler
    from gguf_file import GgufFile

    gguf = GgufFile(arguments.model)
    compiler.SETTINGS.configure(arguments.threads, 0, gguf.main_dtype() != "f32")
    from tinygrad import helpers

    # The worker sets these itself.
    settings = {"CPU_COUNT": str(arguments.threads), "CACHEDB": helpers.CACHEDB, "CC": os.environ["CC"], "HALF": os.environ["HALF"]}
    return {**os.environ, **settings, "DEV": "CPU"}, gguf.metadata.get("tokenizer.ggml.bos_token_id", 0)


def tool_ms(arguments, environment):
    """The median time of a token by tinygrad's program, whose warm-up compiles."""
    command = [sys.executable, "-m", "tinygrad.llm", "--model", str(arguments.model.resolve()), "--max_context", str(CONTEXT)]
    command += ["--warmup", "--benchmark", str(arguments.tokens)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    times = [float(time) for time in re.findall(r"^\s*([0-9.]+) ms, +[0-9.]+ tok/s", done.stdout, re.M)]
    if done.returncode != 0 or len(times) != arguments.tokens:
        sys.exit(f"error: tinygrad's program showed {len(times)} times of {arguments.tokens}\n{done.stdout[-400:]}{done.stderr[-2000:]}")
    return statistics.median(times[SKIPPED:])


def engine_ms(arguments, environment, bos):
    """The median time between two tokens of the engine's worker, as its answer states them."""
    requests = [
        {"type": "load", "model": str(arguments.model.resolve()), "threads": arguments.threads, "context_tokens": CONTEXT},
        {"type": "generate", "prompt_ids": [bos], "max_new_tokens": arguments.tokens, "ignore_eos": True},
    ]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    environment = {**environment, "PYTHONPATH": str(HERE.parent / "kit" / "python")}
    done = subprocess.run([sys.executable, "-s", HERE / "worker.py"], env=environment, input=lines, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    generated = [answer for answer in answers if answer["type"] == "generated"]
    if not generated:
        sys.exit(f"error: the worker answered {answers[-1:]}\n{done.stderr[-2000:]}")
    times = generated[0]["iterations"][0]["sequences"][0]["token_ns"]
    return statistics.median((after - before) / 1e6 for before, after in zip(times[SKIPPED - 1 :], times[SKIPPED:]))


if __name__ == "__main__":
    main()
