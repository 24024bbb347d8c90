"""Compares the engine with `pytorch-baseline` on the embedded model. f32 must give the same ids. Narrower dtypes may drift
within bounds. The tests are skipped if the environment of `pytorch-baseline` is not set up."""

import sys
import unittest

from support import EXACT_OPTIONS, gguf_file, load_model

from checkout import EMBEDDED
from engine_tests import baseline_answers, drift, ids_and_scores, worker_answers

# The start and the length of each prompt in the ids of the held-out text.
PROMPTS = [(0, 5), (3000, 100), (9000, 400)]
NEW_TOKENS = 48
# The ids of the held-out text that are scored.
SCORED = slice(20_000, 20_512)

# Bounds of the drift: the root mean square difference of log-probabilities. They have a margin for other machines' kernels.
MAX_DRIFT = {"bf16": 0.05, "f16": 0.01, "q8_0": 0.1, "q6_k": 0.2, "q4_k": 0.5, "q4_0": 0.6}


def requests_of(load, held_out_ids):
    """A load, a generation after each prompt, and the scores."""
    prompts = [[0, *held_out_ids[start : start + length]] for start, length in PROMPTS]  # 0 is BOS
    return [
        {"type": "load", "threads": 2, **load},
        *({"type": "generate", "prompt_ids": prompt, "max_new_tokens": NEW_TOKENS, "ignore_eos": True} for prompt in prompts),
        {"type": "score", "sequences": [held_out_ids[SCORED]]},
    ]


class Agreement(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.held_out_ids = load_model().encode((EMBEDDED / "heldout.txt").read_text("utf-8")[:120_000])
        baseline = baseline_answers(requests_of({"model": str(EMBEDDED)}, cls.held_out_ids))
        cls.baseline_ids, (cls.baseline_scores,) = baseline

    def answers(self, **load):
        """The greedy ids after each prompt, and the log-probabilities of the scored ids."""
        ids, (scores,) = ids_and_scores(worker_answers("llama-cpp", requests_of(load, self.held_out_ids)))
        return ids, scores

    def test_f32_gives_the_ids_of_pytorch_baseline_and_nearly_its_log_probabilities(self):
        for options, bound in (({}, 1e-3), (EXACT_OPTIONS, 1e-5)):
            ids, scores = self.answers(model=str(gguf_file("f32")), options=options)
            found = drift(scores, self.baseline_scores)
            print(f"f32 {options}: drift {found:.1e}", file=sys.stderr)
            self.assertEqual(ids, self.baseline_ids, options)
            self.assertLess(found, bound, options)

    def test_narrower_dtypes_drift_within_their_bounds(self):
        for dtype, bound in MAX_DRIFT.items():
            ids, scores = self.answers(model=str(gguf_file(dtype)))
            found = drift(scores, self.baseline_scores)
            same = [sum(a == b for a, b in zip(*pair)) for pair in zip(ids, self.baseline_ids)]
            print(f"{dtype}: drift {found:.4f}, same ids {same} of {NEW_TOKENS}", file=sys.stderr)
            self.assertLess(found, bound, dtype)


if __name__ == "__main__":
    unittest.main()
