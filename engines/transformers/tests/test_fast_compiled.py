"""Tests path `fast` with its step compiled, which takes minutes on a small machine."""

import unittest

from support import EMBEDDED, FULL, load, run

import torch
from torch._dynamo.utils import counters

from fast_support import CASES, FAST, hugging_face, write_case

IDS = [5, 17, 3, 60, 22, 9, 41, 8, 33, 12, 50, 2, 27, 19]


def generated_ids(model, prompts, new_tokens, **job):
    tokens = run(model, prompts, new_tokens, **job)
    return [tokens.ids(sequence) for sequence in range(len(prompts))]


@unittest.skipUnless(FULL, "ORCHESTRATE_FULL_TESTS=1 compiles")
class Compiled(unittest.TestCase):
    def test_the_embedded_model_gives_the_ids_of_transformers_with_one_compiled_step_for_every_length(self):
        reference, model = hugging_face(EMBEDDED), load(EMBEDDED, FAST, dtype="f32")
        made = counters["stats"]["unique_graphs"]
        prompt = model.encode("Once upon a time there was a fiddle.")
        self.assertEqual(generated_ids(model, [prompt], 64, ignore_eos=True), [reference.greedy(prompt, 64)])
        logprobs = torch.log_softmax(reference(prompt).double(), -1)[range(len(prompt) - 1), prompt[1:]]
        self.assertLess((torch.tensor(model.score(prompt), dtype=torch.float64) - logprobs).abs().max(), 1e-4)
        # From the shortest possible sequence to the whole context.
        context = model.facts()["context_tokens"]
        self.assertEqual(len(generated_ids(model, [[7]], 1, ignore_eos=True)[0]), 1)
        self.assertEqual(len(generated_ids(model, [[7]], 2, ignore_eos=True)[0]), 2)
        count = context - 20 * len(prompt)
        self.assertEqual(len(generated_ids(model, [prompt * 20], count, ignore_eos=True)[0]), count)
        self.assertEqual(counters["stats"]["unique_graphs"], made)

    def test_every_architecture_gives_the_ids_of_transformers(self):
        for name in CASES:
            with self.subTest(name):
                path = write_case(self, name)
                model = load(path, FAST, dtype="f32")
                self.assertEqual(generated_ids(model, [IDS], 24, ignore_eos=True), [hugging_face(path).greedy(IDS, 24)])

    def test_each_sequence_of_a_ragged_batch_is_computed_as_if_it_were_alone(self):
        model = load(write_case(self, "llama"), FAST, dtype="f32")
        prompts = [IDS, IDS[:1], IDS[2:7]]
        separate = [generated_ids(model, [prompt], 12, ignore_eos=True)[0] for prompt in prompts]
        for padding in ("left", "right"):
            self.assertEqual(generated_ids(model, prompts, 12, ignore_eos=True, padding=padding), separate)

    def test_bf16_stays_near_the_embedded_model_in_f32(self):
        text = (EMBEDDED / "heldout.txt").read_text()[:1200]
        single, half = load(EMBEDDED, FAST, dtype="f32"), load(EMBEDDED, FAST, dtype="bf16")
        ids = single.encode(text)
        found, expected = (torch.tensor(model.score(ids), dtype=torch.float64) for model in (single, half))
        # The bound of `orchestrate` for agreement, PyTorch's own bf16 drift.
        self.assertLess((found - expected).pow(2).mean().sqrt(), 0.05)


if __name__ == "__main__":
    unittest.main()
