"""Compares this engine with the engine `pytorch-baseline`, in several presets with the embedded model on a CPU. f32 gives the
same ids. The drift of each other preset is about as large as the README says."""

import sys
import unittest

from support import ENGINE

from checkout import EMBEDDED
from engine_tests import FULL_TESTS, drift, ids_and_scores, worker_answers
from quantize import reduces_range

BOS_ID = 0
# The start and the length of each prompt in the held-out ids.
PROMPTS = [(0, 5), (3000, 100), (9000, 400)]
NEW_TOKENS = 48
# The scored part of the held-out ids. It has as many scores as the orchestrator's output check, 1659: the first token has none.
SCORED_START, SCORED_TOKENS = 20_000, 1660

# Options, dtype (None: the default) and drift of each preset, as in the README. The drift is the root mean square of the
# differences between the log-probabilities of the preset and of `pytorch-baseline`.
DRIFT = {
    "bf16": ({}, "bf16", 0.0081),
    "f16": ({}, "f16", 0.001),
    "int8-dynamic": ({"quantize": "int8-dynamic"}, None, 0.016),
    "int4": ({"quantize": "int4"}, None, 0.054),
}
if FULL_TESTS:
    # Path `fast` compiles its step, which takes minutes.
    DRIFT["fast-int8"] = ({"path": "fast", "quantize": "int8"}, None, 0.01)

# The drift of `int8-dynamic` on processors without VNNI, where activations have 7 bits.
INT8_DRIFT_WITHOUT_VNNI = 0.028

# The drift on other machines may be larger by this factor, because their kernels differ.
DRIFT_MARGIN = 1.5


def read_held_out_ids():
    from tokenizers import Tokenizer

    text = (EMBEDDED / "heldout.txt").read_text("utf-8")
    return Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")).encode(text).ids


def run_engine(engine, loads, held_out):
    """Runs the requests of every load. Returns for each load the greedy ids after each prompt, and the scores."""
    requests = []
    for options, dtype in loads:
        load = {"type": "load", "model": str(EMBEDDED), "threads": 2, "options": options}
        requests.append({**load, **({"dtype": dtype} if dtype else {})})
        for start, length in PROMPTS:
            prompt = [BOS_ID, *held_out[start : start + length]]
            requests.append({"type": "generate", "prompt_ids": prompt, "max_new_tokens": NEW_TOKENS, "ignore_eos": True})
        requests.append({"type": "score", "sequences": [held_out[SCORED_START : SCORED_START + SCORED_TOKENS]]})
    ids, scores = ids_and_scores(worker_answers(engine, requests))
    prompts = len(PROMPTS)
    return [(ids[index * prompts : (index + 1) * prompts], scores[index]) for index in range(len(loads))]


class Agreement(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.held_out = read_held_out_ids()
        ((cls.baseline_ids, cls.baseline_scores),) = run_engine("pytorch-baseline", [({}, None)], cls.held_out)

    def assert_equal_results(self, loads):
        for (options, _), (ids, scores) in zip(loads, run_engine("transformers", loads, self.held_out)):
            self.assertEqual(ids, self.baseline_ids, options)
            self.assertLess(drift(scores, self.baseline_scores), 1e-5, options)

    def test_f32_gives_the_ids_of_pytorch_baseline(self):
        choices = [{}, {"path": "loop"}, {"path": "jit"}, {"attention": "eager"}, {"attention": "flash"}]
        self.assert_equal_results([(options, None) for options in choices])

    @unittest.skipUnless(FULL_TESTS, "compiles for minutes; ORCHESTRATE_FULL_TESTS=1 runs it")
    def test_a_compiled_step_gives_the_ids_of_pytorch_baseline(self):
        self.assert_equal_results([({"path": "compile", "cache_tokens": 512}, None), ({"path": "fast"}, "f32")])

    def test_presets_other_than_f32_differ_from_f32_by_the_amount_in_the_readme(self):
        loads = [(options, dtype) for options, dtype, _ in DRIFT.values()]
        readme = (ENGINE / "README.md").read_text("utf-8")
        for (name, (*_, expected_drift)), (ids, scores) in zip(DRIFT.items(), run_engine("transformers", loads, self.held_out)):
            found = drift(scores, self.baseline_scores)
            equal_ids = [sum(a == b for a, b in zip(*pair)) for pair in zip(ids, self.baseline_ids)]
            print(f"{name}: drift {found:.4f}, greedy ids equal to pytorch-baseline: {equal_ids} of {NEW_TOKENS}", file=sys.stderr)
            self.assertIn(f"| {name} | {expected_drift} |", readme)
            if name == "int8-dynamic" and reduces_range():
                expected_drift = INT8_DRIFT_WITHOUT_VNNI
            self.assertTrue(1e-4 < found < DRIFT_MARGIN * expected_drift, (name, found))


if __name__ == "__main__":
    unittest.main()
