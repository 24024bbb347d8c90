"""The engine `transformers` and the bare script beside it, in turn: the one that waits is stopped, and the first request after
it goes on is thrown away, as the orchestrator does it. Says both medians, and the median of the rounds' ratios."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ROOT / "engines" / "transformers" / "worker.py"
WARM_UP = 3


class Program:
    """A process that is asked one line at a time, and stopped in between."""

    def __init__(self, command, **environment):
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.process = subprocess.Popen(command, env={**os.environ, **environment}, **pipes)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        while True:
            answer = self.process.stdout.readline()
            if not answer:
                sys.exit(f"error: `{' '.join(self.process.args)}` ended with {self.process.wait()}")
            if answer.startswith(("{", "[", "ready")) and '"type":"progress"' not in answer:
                return answer

    def turn(self, ask):
        os.kill(self.process.pid, signal.SIGCONT)
        ask()
        taken = ask()
        os.kill(self.process.pid, signal.SIGSTOP)
        return taken

    def end(self):
        self.process.kill()
        self.process.wait()


def main():
    asked = arguments()
    ids = random.Random(1)
    prompts = [[ids.randrange(asked.vocabulary) for _ in range(asked.prompt)] for _ in range(asked.rounds + WARM_UP)]
    threads = {"OMP_NUM_THREADS": str(asked.threads), "MKL_NUM_THREADS": str(asked.threads), "HF_HUB_OFFLINE": "1"}
    bare = Program([sys.executable, str(ROOT / "scripts" / "bare-transformers.py"), asked.model, asked.dtype, str(asked.threads), asked.path], **threads)
    engine = Program([sys.executable, "-s", str(ENGINE)], PYTHONPATH=str(ROOT / "engines" / "kit" / "python"))
    try:
        bare.process.stdout.readline()
        load = {"type": "load", "model": asked.model, "dtype": asked.dtype, "threads": asked.threads, "options": {"path": asked.path}}
        loaded = json.loads(engine.ask(json.dumps(load)))
        if loaded["type"] != "loaded":
            sys.exit(f"error: {loaded['message']}")
        rounds = []
        for round, prompt in enumerate(prompts):
            sides = [lambda: by_bare(bare, prompt, asked.tokens), lambda: by_engine(engine, prompt, asked.tokens)]
            order = (0, 1) if round % 2 else (1, 0)
            taken = {side: (bare, engine)[side].turn(sides[side]) for side in order}
            if taken[0][0] != taken[1][0]:
                sys.exit(f"error: round {round}: the two give different tokens")
            rounds.append((taken[0][1:], taken[1][1:]))
        show(asked, rounds[WARM_UP:])
    finally:
        bare.end()
        engine.end()


def by_bare(program, prompt, tokens):
    """Ids, milliseconds to the first token, milliseconds for each token after it."""
    ids, seconds = json.loads(program.ask(json.dumps([prompt, tokens])))
    return ids, 1e3 * seconds[0], 1e3 * (seconds[-1] - seconds[0]) / (tokens - 1)


def by_engine(program, prompt, tokens):
    request = {"type": "generate", "prompt_ids": prompt, "max_new_tokens": tokens, "ignore_eos": True}
    iteration = json.loads(program.ask(json.dumps(request)))["iterations"][0]
    sequence = iteration["sequences"][0]
    stamps = sequence["token_ns"]
    # The bare script begins to count when it has read its line.
    return sequence["output_ids"], stamps[0] / 1e6, (stamps[-1] - stamps[0]) / 1e6 / (tokens - 1)


def show(asked, rounds):
    print(f"{asked.model}, {asked.dtype}, {asked.threads} threads, path {asked.path}: {asked.prompt} + {asked.tokens} tokens, {len(rounds)} rounds")
    print(f"{'':24}{'bare':>12}{'engine':>12}{'engine/bare':>14}")
    for name, index in (("first token, ms", 0), ("ms per token after it", 1)):
        ours, theirs = [engine[index] for _, engine in rounds], [bare[index] for bare, _ in rounds]
        ratio = median(one / other for one, other in zip(ours, theirs))
        print(f"{name:24}{median(theirs):12.3f}{median(ours):12.3f}{ratio:14.3f}")


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/transformers-against-bare")
    parser.add_argument("--model", default=str(ROOT / "models" / "embedded"))
    parser.add_argument("--path", default="loop", choices=("loop", "generate"))
    parser.add_argument("--dtype", default="f32", choices=("f32", "bf16", "f16"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    asked.vocabulary = json.loads((Path(asked.model) / "config.json").read_text())["vocab_size"]
    return asked


if __name__ == "__main__":
    main()
