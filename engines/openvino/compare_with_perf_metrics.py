"""Compares the times of this engine with OpenVINO GenAI's own counters (`perf_metrics`) of the very same requests.

    cargo build --release -p openvino-engine
    scripts/python-of openvino engines/openvino/compare_with_perf_metrics.py [MODEL] [--dtype f32]

Generates with the worker's own code. Prints the medians of the kit's timestamps and of the library's counters, and exits with 1 if
they differ by more than 3 % (the kit's `comparison.py`).
"""

import sys
from pathlib import Path

ENGINE = Path(__file__).resolve().parent
sys.path[:0] = [str(ENGINE), str(ENGINE.parent / "kit" / "python")]
import comparison

from checkout import use_program
from comparison import LATER, TTFT
from engine_tests import load
from worker import DEFAULT_DTYPE, DTYPES, OpenVINO


def main():
    parser = comparison.parser(__doc__, rounds=10, prompt_tokens=512)
    parser.add_argument("--dtype", choices=DTYPES, default=DEFAULT_DTYPE)
    options = parser.parse_args()
    use_program("openvino-engine")
    model = load(OpenVINO(), options.model, dtype=options.dtype, threads=options.threads)
    size = model.facts()["vocabulary_size"]

    def measure(round):
        prompt = comparison.random_prompt(size, options.prompt_tokens, round)
        times = comparison.measure_model(model, prompt, options.new_tokens)
        (metrics,) = model.perf_metrics()
        return times, {TTFT: metrics.get_ttft().mean, LATER: metrics.get_tpot().mean * (options.new_tokens - 1)}

    comparison.compare_counters(options.rounds, measure, "perf_metrics")


if __name__ == "__main__":
    main()
