"""Compares the engine `llama-cpp` with llama-bench; scripts/llama-cpp-against-bench lists the options."""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engines/kit/python"))
from checkout import KIT, RELEASE, ROOT, EngineProcess
from comparison import exit_with, find_paired_fault, paired_interval

TIMED_WORKER = ROOT / "scripts/llama-cpp/timed-worker.py"

# The engine's program, which converts models to GGUF.
PROGRAM = RELEASE / "llama-cpp-engine"
# A llama-bench that LLAMA_BENCH names must use the engine's library.
BENCH = os.environ.get("LLAMA_BENCH") or ROOT / "scripts/llama-cpp/llama-bench"

DTYPES = "bf16,q8_0,q4_0,q4_k"

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtypes", type=lambda names: names.split(","))
    parser.add_argument("--pin", action="store_true")
    for name, default in (("threads", 2), ("prompt", 512), ("tokens", 128), ("rounds", 10)):
        parser.add_argument(f"--{name}", type=positive, default=default)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: an interval needs 2 rounds or more")
    # The first call compiles llama-bench, so that a failure ends the script before any measurement.
    process = subprocess.run([str(BENCH), "--help"], stdout=subprocess.DEVNULL)
    if process.returncode != 0:
        raise SystemExit(f"error: `{BENCH} --help` ended with status {process.returncode}")
    pin_note = ", pinned" if options.pin else ""
    print(f"{options.model.name}, {options.threads} threads{pin_note}, {options.rounds} rounds")
    print(f"pp{options.prompt}: a prompt of {options.prompt} tokens; tg{options.tokens}: {options.tokens} decoded tokens")
    print("medians of tokens per second; the ratio is the engine's rate divided by llama-bench's: the geometric mean of the")
    print("rounds' ratios, and its 95 % interval\n")
    print(f"{'':<8}{'':<8}{'llama-bench':>12}{'engine':>10}{'ratio':>8}   {'interval':<16}{'width':>8}", flush=True)
    exit_with([fault for dtype in requested_dtypes(options) for fault in compare(dtype, gguf_file(options.model, dtype), options)])


def positive(text):
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def requested_dtypes(options):
    """The dtypes to compare; None means the file's own."""
    if options.dtypes is None and options.model.suffix.lower() == ".gguf":
        return [None]
    return options.dtypes or DTYPES.split(",")


def gguf_file(model, dtype):
    if dtype is None:
        return model
    if not PROGRAM.is_file():
        raise SystemExit(f"error: no `{PROGRAM}`\nhint: cargo run --release -- setup llama-cpp")
    print(f"converting the model to {dtype} ...", file=sys.stderr)
    process = subprocess.run([str(PROGRAM), "convert", str(model), dtype], stdout=subprocess.PIPE, text=True)
    if process.returncode != 0:
        raise SystemExit(process.returncode)
    return Path(process.stdout.splitlines()[-1])


def compare(dtype, file, options):
    """Measures both programs in turn. Returns the fault of each rate, or None."""
    engine = Engine(file, options)
    measure = {"llama-bench": lambda: measure_bench(file, options, engine), "engine": engine.measure}
    # The names of rates are llama-bench's: `pp512` for a prompt of 512 tokens, `tg128` for 128 decoded tokens.
    rates = {name: {program: [] for program in measure} for name in (f"pp{options.prompt}", f"tg{options.tokens}")}
    for round in range(options.rounds):
        # The order alternates, so that a machine that slows down favours neither program.
        for program in measure if round % 2 == 0 else reversed(measure):
            round_rates = measure[program]()
            for name, rate in round_rates.items():
                rates[name][program].append(rate)
            text = "  ".join(f"{name} {rate:.2f}" for name, rate in round_rates.items())
            print(f"{dtype or file.name}, round {round + 1}, {program}: {text}", file=sys.stderr)
    between_ns, token_ns = engine.end()
    faults = []
    for name, by_program in rates.items():
        bench_rates, engine_rates = by_program["llama-bench"], by_program["engine"]
        ratios = [engine_rate / bench_rate for bench_rate, engine_rate in zip(bench_rates, engine_rates, strict=True)]
        ratio, low, high = paired_interval(ratios)
        medians = f"{statistics.median(bench_rates):>12.2f}{statistics.median(engine_rates):>10.2f}"
        interval = f"[{low:.3f}, {high:.3f}]"
        print(f"{dtype or '':<8}{name:<8}{medians}{ratio:>8.3f}   {interval:<16}{100 * (high - low) / ratio:>6.1f} %", flush=True)
        faults.append(find_paired_fault(f"{dtype or file.name} {name}", ratios))
    print(f"{'':<16}between tokens, outside of llama.cpp: {between_ns / 1e3:.0f} of {token_ns / 1e3:,.0f} µs for each token", flush=True)
    return faults


