"""Compares the times of an engine with its library's own counters, or with another program. A script in the engine's folder does
the comparison; no worker gets this module. Import it before `engine_kit`, which moves stdout.

Two rules decide. Counters of the very same requests must be within MAX_DIFFERENCE. For another program, the interval of the ratio
must touch 1 ± MAX_DIFFERENCE, and must be narrow enough to show such a difference.
"""

import argparse
import math
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

from checkout import EMBEDDED, EngineProcess, require_program

MAX_DIFFERENCE = 0.03

# The two-sided 95 % quantiles of Student's t, by degrees of freedom from 1 to 30; the last one is for more than 30.
T_QUANTILES = [
    12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
    2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042, 2.042,
]

# The names of the compared times.
TTFT, LATER = "TTFT", "later tokens"

# The results are written here, also after `engine_kit` has moved stdout.
OUTPUT = os.fdopen(os.dup(1), "w", buffering=1)


class Interval(NamedTuple):
    """The geometric mean of paired ratios, and its 95 % interval."""

    ratio: float
    low: float
    high: float

    def __str__(self):
        return f"{self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}]"


def paired_interval(ratios):
    """The interval of the rounds' ratios by Student's t on their logarithms, as in the orchestrator's own comparisons."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    half_width = T_QUANTILES[min(len(logs) - 1, len(T_QUANTILES)) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(*(math.exp(mean + part * half_width) for part in (0, -1, 1)))


def find_paired_fault(name, ratios, max_difference=MAX_DIFFERENCE):
    """The reason why the ratios of two programs' times do not show that they agree; None if they do."""
    interval = paired_interval(ratios)
    if interval.low > 1 + max_difference or interval.high < 1 - max_difference:
        return f"{name}: the two differ by more than {max_difference:.0%}: the ratio is {interval}"
    if not interval.high / interval.ratio <= 1 + max_difference:
        # The width falls with the square root of the rounds.
        deviation = statistics.stdev(map(math.log, ratios))
        rounds = math.ceil((T_QUANTILES[-1] * deviation / math.log(1 + max_difference)) ** 2)
        rounds = max(rounds, len(ratios) + 1)
        bounds = f"the interval [{interval.low:.3f}, {interval.high:.3f}] is wider than ±{max_difference:.0%}"
        return f"{name}: inconclusive: {bounds}; repeat with --rounds {rounds} on a quiet machine"
    return None


def find_counter_fault(name, pairs, resolution_ms=0.0):
    """The reason why the engine's times and the counters of the same requests do not agree; None if they do. `resolution_ms` is
    the smallest difference that the counters can show."""
    ratio = statistics.median(own / counter if counter else math.inf for own, counter in pairs)
    difference_ms = abs(statistics.median(own - counter for own, counter in pairs))
    # Not a number is not within the bound either.
    if abs(ratio - 1) <= MAX_DIFFERENCE or difference_ms <= resolution_ms:
        return None
    return f"{name}: the engine's time is {ratio:.3f} times the library's counter, and {MAX_DIFFERENCE:.0%} are allowed"


def exit_with(faults):
    """Ends the script: with 1 and the faults, if there are any."""
    for fault in filter(None, faults):
        print(f"error: {fault}", file=sys.stderr)
    sys.exit(1 if any(faults) else 0)


def parser(description, rounds, prompt_tokens=None, threads=None, model=EMBEDDED):
    """The options that all comparisons have, with their defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=model)
    parser.add_argument("--rounds", type=_rounds, default=rounds, help="an interval needs at least 2")
    parser.add_argument("--threads", type=int, default=threads or len(os.sched_getaffinity(0)))
    parser.add_argument("--new-tokens", type=int, default=64)
    if prompt_tokens is not None:
        parser.add_argument("--prompt-tokens", type=int, default=prompt_tokens)
    return parser


def _rounds(text):
    if (rounds := int(text)) < 2:
        raise ValueError(text)
    return rounds


def random_prompt(vocabulary_size, length, number):
    """The prompt of a round: every round has another."""
    return random.Random(number).choices(range(vocabulary_size), k=length)


def times_of(sequence, start_ns):
    """The compared times of a sequence of the answer, in milliseconds."""
    first, last = sequence["token_ns"][0], sequence["token_ns"][-1]
    return {TTFT: (first - start_ns) / 1e6, LATER: (last - first) / 1e6}


class LoadedEngine:
    """An engine's program with a loaded model."""

    def __init__(self, program, **load):
        self._process = EngineProcess([program])
        self.facts = self._process.request(type="load", **load)

    def measure(self, prompt, new_tokens):
        """The times, and the new ids."""
        iteration = self._process.generate(prompt, new_tokens)
        (sequence,) = iteration["sequences"]
        return times_of(sequence, iteration["start_ns"]), sequence["output_ids"]


