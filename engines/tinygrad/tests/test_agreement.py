"""Compares the engine with `pytorch-baseline`: the embedded model in several dtypes, and the shapes `tiny-*` that the engine loads. The
tests are skipped if the environment of `pytorch-baseline` is not set up."""

import json
import os
import subprocess
import sys
import unittest

from support import EMBEDDED, ENGINE, KIT, ROOT, generate, gguf_file, load_model, tiny_model

# The start and the length of each prompt in the ids of the held-out text.
PROMPTS = [(0, 5), (3000, 100), (9000, 400)]
NEW_TOKENS = 48
# The ids of the held-out text that are scored.
SCORED = slice(20_000, 20_256)

# Bounds of the drift: the root mean square difference of log-probabilities. They have a margin for other machines' kernels.
MAX_DRIFT = {"f32": 1e-5, "bf16": 0.01, "q8_0": 0.1, "q4_k": 0.5}

# The shapes of the architectures that the engine loads. The first has Llama 3's RoPE scaling.
SHAPES = ["tiny-llama", "tiny-qwen2", "tiny-qwen3"]
TINY_IDS = [(7 * index * index + 3 * index) % 2000 for index in range(300)]


class Baseline:
    """`pytorch-baseline` as a program."""

    def __init__(self):
        # The environment of `pytorch-baseline` is in the user's data folder; these tests use another data folder.
        user_variables = {name: value for name, value in os.environ.items() if name != "ORCHESTRATE_HOME"}
        command = [str(ROOT / "scripts" / "python-of"), "pytorch-baseline", "-c", "import sys; print(sys.executable)"]
        result = subprocess.run(command, env=user_variables, capture_output=True, text=True)
        if result.returncode != 0:
            raise unittest.SkipTest(result.stderr.splitlines()[0])
        self._command = [result.stdout.strip(), "-s", str(ENGINE.parent / "pytorch-baseline" / "worker.py")]

    def answers(self, requests):
        sent = "".join(json.dumps(request) + "\n" for request in requests)
        environment = {**os.environ, "PYTHONPATH": str(KIT)}
        done = subprocess.run(self._command, env=environment, input=sent, capture_output=True, text=True, timeout=1200)
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if failed := [answer for answer in answers if answer["type"] == "failed"]:
            raise AssertionError(failed[0])
        ids = [answer["iterations"][0]["sequences"][0]["output_ids"] for answer in answers if answer["type"] == "generated"]
        return ids, [answer["logprobs"][0] for answer in answers if answer["type"] == "scored"]


def drift(scores, expected):
    squares = [(a - b) ** 2 for a, b in zip(scores, expected, strict=True)]
    return (sum(squares) / len(squares)) ** 0.5


class Agreement(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.baseline = Baseline()

    def test_the_embedded_model_gives_the_ids_of_pytorch_baseline_in_f32_and_drifts_within_bounds_in_other_dtypes(self):
        model = load_model()
        held_out = model.encode((EMBEDDED / "heldout.txt").read_text("utf-8")[:120_000])
        prompts = [[0, *held_out[start : start + length]] for start, length in PROMPTS]  # 0 is BOS
        requests = [{"type": "load", "model": str(EMBEDDED), "threads": 1, "options": {"kv_cache": True}}]
        requests += [
            {"type": "generate", "prompt_ids": prompt, "max_new_tokens": NEW_TOKENS, "ignore_eos": True} for prompt in prompts
        ]
        requests.append({"type": "score", "sequences": [held_out[SCORED]]})
        expected_ids, (expected_scores,) = self.baseline.answers(requests)
        for dtype, bound in MAX_DRIFT.items():
            if dtype != "f32":
                model = load_model(gguf_file(dtype))
            ids = [generate(model, prompt, NEW_TOKENS, ignore_eos=True) for prompt in prompts]
            difference = drift(model.score(held_out[SCORED]), expected_scores)
            same = [sum(a == b for a, b in zip(*pair)) for pair in zip(ids, expected_ids)]
            print(f"{dtype}: drift {difference:.1e}, same ids {same} of {NEW_TOKENS}", file=sys.stderr)
            self.assertLess(difference, bound, dtype)
            if dtype == "f32":
                self.assertEqual(ids, expected_ids)
            self.assertEqual(model.facts()["weights_dtype"], dtype)

    def test_every_tiny_shape_that_is_loaded_gives_the_ids_and_log_probabilities_of_pytorch_baseline(self):
        for shape in SHAPES:
            folder = tiny_model(shape)
            expected_ids, (expected_scores,) = self.baseline.answers([
                {"type": "load", "model": str(folder), "threads": 1},
                {"type": "generate", "prompt_ids": TINY_IDS[:100], "max_new_tokens": 16, "ignore_eos": True},
                {"type": "score", "sequences": [TINY_IDS]},
            ])
            model = load_model(gguf_file("f32", folder))
            difference = drift(model.score(TINY_IDS), expected_scores)
            print(f"{shape}: drift {difference:.1e}", file=sys.stderr)
            self.assertLess(difference, 1e-5, shape)
            self.assertEqual([generate(model, TINY_IDS[:100], 16, ignore_eos=True)], expected_ids, shape)


if __name__ == "__main__":
    unittest.main()
