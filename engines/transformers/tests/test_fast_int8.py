"""Tests path `fast` with int8 matrices: their rounding, and that all else equals a run with the dequantised numbers.
The step runs uncompiled unless a test compiles it."""

import unittest
from unittest import mock

from support import FULL, load, run, write_folder

import torch

import fast
import fast_network
from fast_network import Int8Matrix, int8_product, linear_in_pieces
from engine_kit import Failed
from fast_support import CASES, FAST, write_case

INT8 = {**FAST, "quantize": "int8"}
IDS = [5, 17, 3, 60, 22, 9, 41, 8, 33, 12, 50, 2, 27, 19]


def generated_ids(model, prompts, new_tokens, **job):
    tokens = run(model, prompts, new_tokens, ignore_eos=True, **job)
    return [tokens.ids(sequence) for sequence in range(len(prompts))]


def spelled_out(path, int8, dtype):
    """The model in `dtype`, with each matrix dequantised from the codes of `int8`."""
    model = load(path, FAST, dtype=dtype)
    parameters = dict(model.network.named_parameters())
    matrices = {name: module for name, module in int8.network.named_modules() if isinstance(module, Int8Matrix)}
    for name, matrix in matrices.items():
        parameters[name].copy_(matrix.codes.float() * matrix.scales[:, None])
    return model, len(matrices)


class Rounding(unittest.TestCase):
    def test_no_number_differs_from_its_code_by_more_than_half_a_scale(self):
        torch.manual_seed(1)
        tensor = torch.randn(70, 96) * torch.logspace(-30, 30, 70)[:, None]
        tensor[3] = 0.0
        tensor[5] = -2.0
        for dtype in (torch.float32, torch.bfloat16):
            matrix, narrow = Int8Matrix(80, 96), tensor.to(dtype)
            # A few rows at a time, as for a large tensor.
            with mock.patch.dict(fast_network.PIECE_NUMBERS, cpu=9 * 96):
                self.assertTrue(matrix.write(10, narrow))
            codes, scales = matrix.codes[10:], matrix.scales[10:]
            difference = (codes.double() * scales[:, None] - narrow.double()).abs()
            self.assertTrue((difference <= (0.5 + 1e-5) * scales[:, None].double()).all())
            used = codes.abs().amax(-1)
            self.assertEqual(used.unique().tolist(), [0, 127])
            self.assertEqual((used == 0).nonzero().tolist(), [[3]])

    def test_a_number_that_is_not_finite_is_reported(self):
        for invalid in (float("nan"), float("inf")):
            tensor = torch.ones(6, 8)
            tensor[4, 2] = invalid
            self.assertFalse(Int8Matrix(6, 8).write(0, tensor))

    def test_sums_over_codes_equal_the_product_with_the_dequantised_numbers(self):
        torch.manual_seed(2)
        for rows, columns in ((12, 40), (7, 40), (10, 6000)):
            matrix, bias = Int8Matrix(rows, columns), torch.randn(rows)
            matrix.write(0, torch.randn(rows, columns))
            for count in (1, 3):
                x = torch.randn(count, columns)
                expected = x.double() @ (matrix.codes.double() * matrix.scales[:, None]).T + bias
                with mock.patch.object(torch.compiler, "is_compiling", lambda: True):
                    summed = int8_product(x, matrix.codes, matrix.scales, bias)
                with mock.patch.dict(fast_network.PIECE_NUMBERS, cpu=3 * columns):
                    in_pieces = linear_in_pieces(x, matrix.codes, matrix.scales, bias)
                for found in (summed, in_pieces, int8_product(x, matrix.codes, matrix.scales, bias)):
                    self.assertEqual(found.shape, expected.shape)
                    self.assertLess((found - expected).abs().max(), 2e-4 * expected.abs().max())


