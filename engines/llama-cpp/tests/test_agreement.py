"""The embedded model against `pytorch-baseline`: f32 gives exactly its ids, and narrower dtypes drift within bounds.
Skipped if the baseline's environment is not set up."""

import json
import os
import subprocess
import sys
import unittest

from support import EMBEDDED, ENGINE, EXACT, KIT, ROOT, file

PROMPTS = [(0, 5), (3000, 100), (9000, 400)]
NEW_TOKENS = 48
SCORED = 512

# Root mean square of log-probabilities against the baseline's, with a margin for other machines' kernels.
DRIFT = {"bf16": 0.05, "f16": 0.01, "q8_0": 0.1, "q6_k": 0.2, "q4_k": 0.5, "q4_0": 0.6}


def held_out():
    from support import load

    text = (EMBEDDED / "heldout.txt").read_text("utf-8")
    return load(file("f32")).encode(text[:120_000])


def run_engine(command, loads, heldout):
    """For each load: the greedy ids after each prompt, and the scores of a passage."""
    requests = []
    for load in loads:
        requests.append({"type": "load", "threads": 2, **load})
        for start, length in PROMPTS:
            prompt = [0, *heldout[start : start + length]]
            requests.append({"type": "generate", "prompt_ids": prompt, "max_new_tokens": NEW_TOKENS, "ignore_eos": True})
        requests.append({"type": "score", "sequences": [heldout[20_000 : 20_000 + SCORED]]})
    sent = "".join(json.dumps(request) + "\n" for request in requests)
    environment = {**os.environ, "PYTHONPATH": str(KIT)}
    done = subprocess.run(command, env=environment, input=sent, capture_output=True, text=True, timeout=600)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if failed := [answer for answer in answers if answer["type"] == "failed"]:
        raise AssertionError(failed[0])
    texts = [answer["iterations"][0]["sequences"][0]["output_ids"] for answer in answers if answer["type"] == "generated"]
    scores = [answer["logprobs"][0] for answer in answers if answer["type"] == "scored"]
    count = len(PROMPTS)
    return [(texts[index * count : (index + 1) * count], scores[index]) for index in range(len(loads))]


def rms(scores, expected):
    return (sum((a - b) ** 2 for a, b in zip(scores, expected, strict=True)) / len(scores)) ** 0.5


class Agreement(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        baseline = ENGINE.parent / "pytorch-baseline" / "worker.py"
        # The tests use a separate data folder; the environment is in the user's.
        home = {name: value for name, value in os.environ.items() if name != "ORCHESTRATE_HOME"}
        python_command = [str(ROOT / "scripts" / "python-of"), "pytorch-baseline"]
        command = [*python_command, "-c", "import sys; print(sys.executable)"]
        result = subprocess.run(command, env=home, capture_output=True, text=True)
        if result.returncode != 0:
            raise unittest.SkipTest(result.stderr.splitlines()[0])
        cls.heldout = held_out()
        command = [result.stdout.strip(), "-s", str(baseline)]
        ((cls.texts, cls.scores),) = run_engine(command, [{"model": str(EMBEDDED)}], cls.heldout)

    def loads(self, loads):
        return run_engine([sys.executable, "-s", str(ENGINE / "worker.py")], loads, self.heldout)

    def test_f32_gives_exactly_the_baselines_ids_and_its_log_probabilities(self):
        options = [{}, EXACT]
        loads = [{"model": str(file("f32")), "options": option} for option in options]
        for option, bound, (texts, scores) in zip(options, (1e-3, 1e-5), self.loads(loads)):
            print(f"f32 {option}: drift {rms(scores, self.scores):.1e}", file=sys.stderr)
            self.assertEqual(texts, self.texts, option)
            self.assertLess(rms(scores, self.scores), bound, option)

    def test_narrower_dtypes_drift_within_their_bounds(self):
        answers = self.loads([{"model": str(file(dtype))} for dtype in DRIFT])
        for (dtype, bound), (texts, scores) in zip(DRIFT.items(), answers):
            drift = rms(scores, self.scores)
            same = [sum(a == b for a, b in zip(found, expected)) for found, expected in zip(texts, self.texts)]
            print(f"{dtype}: drift {drift:.4f}, same ids {same} of {NEW_TOKENS}", file=sys.stderr)
            self.assertLess(drift, bound, dtype)


if __name__ == "__main__":
    unittest.main()
