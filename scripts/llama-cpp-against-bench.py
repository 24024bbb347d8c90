"""The engine `llama-cpp` beside llama-bench: see the script of this name."""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENGINE, KIT = ROOT / "engines/llama-cpp", ROOT / "engines/kit/python"
sys.path.insert(0, str(ENGINE))

from processors import cores_first

# What makes GGUF files: the engine's program.
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release" / "llama-cpp-engine"
# Another one, where somebody has it already; it must run on the same library.
BENCH = os.environ.get("LLAMA_BENCH") or ROOT / "scripts/llama-cpp/llama-bench"

DTYPES = "bf16,q8_0,q4_0,q4_k"
# What the engine's rate may be, divided by llama-bench's, either way.
WITHIN = 0.03


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtypes", type=lambda words: words.split(","))
    parser.add_argument("--pin", action="store_true")
    for name, default in (("threads", 2), ("prompt", 512), ("tokens", 128), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=positive, default=default)
    asked = parser.parse_args()
    # Compiled, or told of, before anything else takes time.
    done = subprocess.run([str(BENCH), "--help"], stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(f"error: `{BENCH}` does not run")
    pinned = ", pinned" if asked.pin else ""
    print(f"{asked.model.name}, {asked.threads} threads{pinned}, {asked.rounds} rounds in turn")
    print("tokens per second (medians), and the engine's divided by llama-bench's, round by round\n")
    print(f"{'':<8}{'':<8}{'llama-bench':>12}{'engine':>10}{'ratio':>9}   {'lowest':>7}{'highest':>9}", flush=True)
    apart = [name for dtype in dtypes_of(asked) for name in compare(dtype, file_of(asked.model, dtype), asked)]
    if apart:
        print(f"error: apart by more than {WITHIN:.0%}: {', '.join(apart)}", file=sys.stderr)
    return 1 if apart else 0


def positive(word):
    number = int(word)
    if number < 1:
        raise ValueError(word)
    return number


def dtypes_of(asked):
    """None is the file as it is."""
    if asked.dtypes is None and asked.model.suffix.lower() == ".gguf":
        return [None]
    return asked.dtypes or DTYPES.split(",")


def file_of(model, dtype):
    if dtype is None:
        return model
    if not PROGRAM.is_file():
        raise SystemExit(f"error: no `{PROGRAM}`\nhint: cargo run --release -- setup llama-cpp")
    print(f"the model in {dtype} ...", file=sys.stderr)
    done = subprocess.run([str(PROGRAM), "convert", str(model), dtype], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    return Path(done.stdout.splitlines()[-1])


def compare(dtype, file, asked) -> list[str]:
    """The figures that are further apart than they may be."""
    engine = Engine(file, asked)
    rates = {name: ([], []) for name in (f"pp{asked.prompt}", f"tg{asked.tokens}")}
    sides = [lambda: bench(file, asked), engine.measure]
    for round in range(asked.rounds):
        # Who comes first changes, so that a machine that grows slower favours nobody.
        for side in (0, 1) if round % 2 == 0 else (1, 0):
            measured = sides[side]()
            for name, rate in measured.items():
                rates[name][side].append(rate)
            said = "  ".join(f"{name} {rate:.2f}" for name, rate in measured.items())
            print(f"{dtype or file.name}, round {round + 1}, {('llama-bench', 'engine')[side]}: {said}", file=sys.stderr)
    engine.end()
    apart = []
    for name, (theirs, ours) in rates.items():
        ratios = [own / other for other, own in zip(theirs, ours, strict=True)]
        ratio, lowest, highest = statistics.median(ratios), min(ratios), max(ratios)
        medians = f"{statistics.median(theirs):>12.2f}{statistics.median(ours):>10.2f}"
        print(f"{dtype or '':<8}{name:<8}{medians}{ratio:>9.3f}   {lowest:>7.3f}{highest:>9.3f}", flush=True)
        if not 1 - WITHIN <= ratio <= 1 / (1 - WITHIN):
            apart.append(f"{dtype or file.name} {name}")
    return apart


def bench(file, asked):
    command = [BENCH, "-m", file, "-t", asked.threads, "-p", asked.prompt, "-n", asked.tokens, "-r", 1, "-o", "jsonl"]
    if asked.pin:
        mask = sum(1 << processor for processor in cores_first()[: asked.threads])
        command += ["--cpu-mask", hex(mask), "--cpu-strict", 1]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"error: llama-bench ended with {done.returncode}\n{done.stderr.strip()[-2000:]}")
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {f"pp{it['n_prompt']}" if it["n_prompt"] else f"tg{it['n_gen']}": it["avg_ts"] for it in told}


class Engine:
    """The worker itself, over its protocol, on one load; warmed up as llama-bench warms itself up."""

    def __init__(self, file, asked):
        self.asked = asked
        command = [sys.executable, "-s", str(ENGINE / "worker.py")]
        environment = {**os.environ, "PYTHONPATH": str(KIT)}
        pipe = subprocess.PIPE
        self.worker = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
        load = {"type": "load", "model": str(file.resolve()), "threads": asked.threads, "options": {"pin": asked.pin}}
        told = self.ask(load)
        random.seed(1)
        self.ids = [random.randrange(told["vocabulary_size"]) for _ in range(asked.prompt)]
        self.measure(tokens=8)

    def ask(self, request):
        self.worker.stdin.write(json.dumps(request) + "\n")
        self.worker.stdin.flush()
        while line := self.worker.stdout.readline():
            told = json.loads(line)
            if told["type"] == "failed":
                raise SystemExit(f"error: the engine: {told['message']}")
            if told["type"] != "progress":
                return told
        raise SystemExit(f"error: the engine ended with {self.worker.wait()}")

    def measure(self, tokens=None):
        tokens = tokens or self.asked.tokens
        prefill = self.generate(self.ids, 1)
        # The first of them comes with the prompt of one; as many follow as llama-bench decodes.
        decode = self.generate(self.ids[:1], tokens + 1)["token_ns"]
        return {
            f"pp{self.asked.prompt}": self.asked.prompt * 1e9 / (prefill["token_ns"][0] - prefill["start_ns"]),
            f"tg{tokens}": tokens * 1e9 / (decode[-1] - decode[0]),
        }

    def generate(self, ids, tokens):
        request = {"type": "generate", "prompt_ids": ids, "max_new_tokens": tokens, "ignore_eos": True}
        (iteration,) = self.ask(request)["iterations"]
        return {"start_ns": iteration["start_ns"], "token_ns": iteration["sequences"][0]["token_ns"]}

    def end(self):
        self.worker.stdin.close()
        self.worker.wait()


if __name__ == "__main__":
    sys.exit(main())
