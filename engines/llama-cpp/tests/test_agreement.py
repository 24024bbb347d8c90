"""Compares the engine with `pytorch-baseline` on the embedded model. f32 must give the same ids. Narrower dtypes may drift
within bounds. The tests are skipped if the environment of `pytorch-baseline` is not set up."""

import json
import os
import subprocess
import sys
import unittest

from support import EMBEDDED, ENGINE, EXACT_OPTIONS, KIT, ROOT, gguf_file, load_model

# The start and the length of each prompt in the ids of the held-out text.
PROMPTS = [(0, 5), (3000, 100), (9000, 400)]
NEW_TOKENS = 48
# The ids of the held-out text that are scored.
SCORED = slice(20_000, 20_512)

# Bounds of the drift: the root mean square difference of log-probabilities. They have a margin for other machines' kernels.
MAX_DRIFT = {"bf16": 0.05, "f16": 0.01, "q8_0": 0.1, "q6_k": 0.2, "q4_k": 0.5, "q4_0": 0.6}


def run_engine(command, loads, held_out_ids):
    """For each load: the greedy ids after each prompt, and the log-probabilities of the scored ids."""
    requests = []
    for load in loads:
        requests.append({"type": "load", "threads": 2, **load})
        for start, length in PROMPTS:
            prompt = [0, *held_out_ids[start : start + length]]  # 0 is BOS
            requests.append({"type": "generate", "prompt_ids": prompt, "max_new_tokens": NEW_TOKENS, "ignore_eos": True})
        requests.append({"type": "score", "sequences": [held_out_ids[SCORED]]})
    sent = "".join(json.dumps(request) + "\n" for request in requests)
    environment = {**os.environ, "PYTHONPATH": str(KIT)}
    done = subprocess.run(command, env=environment, input=sent, capture_output=True, text=True, timeout=600)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if failed := [answer for answer in answers if answer["type"] == "failed"]:
        raise AssertionError(failed[0])
    greedy_ids = [answer["iterations"][0]["sequences"][0]["output_ids"] for answer in answers if answer["type"] == "generated"]
    scores = [answer["logprobs"][0] for answer in answers if answer["type"] == "scored"]
    count = len(PROMPTS)
    return [(greedy_ids[index * count : (index + 1) * count], scores[index]) for index in range(len(loads))]


class Agreement(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        worker = ENGINE.parent / "pytorch-baseline" / "worker.py"
        # The environment of `pytorch-baseline` is in the user's data folder; these tests use another data folder.
        user_variables = {name: value for name, value in os.environ.items() if name != "ORCHESTRATE_HOME"}
        python_command = [str(ROOT / "scripts" / "python-of"), "pytorch-baseline"]
        command = [*python_command, "-c", "import sys; print(sys.executable)"]
        result = subprocess.run(command, env=user_variables, capture_output=True, text=True)
        if result.returncode != 0:
            raise unittest.SkipTest(result.stderr.splitlines()[0])
        cls.held_out_ids = load_model().encode((EMBEDDED / "heldout.txt").read_text("utf-8")[:120_000])
        command = [result.stdout.strip(), "-s", str(worker)]
        ((cls.baseline_ids, cls.baseline_scores),) = run_engine(command, [{"model": str(EMBEDDED)}], cls.held_out_ids)

    def answers(self, loads):
        return run_engine([sys.executable, "-s", str(ENGINE / "worker.py")], loads, self.held_out_ids)

    def drift(self, scores):
        squares = [(a - b) ** 2 for a, b in zip(scores, self.baseline_scores, strict=True)]
        return (sum(squares) / len(squares)) ** 0.5

    def test_f32_gives_the_ids_of_pytorch_baseline_and_nearly_its_log_probabilities(self):
        option_sets = [{}, EXACT_OPTIONS]
        loads = [{"model": str(gguf_file("f32")), "options": options} for options in option_sets]
        for options, bound, (ids, scores) in zip(option_sets, (1e-3, 1e-5), self.answers(loads)):
            print(f"f32 {options}: drift {self.drift(scores):.1e}", file=sys.stderr)
            self.assertEqual(ids, self.baseline_ids, options)
            self.assertLess(self.drift(scores), bound, options)

    def test_narrower_dtypes_drift_within_their_bounds(self):
        answers = self.answers([{"model": str(gguf_file(dtype))} for dtype in MAX_DRIFT])
        for (dtype, bound), (ids, scores) in zip(MAX_DRIFT.items(), answers):
            same = [sum(a == b for a, b in zip(*pair)) for pair in zip(ids, self.baseline_ids)]
            print(f"{dtype}: drift {self.drift(scores):.4f}, same ids {same} of {NEW_TOKENS}", file=sys.stderr)
            self.assertLess(self.drift(scores), bound, dtype)


if __name__ == "__main__":
    unittest.main()
