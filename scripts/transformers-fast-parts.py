"""What each part of path `fast` is worth: decode steps of one model in several forms, in turns.

    scripts/python-of transformers scripts/transformers-fast-parts.py MODEL [--threads 2] [--rounds 9] [--forms fast,linear]

Every form is a process of its own, and while one works the others wait for a line. A round runs each form once, in an order
that turns; what is said is the median over rounds of a form's time against the first form's in the same round.
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

FORMS = {
    "fast": "as it is",
    "eager": "the same step, not compiled",
    "linear": "compiled, products as `linear`, which is what the compiler makes of them by default",
    "packed": "compiled, products as `linear` over weights that the compiler froze and packed for oneDNN",
    "one-panel": "compiled, products as sums over one row of a matrix at a time",
    "int8": "compiled, matrices in int8 (`--set quantize=int8`)",
    "int8-dynamic": "preset `int8-dynamic`, in its own dtype",
    "int4": "preset `int4`",
    "loop": "path `loop`: Hugging Face's classes, growing cache",
    "compile": "path `compile`: Hugging Face's classes, static cache, compiled step",
}


def main():
    asked = arguments()
    if asked.form:
        return serve(asked)
    forms = asked.forms.split(",")
    children = {form: start(form, asked) for form in forms}
    for form, child in children.items():
        print(f"{form}: loaded in {answer(form, child)['load_s']:.1f} s", file=sys.stderr)
    times = {form: [] for form in forms}
    for number in range(asked.rounds + 1):
        for form in forms[number % len(forms) :] + forms[: number % len(forms)]:
            children[form].stdin.write(f"{asked.tokens}\n")
            children[form].stdin.flush()
            times[form].append(answer(form, children[form])["ms"])
    report(times, asked)
    for child in children.values():
        child.stdin.close()
        child.wait()


def report(times, asked):
    first = next(iter(times))
    print(f"{asked.model}, {asked.dtype}, {asked.threads} threads, prompt of {asked.prompt}, {asked.tokens} tokens a round")
    print("| form | ms a token, median of rounds | least | of processor time | time against the first | what it is |")
    print("|---|---|---|---|---|---|")
    for form, found in times.items():
        # The first round warms up.
        (wall, busy), (base, _) = (zip(*of[1:]) for of in (found, times[first]))
        ratio = statistics.median(one / other for one, other in zip(wall, base))
        figures = f"{statistics.median(wall):.2f} | {min(wall):.2f} | {min(busy):.2f} | {ratio:.3f}"
        print(f"| {form} | {figures} | {FORMS[form]} |")


def start(form, asked):
    shared = ["--threads", str(asked.threads), "--dtype", asked.dtype, "--prompt", str(asked.prompt)]
    command = [sys.executable, __file__, asked.model, "--form", form, *shared]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(form, child):
    line = child.stdout.readline()
    if not line:
        raise SystemExit(f"error: form `{form}` ended without an answer")
    return json.loads(line)


def serve(asked):
    from engine_kit import PROTOCOL_OUT
    from environment import prepare_environment

    prepare_environment(asked.threads)
    import os

    import torch

    out = os.fdopen(PROTOCOL_OUT, "w")
    began = time.perf_counter()
    with torch.no_grad():
        generate = make(asked)
        print(json.dumps({"load_s": time.perf_counter() - began}), file=out, flush=True)
        for line in sys.stdin:
            print(json.dumps({"ms": generate([7] * asked.prompt, int(line))}), file=out, flush=True)


def make(asked):
    """A function of a prompt and a number of tokens that gives two sums of milliseconds a token, without prefill and first
    token: those that passed, and those that a processor was busy with it (of all threads, idle turns among them)."""
    import torch

    import compact
    import compact_product
    import fast_step
    import worker
    from engine_kit import Job, Phases, Tokens

    if asked.form in ("linear", "packed"):
        compact.product = torch.nn.functional.linear
    if asked.form == "packed":
        fast_step.Steps.OPTIONS = {**fast_step.Steps.OPTIONS, "freezing": True}
    if asked.form == "one-panel":
        compact_product.PANELS = 1
    if asked.form == "eager":
        fast_step.Steps._compiled = lambda self, step: step
    options = {"path": asked.form if asked.form in ("loop", "compile") else "fast"}
    if asked.form in ("int8", "int8-dynamic", "int4"):
        options = {"path": "fast" if asked.form == "int8" else "generate", "quantize": asked.form}
    dtype = "f32" if asked.form == "int8-dynamic" else asked.dtype
    request = dict(model=asked.model, device="cpu", threads=asked.threads, context_tokens=None, dtype=dtype)
    model = worker.Transformers().load(SimpleNamespace(**request, options=options), Phases())

    def generate(prompt, new_tokens):
        job, busy = Job([prompt], new_tokens + 1, ignore_eos=True), []
        tokens = Tokens(job, [], 0, 0, check_cancel=lambda: busy.append(time.process_time_ns()))
        model.generate(job, tokens)
        wall = tokens.iteration()["sequences"][0]["token_ns"]
        return [(of[-1] - of[0]) / 1e6 / new_tokens for of in (wall, busy)]

    return generate


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--forms", default=",".join(FORMS), help="of " + ", ".join(FORMS))
    parser.add_argument("--form", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    return parser.parse_args()


if __name__ == "__main__":
    main()