def measure_model(model, prompt, new_tokens):
    """The times of one request to a model that is loaded in this process."""
    from engine_kit import Job, Tokens

    job, start_ns = Job([prompt], new_tokens, ignore_eos=True), time.perf_counter_ns()
    tokens = Tokens(job, (), 0, start_ns)
    model.generate(job, tokens)
    (sequence,) = tokens.iteration()["sequences"]
    return times_of(sequence, start_ns)


def compare_programs(rounds, engine, other, other_name):
    """Measures the engine and another program in turns, and ends the script. Both functions get the number of the round, and return
    the times and the new ids (None: unknown). The round 0 warms both up."""
    pairs = []
    for number in range(rounds + 1):
        # The order changes, so that a drift of the machine, or the processor's caches, favour neither.
        sides = {side: (engine, other)[side](number) for side in ((0, 1) if number % 2 else (1, 0))}
        (times, ids), (other_times, other_ids) = sides[0], sides[1]
        if None not in (ids, other_ids) and ids != other_ids:
            sys.exit(f"error: round {number}: the engine and {other_name} generated different tokens")
        if number:
            pairs.append((times, other_times))
    exit_with([_report_programs(name, pairs, other_name) for name in pairs[0][0]])


def compare_with_library(description, program, make_library, reserved_ids=0):
    """Compares an engine's program with plain calls of its library, on the same converted model in f32. `make_library` gets the facts
    of the engine's load, and returns an object with `measure(prompt, new_tokens)`. Prompts do not have the last `reserved_ids` ids
    of the vocabulary."""
    # One thread: the waiting threads of one side would disturb the other side.
    options = parser(description, rounds=30, prompt_tokens=128, threads=1).parse_args()
    engine = LoadedEngine(require_program(program), model=str(options.model.resolve()), dtype="f32", threads=options.threads)
    size = engine.facts["vocabulary_size"] - reserved_ids

    def measure(side):
        return lambda round: side.measure(random_prompt(size, options.prompt_tokens, round), options.new_tokens)

    compare_programs(options.rounds, measure(engine), measure(make_library(engine.facts)), "library")


def _report_programs(name, pairs, other_name):
    own, other = ([pair[side][name] for pair in pairs] for side in (0, 1))
    ratios = [a / b for a, b in zip(own, other, strict=True)]
    medians = f"engine {statistics.median(own):.3f} ms, {other_name} {statistics.median(other):.3f} ms"
    print(f"{name}: {medians}; ratio {paired_interval(ratios)} in {len(ratios)} rounds", file=OUTPUT)
    return find_paired_fault(name, ratios)


def compare_counters(rounds, measure, library_name, resolution_ms=0.0):
    """Compares the engine's times with the library's counters of the same requests, and ends the script. `measure` gets the number
    of the request, and returns the times and the counters. The request 0 warms up."""
    pairs = [measure(number) for number in range(rounds + 1)][1:]
    faults = []
    for name in pairs[0][0]:
        columns = [(times[name], counters[name]) for times, counters in pairs]
        own, counter = (statistics.median(column) for column in zip(*columns))
        print(f"{name}: engine {own:.3f} ms, {library_name} {counter:.3f} ms, in {len(columns)} requests", file=OUTPUT)
        faults.append(find_counter_fault(name, columns, resolution_ms))
    exit_with(faults)
