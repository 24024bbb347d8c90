"""Compares the engine with tinygrad's own benchmark, `python -m tinygrad.llm --benchmark`, in turns: the time of a decoded token.

    cargo build --release
    scripts/python-of tinygrad engines/tinygrad/compare_with_benchmark.py [MODEL.gguf] [--rounds N]

Both compute the same tokens after the same prompt (BOS) with the same clang, threads, kernels and context, each in a process of
its own for each round. Prints both medians, and the ratio with its interval of 95 %. Exits with 1 if they do not agree, or if the
interval is too wide to show it (the kit's `comparison.py`). tinygrad's program needs a tokenizer that it knows, and the embedded
model has another one. So the default is the model `tiny-llama` of `orchestrate model synth`.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ENGINE = Path(__file__).resolve().parent
sys.path[:0] = [str(ENGINE), str(ENGINE.parent / "kit" / "python")]
import comparison

import compiler
from checkout import EngineProcess, require_program, worker_command
from gguf_file import GgufFile

# The tokens at the start that one of the two may compile.
SKIPPED = 4
CONTEXT = 1024
SHAPE = "tiny-llama"
TOKEN = "token"


def main():
    options = comparison.parser(__doc__, rounds=10, model=None).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options.model = options.model.resolve() if options.model else synthesise(Path(folder) / f"{SHAPE}.gguf")
        variables, bos = prepare(options)
        engine, tool = (
            lambda round, measure=measure: ({TOKEN: measure(options, variables, bos)}, None) for measure in (engine_ms, tool_ms)
        )
        comparison.compare_programs(options.rounds, engine, tool, "tinygrad.llm")


def synthesise(path):
    """Writes the default model, and returns its path."""
    command = [require_program("orchestrate"), "model", "synth", SHAPE, "--format", "gguf", "--out", path, "-q"]
    subprocess.run(command, check=True)
    return path


def prepare(options):
    """The variables with which tinygrad's program has the engine's clang and its compiled kernels, and the BOS id."""
    gguf = GgufFile(options.model)
    compiler.SETTINGS.configure(options.threads, 0, gguf.main_dtype() != "f32")
    from tinygrad import helpers

    # The worker sets these itself.
    settings = {name: os.environ[name] for name in ("CC", "DEV", "HALF")}
    settings |= {"CPU_COUNT": str(options.threads), "CACHEDB": helpers.CACHEDB}
    return settings, gguf.metadata.get("tokenizer.ggml.bos_token_id", 0)


def tool_ms(options, variables, bos):
    """The median time of a token by tinygrad's program, whose warm-up compiles."""
    command = [sys.executable, "-m", "tinygrad.llm", "--model", str(options.model), "--max_context", str(CONTEXT)]
    command += ["--warmup", "--benchmark", str(options.new_tokens)]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, errors="replace")
    times = [float(time) for time in re.findall(r"^\s*([0-9.]+) ms, +[0-9.]+ tok/s", done.stdout, re.M)]
    if done.returncode != 0 or len(times) != options.new_tokens:
        output = f"{done.stdout[-400:]}{done.stderr[-2000:]}"
        sys.exit(f"error: tinygrad's program showed {len(times)} times of {options.new_tokens}\n{output}")
    return statistics.median(times[SKIPPED:])


def engine_ms(options, variables, bos):
    """The median time between two tokens of the engine's worker, as its answer states them."""
    command, environment = worker_command("tinygrad")
    engine = EngineProcess(command, {**environment, **variables})
    engine.request(type="load", model=str(options.model), threads=options.threads, context_tokens=CONTEXT)
    times = engine.generate([bos], options.new_tokens)["sequences"][0]["token_ns"]
    engine.end()
    return statistics.median((after - before) / 1e6 for before, after in zip(times[SKIPPED - 1 :], times[SKIPPED:]))


if __name__ == "__main__":
    main()
