"""Measures the engine `transformers` and `bare-transformers.py` in turns. As in the orchestrator, the waiting process is
paused. The first request after the pause never counts; in the orchestrator, it counts if requests take 250 ms or more.
Prints the medians of both programs, and the ratio with its interval of 95 %."""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engines/kit/python"))
from checkout import EMBEDDED, ROOT, worker_command
from comparison import exit_with, find_paired_fault, paired_interval

WARM_UP_ROUNDS = 3


class Program:
    """A process that gets one line at a time, and is paused in between."""

    def __init__(self, command, environment):
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.process = subprocess.Popen(command, env=environment, **pipes)

    def request(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        while True:
            answer = self.process.stdout.readline()
            if not answer:
                sys.exit(f"error: `{' '.join(self.process.args)}` ended with {self.process.wait()}")
            if answer.startswith(("{", "[", "ready")) and '"type":"progress"' not in answer:
                return answer

    def resume_for(self, measure):
        """Resumes the process, measures twice, and pauses it. The first result does not count."""
        os.kill(self.process.pid, signal.SIGCONT)
        measure()
        result = measure()
        os.kill(self.process.pid, signal.SIGSTOP)
        return result

    def end(self):
        self.process.kill()
        self.process.wait()


def main():
    options = arguments()
    generator = random.Random(1)
    prompts = [[generator.randrange(options.vocabulary) for _ in range(options.prompt)] for _ in range(options.rounds + WARM_UP_ROUNDS)]
    threads = {"OMP_NUM_THREADS": str(options.threads), "MKL_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    bare = Program([sys.executable, str(ROOT / "scripts" / "bare-transformers.py"), options.model, options.dtype, str(options.threads), options.path], {**os.environ, **threads})
    engine = Program(*worker_command("transformers"))
    try:
        bare.process.stdout.readline()  # "ready"
        load = {"type": "load", "model": options.model, "dtype": options.dtype, "threads": options.threads, "options": {"path": options.path}}
        loaded = json.loads(engine.request(json.dumps(load)))
        if loaded["type"] != "loaded":
            sys.exit(f"error: {loaded['message']}")
        rounds = []
        for round, prompt in enumerate(prompts):
            sides = [lambda: run_bare(bare, prompt, options.tokens), lambda: run_engine(engine, prompt, options.tokens)]
            order = (0, 1) if round % 2 else (1, 0)
            results = {side: (bare, engine)[side].resume_for(sides[side]) for side in order}
            if results[0][0] != results[1][0]:
                sys.exit(f"error: round {round}: the engine and the bare script give different tokens")
            rounds.append((results[0][1:], results[1][1:]))
        print_results(options, rounds[WARM_UP_ROUNDS:])
    finally:
        bare.end()
        engine.end()


def run_bare(program, prompt, tokens):
    """Returns the ids, milliseconds to the first token, and milliseconds for each later token."""
    ids, seconds = json.loads(program.request(json.dumps([prompt, tokens])))
    return ids, 1e3 * seconds[0], 1e3 * (seconds[-1] - seconds[0]) / (tokens - 1)


def run_engine(program, prompt, tokens):
    request = {"type": "generate", "prompt_ids": prompt, "max_new_tokens": tokens, "ignore_eos": True}
    iteration = json.loads(program.request(json.dumps(request)))["iterations"][0]
    sequence = iteration["sequences"][0]
    token_ns = sequence["token_ns"]
    # Times count from the moment when the line was read, as in the bare script.
    return sequence["output_ids"], token_ns[0] / 1e6, (token_ns[-1] - token_ns[0]) / 1e6 / (tokens - 1)


def print_results(options, rounds):
    print(f"{options.model}, {options.dtype}, {options.threads} threads, path {options.path}: {options.prompt} + {options.tokens} tokens, {len(rounds)} rounds")
    print(f"{'':24}{'bare':>12}{'engine':>12}   engine/bare")
    for name, index in (("first token, ms", 0), ("ms per later token", 1)):
        engines, bares = [engine[index] for _, engine in rounds], [bare[index] for bare, _ in rounds]
        ratios = [engine / bare for engine, bare in zip(engines, bares)]
        print(f"{name:24}{median(bares):12.3f}{median(engines):12.3f}   {paired_interval(ratios)}")
    # Only the engine's time to the first token contains the reading of a request, so it is not judged.
    exit_with([find_paired_fault(name, ratios)])


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/transformers-against-bare")
    parser.add_argument("--model", default=str(EMBEDDED))
    parser.add_argument("--path", default="loop", choices=("loop", "generate"))
    parser.add_argument("--dtype", default="f32", choices=("f32", "bf16", "f16"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    options.vocabulary = json.loads((Path(options.model) / "config.json").read_text())["vocab_size"]
    return options


if __name__ == "__main__":
    main()
