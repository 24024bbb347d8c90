"""Tests quantized weights: their facts, and how much the scores differ from those of the unquantized model."""

import unittest
from unittest import mock

from support import load, write_folder

from engine_tests import FULL_TESTS, generate
import torch

from engine_kit import Failed
from quantize import DynamicLinear

IDS = [0, 17, 42, 9]
# The numbers of weights of the small model. The embedding has as many as the head. `int8-dynamic` also quantizes the head.
LAYER_WEIGHTS, HEAD_WEIGHTS, NORM_WEIGHTS = 2 * (32 * (32 + 16 + 16 + 32) + 3 * 32 * 64), 64 * 32, 5 * 32


class Quantized(unittest.TestCase):
    def rms_score_difference(self, model, other):
        ids = [id % 64 for id in range(3, 100)]
        pairs = list(zip(model.score(ids), other.score(ids)))
        return (sum((left - right) ** 2 for left, right in pairs) / len(pairs)) ** 0.5

    def test_int8_with_f32_uses_pytorch(self):
        path = write_folder(self)
        model = load(path, {"quantize": "int8-dynamic"})
        facts = model.facts()
        self.assertEqual([facts[name] for name in ("weights_dtype", "compute_dtype", "kv_dtype")], ["int8", "int8", "f32"])
        self.assertTrue(facts["libraries"]["quantized by"].startswith("torch.ao.quantization.quantize_dynamic, "))
        # Every row has a scale of 8 bytes. The embedding and the norms stay in f32.
        rows = 2 * (32 + 16 + 16 + 32 + 64 + 64 + 32) + 64
        self.assertEqual(facts["weights_bytes"], LAYER_WEIGHTS + HEAD_WEIGHTS + 8 * rows + 4 * (HEAD_WEIGHTS + NORM_WEIGHTS))
        self.assertEqual(facts["parameters"], LAYER_WEIGHTS + 2 * HEAD_WEIGHTS + NORM_WEIGHTS)
        self.assertTrue(1e-4 < self.rms_score_difference(model, load(path)) < 0.5)
        self.assertEqual(len(generate(model, [IDS, [7]], 6, ignore_eos=True)[1]), 6)

    def quantize_layer(self, linear):
        """Quantizes a layer by PyTorch's dynamic quantization, with this engine's `DynamicLinear`."""
        network, configs = torch.nn.Sequential(linear), {torch.nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
        with mock.patch("torch.cpu._is_vnni_supported", lambda: True):
            return torch.ao.quantization.quantize_dynamic(network, configs, mapping={torch.nn.Linear: DynamicLinear})

    def relative_error(self, output, expected):
        return float(((output - expected).norm(dim=-1) / expected.norm(dim=-1)).max())

    @torch.no_grad()
    def test_each_token_has_its_own_scale_in_a_batch_and_alone(self):
        torch.manual_seed(2)
        for bias in (True, False):
            linear = torch.nn.Linear(64, 96, bias=bias)
            # With one scale for all tokens, the first token would become zeros.
            tokens = torch.randn(2, 3, 64) * torch.tensor([1e-2, 1.0, 1e3])[:, None]
            network, expected = self.quantize_layer(linear), linear(tokens)
            self.assertIs(type(network[0]), DynamicLinear)
            self.assertLess(self.relative_error(network(tokens), expected), 0.02)
            self.assertLess(self.relative_error(network(tokens[1:, :1]), expected[1:, :1]), 0.02)
        # The activations of a pad can all be 0, and must not become NaN.
        self.assertEqual(float(network(torch.zeros(2, 64)).abs().max()), 0.0)

    def test_activations_have_8_bits_with_vnni_and_7_bits_without(self):
        for vnni, message in [(True, "activations in 8 bits"), (False, "activations in 7 of 8 bits (no VNNI)")]:
            reduce_range_arguments = []

            def product(x, packed, reduce_range):
                reduce_range_arguments.append(reduce_range)
                return x.new_zeros(*x.shape[:-1], len(packed.unpack()[0]))

            with mock.patch("torch.cpu._is_vnni_supported", lambda: vnni):
                model = load(write_folder(self), {"quantize": "int8-dynamic"})
            with mock.patch("torch.ops.quantized.linear_dynamic", product):
                model.score(IDS)
            self.assertEqual(set(reduce_range_arguments), {not vnni})
            self.assertIn(message, model.facts()["libraries"]["quantized by"])

    def test_int8_with_bf16_uses_torchao(self):
        path = write_folder(self)
        model = load(path, {"quantize": "int8-dynamic"}, dtype="bf16")
        self.assertRegex(model.facts()["libraries"]["quantized by"], r"^torchao [\d.]+, Int8DynamicActivationInt8Weight$")
        self.assertTrue(1e-4 < self.rms_score_difference(model, load(path)) < 0.5)

    def test_int4_by_torchao_does_not_quantize_the_output_head(self):
        path = write_folder(self)
        model = load(path, {"quantize": "int4"})
        facts = model.facts()
        self.assertEqual([facts[name] for name in ("weights_dtype", "compute_dtype", "kv_dtype")], ["int4", "bf16", "bf16"])
        self.assertRegex(facts["libraries"]["quantized by"], r"^torchao [\d.]+, int4 weight-only, opaque, groups of 32$")
        # Every 32 weights have a scale and a zero point in bf16.
        self.assertEqual(facts["weights_bytes"], LAYER_WEIGHTS // 2 + LAYER_WEIGHTS // 32 * 4 + 2 * (2 * HEAD_WEIGHTS + NORM_WEIGHTS))
        self.assertTrue(1e-4 < self.rms_score_difference(model, load(path)) < 1.0)
        self.assertEqual(len(generate(model, [IDS], 6, ignore_eos=True)[0]), 6)

    def test_layers_that_cannot_be_divided_into_groups_are_refused(self):
        with self.assertRaises(Failed) as caught:
            load(write_folder(self, {"intermediate_size": 48}), {"quantize": "int4"})
        self.assertEqual(caught.exception.kind, "unsupported")
        self.assertIn("layers of [32, 48] inputs cannot be divided into groups of 32", caught.exception.message)

    @unittest.skipUnless(FULL_TESTS, "compiles for minutes; ORCHESTRATE_FULL_TESTS=1 runs it")
    def test_a_step_with_quantized_weights_can_be_compiled(self):
        path = write_folder(self)
        for quantize in ("int8-dynamic", "int4"):
            model = load(path, {"path": "compile", "quantize": quantize})
            self.assertTrue(model.facts()["libraries"]["quantized by"].startswith("torchao"))
            self.assertEqual(len(generate(model, [IDS], 6, ignore_eos=True)[0]), 6)


if __name__ == "__main__":
    unittest.main()
