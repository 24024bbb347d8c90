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
# Another one, where somebody has it already; it must run on the same library.
BENCH = os.environ.get("LLAMA_BENCH") or ROOT / "scripts/llama-cpp/llama-bench"

# What llama-bench's time may be, divided by the engine's, either way.
WITHIN = 0.03


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    for name, default in (("threads", 2), ("prompt", 512), ("tokens", 128), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    apart = 0
    for file in asked.files:
        apart += compare(file, asked)
    if apart:
        print(f"error: {apart} of {2 * len(asked.files)} differ by more than {WITHIN:.0%}", file=sys.stderr)
    return 1 if apart else 0


def compare(file, asked) -> int:
    """How many of the two figures are further apart than they may be."""
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
            print(f"round {round + 1}: {('llama-bench', 'engine')[side]}: {said}", file=sys.stderr)
    engine.end()
    print(f"{file.name}, {asked.threads} threads, {asked.rounds} rounds, tokens per second (median, every round)")
    print(f"  {'':<8}{'llama-bench':>12}{'engine':>10}{'ratio':>8}")
    apart = 0
    for name, (theirs, ours) in rates.items():
        ratio = statistics.median(ours) / statistics.median(theirs)
        every = "  ".join(f"{one:.2f}/{other:.2f}" for one, other in zip(theirs, ours))
        print(f"  {name:<8}{statistics.median(theirs):>12.2f}{statistics.median(ours):>10.2f}{ratio:>8.3f}   {every}")
        apart += not 1 - WITHIN <= ratio <= 1 / (1 - WITHIN)
    return apart


def bench(file, asked):
    command = [BENCH, "-m", file, "-t", asked.threads, "-p", asked.prompt, "-n", asked.tokens, "-r", 1, "-o", "jsonl"]
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
        told = self.ask({"type": "load", "model": str(file.resolve()), "threads": asked.threads})
        random.seed(1)
        self.ids = [random.randrange(told["vocabulary_size"]) for _ in range(asked.prompt)]
        self.measure(tokens=8)

    def ask(self, request):
        self.worker.stdin.write(json.dumps(request) + "\n")
        self.worker.stdin.flush()
        while (told := json.loads(self.worker.stdout.readline()))["type"] == "progress":
            pass
        if told["type"] == "failed":
            raise SystemExit(f"error: the engine: {told['message']}")
        return told

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
