"""Tests every architecture against the logits of Hugging Face `transformers` with the same weights."""

import json
import unittest
from pathlib import Path

from seeded import seeded_ids
from support import load, make_weights, write_folder

import numpy
import torch

from engine_kit import Failed

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
CASES = GOLDEN["cases"]


class Architectures(unittest.TestCase):
    def logits(self, case, changes=None, weights=None, dtype="f32"):
        weights = make_weights(case) if weights is None else weights
        model = load(write_folder(self, changes, weights, config=case["config"]), dtype=dtype)
        facts = model.facts()
        self.assertEqual((facts["weights_dtype"], facts["compute_dtype"]), (dtype, dtype))
        self.assertEqual(facts["weights_bytes"], (4 if dtype == "f32" else 2) * facts["parameters"])
        with torch.no_grad():
            return model._logits(seeded_ids(GOLDEN["tokens"], case["config"]["vocab_size"]))  # [tokens, vocabulary]

    def test_logits_equal_the_logits_of_transformers(self):
        for name, case in CASES.items():
            with self.subTest(name):
                logits = self.logits(case)
                for position, expected in case["logits"].items():
                    row = logits[int(position), :: GOLDEN["vocabulary_step"]].tolist()
                    numpy.testing.assert_allclose(row, expected, rtol=0, atol=1e-4)

    def test_narrow_dtypes_round_the_logits_of_every_architecture(self):
        for name, case in CASES.items():
            f32 = self.logits(case)
            size = f32.pow(2).mean().sqrt()
            # A number has 8 significant bits in bf16, and 11 in f16.
            for dtype, bits in (("bf16", 8), ("f16", 11)):
                with self.subTest(name, dtype=dtype):
                    error = (self.logits(case, dtype=dtype).float() - f32).pow(2).mean().sqrt() / size
                    self.assertTrue(0.05 < error * 2**bits < 20, float(error * 2**bits))

    def test_every_architecture_of_hello_has_a_case_and_a_network(self):
        from baseline import NETWORKS
        from worker import PyTorchBaseline

        architectures = sorted(PyTorchBaseline().hello()["capabilities"]["architectures"])
        self.assertEqual(architectures, sorted(NETWORKS))
        self.assertEqual(architectures, sorted({case["config"]["model_type"] for case in CASES.values()}))

    def test_gpt2_is_read_without_the_prefix_of_its_tensor_names_and_stored_masks_are_ignored(self):
        case = CASES["gpt2"]
        renamed = {name.removeprefix("transformer."): tensor for name, tensor in make_weights(case).items()}
        masks = {"h.0.attn.bias": torch.ones(1, 1, 256, 256).tril(), "h.0.attn.masked_bias": torch.tensor(-1e4)}
        self.assertTrue(torch.equal(self.logits(case, weights={**renamed, **masks}), self.logits(case)))

    def test_a_sliding_window_changes_the_first_token_beyond_the_window(self):
        for name in ("mistral with a window", "phi3 with a window"):
            case = CASES[name]
            window = case["config"]["sliding_window"]
            windowed, unlimited = self.logits(case), self.logits(case, {"sliding_window": None})
            self.assertTrue(torch.equal(windowed[:window], unlimited[:window]))
            self.assertGreater((windowed[window] - unlimited[window]).abs().max(), 1e-3)
            self.assertTrue(torch.equal(self.logits(case, {"sliding_window": GOLDEN["tokens"]}), unlimited))

    def test_mistral_without_a_window_field_has_the_window_of_its_first_version(self):
        from shape import read_shape

        config = {name: value for name, value in CASES["mistral"]["config"].items() if name != "sliding_window"}
        self.assertEqual(read_shape(config).window, 4096)

    def test_the_embedding_is_the_output_matrix_of_gemma_and_gpt2_by_default(self):
        for name, embeddings in {"gemma": "model.embed_tokens.weight", "gpt2": "transformer.wte.weight"}.items():
            case, weights = CASES[name], make_weights(CASES[name])
            # If the embedding is tied, an output matrix of zeros is refused, because it differs. If not, all logits are 0.
            with_head = {**weights, "lm_head.weight": torch.zeros_like(weights[embeddings])}
            with self.assertRaisesRegex(Failed, "`lm_head.weight` differs from"):
                self.logits(case, weights=with_head)
            self.assertEqual(self.logits(case, {"tie_word_embeddings": False}, with_head).abs().max(), 0.0)

    def test_a_missing_tensor_is_named(self):
        for name, removed in {
            "qwen2": "model.layers.2.self_attn.k_proj.bias",
            "qwen3": "model.layers.1.self_attn.q_norm.weight",
            "phi3": "model.layers.0.mlp.gate_up_proj.weight",
            "gpt2": "transformer.wpe.weight",
        }.items():
            weights = make_weights(CASES[name])
            del weights[removed]
            with self.assertRaises(Failed) as caught:
                self.logits(CASES[name], weights=weights)
            self.assertEqual(caught.exception.kind, "model")
            self.assertIn(f"has no tensor `{removed}`", caught.exception.message)


if __name__ == "__main__":
    unittest.main()
