"""Tests path `fast` with a compiled step, which takes minutes on a small machine."""

import unittest

from support import load

from checkout import EMBEDDED
from engine_tests import FULL_TESTS, generate
import torch
from torch._dynamo.utils import counters

from fast_support import CONFIGS, FAST, load_hugging_face, write_model

IDS = [5, 17, 3, 60, 22, 9, 41, 8, 33, 12, 50, 2, 27, 19]


@unittest.skipUnless(FULL_TESTS, "compiles for minutes; ORCHESTRATE_FULL_TESTS=1 runs it")
class Compiled(unittest.TestCase):
    def test_the_embedded_model_gives_the_ids_of_transformers_and_compiles_one_step_for_all_lengths(self):
        hugging_face, model = load_hugging_face(EMBEDDED), load(EMBEDDED, FAST, dtype="f32")
        graphs_after_load = counters["stats"]["unique_graphs"]
        prompt = model.encode("Once upon a time there was a fiddle.")
        self.assertEqual(generate(model, [prompt], 64, ignore_eos=True), [hugging_face.greedy_ids(prompt, 64)])
        logprobs = torch.log_softmax(hugging_face.logits(prompt).double(), -1)[range(len(prompt) - 1), prompt[1:]]
        self.assertLess((torch.tensor(model.score(prompt), dtype=torch.float64) - logprobs).abs().max(), 1e-4)
        # Two short requests, and a request that fills the whole context.
        context = model.facts()["context_tokens"]
        self.assertEqual(len(generate(model, [[7]], 1, ignore_eos=True)[0]), 1)
        self.assertEqual(len(generate(model, [[7]], 2, ignore_eos=True)[0]), 2)
        new_tokens = context - 20 * len(prompt)
        self.assertEqual(len(generate(model, [prompt * 20], new_tokens, ignore_eos=True)[0]), new_tokens)
        self.assertEqual(counters["stats"]["unique_graphs"], graphs_after_load)

    def test_every_architecture_gives_the_ids_of_transformers(self):
        for name in CONFIGS:
            with self.subTest(name):
                path = write_model(self, name)
                model = load(path, FAST, dtype="f32")
                self.assertEqual(generate(model, [IDS], 24, ignore_eos=True), [load_hugging_face(path).greedy_ids(IDS, 24)])

    def test_a_sequence_gets_the_same_ids_in_a_ragged_batch_and_alone(self):
        model = load(write_model(self, "llama"), FAST, dtype="f32")
        prompts = [IDS, IDS[:1], IDS[2:7]]
        separate_ids = [generate(model, [prompt], 12, ignore_eos=True)[0] for prompt in prompts]
        for padding in ("left", "right"):
            self.assertEqual(generate(model, prompts, 12, ignore_eos=True, padding=padding), separate_ids)

    def test_bf16_scores_are_near_the_scores_in_f32(self):
        text = (EMBEDDED / "heldout.txt").read_text()[:1200]
        models = load(EMBEDDED, FAST, dtype="f32"), load(EMBEDDED, FAST, dtype="bf16")
        ids = models[0].encode(text)
        expected, scores = (torch.tensor(model.score(ids), dtype=torch.float64) for model in models)
        self.assertLess((scores - expected).pow(2).mean().sqrt(), 0.05)


if __name__ == "__main__":
    unittest.main()