@mock.patch.object(fast.CompiledStep, "_compile", lambda self, step: step)
class Network(unittest.TestCase):
    def test_every_architecture_computes_the_same_with_codes_and_with_the_dequantised_numbers(self):
        for name in CASES:
            for dtype in ("f32", "bf16"):
                with self.subTest(name, dtype=dtype):
                    path = write_case(self, name)
                    model = load(path, INT8, dtype=dtype)
                    reference, count = spelled_out(path, model, dtype)
                    self.assertEqual(count, 3 * 4 + 1 + (reference.network.head is not None))
                    # Uncompiled, the products are identical.
                    self.assertEqual(model.score(IDS), reference.score(IDS))
                    self.assertEqual(generated_ids(model, [IDS, IDS[:3]], 12), generated_ids(reference, [IDS, IDS[:3]], 12))

    def test_int8_stays_near_the_original_model(self):
        path = write_case(self, "llama")
        single = load(path, FAST, dtype="f32").score(IDS)
        for dtype, difference in (("f32", 0.3), ("bf16", 0.4), ("f16", 0.3)):
            scores = load(path, INT8, dtype=dtype).score(IDS)
            self.assertNotEqual(scores, single)
            for left, right in zip(scores, single, strict=True):
                self.assertAlmostEqual(left, right, delta=difference)

    def test_facts_state_the_weights_in_memory(self):
        path = write_folder(self)
        facts, reference = load(path, INT8).facts(), load(path, FAST).facts()
        self.assertEqual([facts[f"{name}_dtype"] for name in ("weights", "compute", "kv")], ["int8", "bf16", "bf16"])
        self.assertEqual(facts["parameters"], reference["parameters"])
        codes, rows, norms = 2 * (32 * (32 + 16 + 16 + 32) + 3 * 32 * 64) + 2 * 64 * 32, 2 * (64 + 32 + 128 + 32) + 2 * 64, 5 * 32
        self.assertEqual(facts["parameters"], codes + norms)
        self.assertEqual(facts["weights_bytes"], codes + 4 * rows + 4 * norms)
        self.assertRegex(facts["libraries"]["quantized by"], "^this engine itself .*int8 weight-only, a scale for each row$")
        self.assertNotIn("quantized by", reference["libraries"])

    def test_a_tensor_that_is_not_finite_or_has_another_shape_is_named(self):
        from support import CONFIG, random_weights

        name = "model.layers.0.mlp.up_proj.weight"
        for change, text in (("nan", "not finite"), ("cut", r"expected the shape \[64, 32\], found \[3, 32\]")):
            weights = random_weights(CONFIG)
            if change == "nan":
                weights[name][7, 3] = float("nan")
            else:
                weights[name] = weights[name][:3].clone()
            with self.assertRaises(Failed) as caught:
                load(write_folder(self, weights=weights), INT8)
            self.assertEqual(caught.exception.kind, "model")
            self.assertRegex(caught.exception.message, f"`{name}`.*{text}")


@unittest.skipUnless(FULL, "ORCHESTRATE_FULL_TESTS=1 compiles")
class Compiled(unittest.TestCase):
    def test_the_compiled_step_gives_the_ids_of_the_model_with_the_dequantised_numbers(self):
        path = write_case(self, "llama with biases")
        model = load(path, INT8, dtype="f32")
        with mock.patch.object(fast.CompiledStep, "_compile", lambda self, step: step):
            reference, _ = spelled_out(path, model, "f32")
        prompts = [IDS, IDS[:1], IDS[2:7]]
        separate = [generated_ids(reference, [prompt], 24)[0] for prompt in prompts]
        self.assertEqual([generated_ids(model, [prompt], 24)[0] for prompt in prompts], separate)
        for left, right in zip(model.score(IDS), reference.score(IDS), strict=True):
            self.assertAlmostEqual(left, right, delta=1e-4)
        # One batch within the compiler's own sums, and one too large for them.
        self.assertEqual(generated_ids(model, prompts, 24), separate)
        self.assertEqual(generated_ids(model, prompts * 4, 24), separate * 4)


if __name__ == "__main__":
    unittest.main()
