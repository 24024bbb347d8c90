"""Tests quantised weights: the facts match the memory."""

import unittest
from unittest import mock

from support import FULL, generate, load, write_folder

import torch

from engine_kit import Failed
from quantize import DynamicLinear

IDS = [0, 17, 42, 9]
# Sizes of the small model: the matrices of its layers are quantised, and for int8 also the head.
LAYERS, HEAD, NORMS = 2 * (32 * (32 + 16 + 16 + 32) + 3 * 32 * 64), 64 * 32, 5 * 32


class Quantised(unittest.TestCase):
    def score_distance(self, model, reference):
        ids = [id % 64 for id in range(3, 100)]
        pairs = list(zip(model.score(ids), reference.score(ids)))
        return (sum((left - right) ** 2 for left, right in pairs) / len(pairs)) ** 0.5

    def test_int8_by_pytorchs_recipe_is_named_and_stays_near_the_model(self):
        path = write_folder(self)
        model = load(path, {"quantize": "int8-dynamic"})
        facts = model.facts()
        self.assertEqual([facts[name] for name in ("weights_dtype", "compute_dtype", "kv_dtype")], ["int8", "int8", "f32"])
        self.assertTrue(facts["libraries"]["quantized by"].startswith("torch.ao.quantization.quantize_dynamic, "))
        rows = 2 * (32 + 16 + 16 + 32 + 64 + 64 + 32) + 64
        self.assertEqual(facts["weights_bytes"], LAYERS + HEAD + 8 * rows + 4 * (HEAD + NORMS))
        self.assertEqual(facts["parameters"], LAYERS + 2 * HEAD + NORMS)
        self.assertTrue(1e-4 < self.score_distance(model, load(path)) < 0.5)
        self.assertEqual(len(generate(model, [IDS, [7]], 6, ignore_eos=True)[1]), 6)

    def quantised(self, linear, vnni=True):
        """PyTorch's recipe with this engine's product."""
        network, scaled = torch.nn.Sequential(linear), {torch.nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
        with mock.patch("torch.cpu._is_vnni_supported", lambda: vnni):
            return torch.ao.quantization.quantize_dynamic(network, scaled, mapping={torch.nn.Linear: DynamicLinear})

    def relative_error(self, found, expected):
        return float(((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max())

    @torch.no_grad()
    def test_each_token_has_its_own_scale_alone_and_among_others(self):
        torch.manual_seed(2)
        for bias in (True, False):
            linear = torch.nn.Linear(64, 96, bias=bias)
            # With one scale for all, the first of these would be zeros.
            tokens = torch.randn(2, 3, 64) * torch.tensor([1e-2, 1.0, 1e3])[:, None]
            network, expected = self.quantised(linear), linear(tokens)
            self.assertIs(type(network[0]), DynamicLinear)
            self.assertLess(self.relative_error(network(tokens), expected), 0.02)
            self.assertLess(self.relative_error(network(tokens[1:, :1]), expected[1:, :1]), 0.02)
        # Pads may be all zeros.
        self.assertEqual(float(network(torch.zeros(2, 64)).abs().max()), 0.0)

    def test_activations_use_8_bits_if_sums_are_wide_enough(self):
        for vnni, message in [(True, "activations in 8 bits"), (False, "activations in 7 of 8 bits (no VNNI)")]:
            fields = []

            def product(x, packed, reduce_range):
                fields.append(reduce_range)
                return x.new_zeros(*x.shape[:-1], len(packed.unpack()[0]))

            with mock.patch("torch.cpu._is_vnni_supported", lambda: vnni):
                model = load(write_folder(self), {"quantize": "int8-dynamic"})
            with mock.patch("torch.ops.quantized.linear_dynamic", product):
                model.score(IDS)
            self.assertEqual(set(fields), {not vnni})
            self.assertIn(message, model.facts()["libraries"]["quantized by"])

    def test_int8_with_half_precision_uses_torchao(self):
        path = write_folder(self)
        model = load(path, {"quantize": "int8-dynamic"}, dtype="bf16")
        self.assertRegex(model.facts()["libraries"]["quantized by"], r"^torchao [\d.]+, Int8DynamicActivationInt8Weight$")
        self.assertTrue(1e-4 < self.score_distance(model, load(path)) < 0.5)

    def test_int4_by_torchao_does_not_quantise_the_output_head(self):
        path = write_folder(self)
        model = load(path, {"quantize": "int4"})
        facts = model.facts()
        self.assertEqual([facts[name] for name in ("weights_dtype", "compute_dtype", "kv_dtype")], ["int4", "bf16", "bf16"])
        self.assertRegex(facts["libraries"]["quantized by"], r"^torchao [\d.]+, int4 weight-only, opaque, groups of 32$")
        # A scale and a zero in bf16 for every 32 weights.
        self.assertEqual(facts["weights_bytes"], LAYERS // 2 + LAYERS // 32 * 4 + 2 * (2 * HEAD + NORMS))
        self.assertTrue(1e-4 < self.score_distance(model, load(path)) < 1.0)
        self.assertEqual(len(generate(model, [IDS], 6, ignore_eos=True)[0]), 6)

    def test_layers_that_cannot_be_divided_into_groups_are_refused(self):
        with self.assertRaises(Failed) as caught:
            load(write_folder(self, {"intermediate_size": 48}), {"quantize": "int4"})
        self.assertEqual(caught.exception.kind, "unsupported")
        self.assertIn("layers of [32, 48] inputs cannot be divided into groups of 32", caught.exception.message)

    @unittest.skipUnless(FULL, "compiles: minutes on a small machine")
    def test_quantised_weights_go_through_the_compiler(self):
        path = write_folder(self)
        for quantize in ("int8-dynamic", "int4"):
            model = load(path, {"path": "compile", "quantize": quantize})
            self.assertTrue(model.facts()["libraries"]["quantized by"].startswith("torchao"))
            self.assertEqual(len(generate(model, [IDS], 6, ignore_eos=True)[0]), 6)


if __name__ == "__main__":
    unittest.main()