def measure_bench(file, options, engine):
    command = [BENCH, "-m", file, "-t", options.threads, "-p", options.prompt, "-n", options.tokens, "-r", 1, "-o", "jsonl"]
    if options.pin:
        mask = sum(1 << processor for processor in engine.pinned_processors())
        command += ["--cpu-mask", hex(mask), "--cpu-strict", 1]
    process = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if process.returncode != 0:
        raise SystemExit(f"error: llama-bench ended with {process.returncode}\n{process.stderr.strip()[-2000:]}")
    results = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    names = [f"pp{result['n_prompt']}" if result["n_prompt"] else f"tg{result['n_gen']}" for result in results]
    return dict(zip(names, (result["avg_ts"] for result in results)))


class Engine:
    """The worker process of the engine. It has loaded the file once, and is warmed up as llama-bench is."""

    def __init__(self, file, options):
        self.options = options
        self.folder = tempfile.TemporaryDirectory()
        self.calls = Path(self.folder.name) / "calls.json"
        self.decode_ns, self.lengths = 0, []
        command = [sys.executable, "-s", TIMED_WORKER, self.calls]
        self.worker = EngineProcess(command, {**os.environ, "PYTHONPATH": str(KIT)})
        load = {"model": str(file.resolve()), "threads": options.threads, "options": {"pin": options.pin}}
        vocabulary_size = self.worker.request(type="load", **load)["vocabulary_size"]
        random.seed(1)
        self.ids = [random.randrange(vocabulary_size) for _ in range(options.prompt)]
        self.measure(tokens=8)

    def pinned_processors(self):
        """The processors of the worker's pinned threads. The kit's threads are not pinned."""
        affinities = [os.sched_getaffinity(int(thread)) for thread in os.listdir(f"/proc/{self.worker.process.pid}/task")]
        return set().union(*(affinity for affinity in affinities if len(affinity) == 1))

    def measure(self, tokens=None):
        tokens = tokens or self.options.tokens
        prefill = self.generate(self.ids, 1)
        # The first token comes from the prompt, so it is not counted. llama-bench also counts `tokens` decoded tokens.
        decode = self.generate(self.ids[:1], tokens + 1)["token_ns"]
        self.decode_ns += decode[-1] - decode[0]
        self.lengths.append(tokens)
        return {
            f"pp{self.options.prompt}": self.options.prompt * 1e9 / (prefill["token_ns"][0] - prefill["start_ns"]),
            f"tg{tokens}": tokens * 1e9 / (decode[-1] - decode[0]),
        }

    def generate(self, ids, tokens):
        iteration = self.worker.generate(ids, tokens)
        return {"start_ns": iteration["start_ns"], "token_ns": iteration["sequences"][0]["token_ns"]}

    def end(self):
        """Ends the worker. Returns the time outside of llama.cpp and the whole time, in nanoseconds for each decoded token."""
        self.worker.end()
        # Each decode begins with a call for its prompt of one token, which comes before the first token.
        single = [ns for count, ns in json.loads(self.calls.read_text()) if count == 1]
        within_ns, position = 0, 0
        for tokens in self.lengths:
            within_ns += sum(single[position + 1 : position + 1 + tokens])
            position += tokens + 1
        self.folder.cleanup()
        decoded = sum(self.lengths)
        return (self.decode_ns - within_ns) / decoded, self.decode_ns / decoded


if __name__ == "__main__":
    main()
