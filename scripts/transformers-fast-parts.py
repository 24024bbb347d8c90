"""Measures the effect of each part of the engine's path `fast`: decode steps of one model in several variants, in turns.

    scripts/python-of transformers scripts/transformers-fast-parts.py MODEL [--threads 2] [--rounds 9] [--variants fast,linear]

Every variant has a separate process; while one runs, the others wait for a line. A round runs each variant once, in rotating
order. The result is the median over rounds of a variant's time divided by the first variant's in the same round.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

ENGINES = Path(__file__).resolve().parent.parent / "engines"
sys.path[:0] = [str(ENGINES / "transformers"), str(ENGINES / "kit" / "python")]

VARIANTS = {
    "fast": "unchanged",
    "eager": "the same step, not compiled",
    "linear": "compiled, products as `linear`, the compiler's default",
    "packed": "compiled, products as `linear` over weights that the compiler packs for oneDNN (freezing)",
    "one-panel": "compiled, products as sums over one row of a matrix at a time",
    "int8": "compiled, matrices in int8 (`--set quantize=int8`)",
    "int8-dynamic": "preset `int8-dynamic`, in f32",
    "int4": "preset `int4`",
    "loop": "path `loop`: Hugging Face's classes, growing cache",
    "compile": "path `compile`: Hugging Face's classes, static cache, compiled step",
}


def main():
    options = arguments()
    if options.variant:
        return serve(options)
    variants = options.variants.split(",")
    children = {variant: start(variant, options) for variant in variants}
    for variant, child in children.items():
        print(f"{variant}: loaded in {answer(variant, child)['load_s']:.1f} s", file=sys.stderr)
    times = {variant: [] for variant in variants}
    for round in range(options.rounds + 1):
        for variant in variants[round % len(variants) :] + variants[: round % len(variants)]:
            children[variant].stdin.write(f"{options.tokens}\n")
            children[variant].stdin.flush()
            times[variant].append(answer(variant, children[variant])["ms"])
    print_results(times, options)
    for child in children.values():
        child.stdin.close()
        child.wait()


def print_results(times, options):
    first = next(iter(times))
    print(f"{options.model}, {options.dtype}, {options.threads} threads, prompt of {options.prompt}, {options.tokens} tokens a round")
    print("| variant | ms a token, median of rounds | least | least CPU time, ms a token | time / first variant | description |")
    print("|---|---|---|---|---|---|")
    for variant, results in times.items():
        # The first round is a warm-up.
        (wall, cpu), (first_wall, _) = (zip(*rounds[1:]) for rounds in (results, times[first]))
        ratio = statistics.median(variant_ms / first_ms for variant_ms, first_ms in zip(wall, first_wall))
        values = f"{statistics.median(wall):.2f} | {min(wall):.2f} | {min(cpu):.2f} | {ratio:.3f}"
        print(f"| {variant} | {values} | {VARIANTS[variant]} |")


def start(variant, options):
    shared = ["--threads", str(options.threads), "--dtype", options.dtype, "--prompt", str(options.prompt)]
    command = [sys.executable, __file__, options.model, "--variant", variant, *shared]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(variant, child):
    line = child.stdout.readline()
    if not line:
        raise SystemExit(f"error: variant `{variant}` ended without an answer")
    return json.loads(line)


def serve(options):
    from engine_kit import PROTOCOL_OUT
    from environment import prepare_environment

    prepare_environment(options.threads)
    import os

    import torch

    out = os.fdopen(PROTOCOL_OUT, "w")
    began = time.perf_counter()
    with torch.no_grad():
        generate = load_variant(options)
        print(json.dumps({"load_s": time.perf_counter() - began}), file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps({"ms": generate([7] * options.prompt, int(line))}), file=out, flush=True)


def load_variant(options):
    """Loads the model and returns a function of a prompt and a number of tokens. The function returns milliseconds a token
    after the first: wall time, and CPU time of all threads (including busy waiting)."""
    import torch

    import fast
    import fast_network
    import worker
    from engine_kit import Job, Phases, Tokens

    if options.variant in ("linear", "packed"):
        fast_network.product = torch.nn.functional.linear
    if options.variant == "packed":
        fast.CompiledStep.COMPILE_OPTIONS = {**fast.CompiledStep.COMPILE_OPTIONS, "freezing": True}
    if options.variant == "one-panel":
        fast_network.PANELS = 1
    if options.variant == "eager":
        fast.CompiledStep._compile = lambda self, step: step
    load_options = {"path": options.variant if options.variant in ("loop", "compile") else "fast"}
    if options.variant in ("int8", "int8-dynamic", "int4"):
        load_options = {"path": "fast" if options.variant == "int8" else "generate", "quantize": options.variant}
    dtype = "f32" if options.variant == "int8-dynamic" else options.dtype
    request = dict(model=options.model, device="cpu", threads=options.threads, context_tokens=None, dtype=dtype)
    model = worker.Transformers().load(SimpleNamespace(**request, options=load_options), Phases())

    def generate(prompt, new_tokens):
        job, cpu_ns = Job([prompt], new_tokens + 1, ignore_eos=True), []
        tokens = Tokens(job, [], 0, 0, check_cancel=lambda: cpu_ns.append(time.process_time_ns()))  # at each token
        model.generate(job, tokens)
        wall = tokens.iteration()["sequences"][0]["token_ns"]
        return [(ns[-1] - ns[0]) / 1e6 / new_tokens for ns in (wall, cpu_ns)]

    return generate


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="separated by commas: " + ", ".join(VARIANTS))
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    return parser.parse_args()


if __name__ == "__main__":
    main()
