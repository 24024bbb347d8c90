"""The embedded model with every CPU preset against `pytorch-baseline`: f32 gives exactly its ids, and the others
drift within the README's bounds."""

import json
import os
import subprocess
import sys
import unittest

from support import EMBEDDED, ENGINE, FULL, KIT

from quantize import reduces_range

BASELINE = ENGINE.parent / "pytorch-baseline"
PROMPTS = [(0, 5), (3000, 100), (9000, 400)]
NEW_TOKENS = 48
# The number of tokens in the orchestrator's own check, and the first, which has no score.
SCORED = 1660

# Root mean square of log-probabilities against the baseline's, as in the README.
DRIFT = {
    "bf16": ({}, "bf16", 0.0081),
    "f16": ({}, "f16", 0.001),
    "int8-dynamic": ({"quantize": "int8-dynamic"}, None, 0.016),
    "int4": ({"quantize": "int4"}, None, 0.054),
}
if FULL:
    # Its step is compiled.
    DRIFT["fast-int8"] = ({"path": "fast", "quantize": "int8"}, None, 0.01)

# The drift of `int8-dynamic` on processors that leave activations 7 bits.
WITHOUT_VNNI = 0.028

# The margin for kernels of other machines.
MARGIN = 1.5


def held_out():
    from tokenizers import Tokenizer

    text = (EMBEDDED / "heldout.txt").read_text("utf-8")
    return Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")).encode(text).ids


def run_engine(engine, loads, heldout):
    """For each load: the greedy ids after each prompt, and the scores of a passage."""
    requests = []
    for options, dtype in loads:
        load = {"type": "load", "model": str(EMBEDDED), "threads": 2, "options": options}
        requests.append({**load, **({"dtype": dtype} if dtype else {})})
        for start, length in PROMPTS:
            prompt = [0, *heldout[start : start + length]]
            requests.append({"type": "generate", "prompt_ids": prompt, "max_new_tokens": NEW_TOKENS, "ignore_eos": True})
        requests.append({"type": "score", "sequences": [heldout[20_000 : 20_000 + SCORED]]})
    sent = "".join(json.dumps(request) + "\n" for request in requests)
    command = [sys.executable, "-s", str(engine / "worker.py")]
    environment = {**os.environ, "PYTHONPATH": str(KIT)}
    done = subprocess.run(command, env=environment, input=sent, capture_output=True, text=True, timeout=3000)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if failed := [answer for answer in answers if answer["type"] == "failed"]:
        raise AssertionError(failed[0])
    texts = [answer["iterations"][0]["sequences"][0]["output_ids"] for answer in answers if answer["type"] == "generated"]
    scores = [answer["logprobs"][0] for answer in answers if answer["type"] == "scored"]
    count = len(PROMPTS)
    return [(texts[index * count : (index + 1) * count], scores[index]) for index in range(len(loads))]


def rms(left, right):
    return (sum((a - b) ** 2 for a, b in zip(left, right)) / len(left)) ** 0.5


class Agreement(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.heldout = held_out()
        ((cls.texts, cls.scores),) = run_engine(BASELINE, [({}, None)], cls.heldout)

    def assert_exact(self, loads):
        for (options, _), (texts, scores) in zip(loads, run_engine(ENGINE, loads, self.heldout)):
            self.assertEqual(texts, self.texts, options)
            self.assertLess(rms(scores, self.scores), 1e-5, options)

    def test_f32_gives_exactly_the_baselines_ids(self):
        paths = [{}, {"path": "loop"}, {"path": "jit"}, {"attention": "eager"}, {"attention": "flash"}]
        self.assert_exact([(options, None) for options in paths])

    @unittest.skipUnless(FULL, "compiles: minutes on a small machine")
    def test_a_compiled_step_gives_exactly_the_baselines_ids(self):
        self.assert_exact([({"path": "compile", "cache_tokens": 512}, None), ({"path": "fast"}, "f32")])

    def test_narrower_presets_drift_as_far_as_the_readme_states(self):
        loads = [(options, dtype) for options, dtype, _ in DRIFT.values()]
        readme = (ENGINE / "README.md").read_text("utf-8")
        for (name, (*_, stated)), (texts, scores) in zip(DRIFT.items(), run_engine(ENGINE, loads, self.heldout)):
            drift = rms(scores, self.scores)
            same = [sum(a == b for a, b in zip(found, expected)) for found, expected in zip(texts, self.texts)]
            print(f"{name}: drift {drift:.4f}, greedy ids as the baseline's: {same} of {NEW_TOKENS}", file=sys.stderr)
            self.assertIn(f"| {name} | {stated} |", readme)
            likely = WITHOUT_VNNI if name == "int8-dynamic" and reduces_range() else stated
            self.assertTrue(1e-4 < drift < MARGIN * likely, (name, drift))


if __name__ == "__main__":
    unittest.main()
