"""Tests path `fast` with int8 matrices: their rounding, and that results equal those of the dequantized weights.
Only the class `Compiled` compiles the step."""

import unittest
from unittest import mock

from support import CONFIG, load, random_weights, write_folder

from engine_tests import FULL_TESTS, generate
import torch

import fast
import fast_network
from fast_network import Int8Matrix, int8_product, linear_in_pieces
from engine_kit import Failed
from fast_support import CONFIGS, FAST, write_model

INT8 = {**FAST, "quantize": "int8"}
IDS = [5, 17, 3, 60, 22, 9, 41, 8, 33, 12, 50, 2, 27, 19]


def load_dequantized(path, int8_model, dtype):
    """Loads a model in `dtype`, with the dequantized matrices of `int8_model`. Returns the model and its number of matrices."""
    model = load(path, FAST, dtype=dtype)
    parameters = dict(model.network.named_parameters())
    matrices = {name: module for name, module in int8_model.network.named_modules() if isinstance(module, Int8Matrix)}
    for name, matrix in matrices.items():
        parameters[name].copy_(matrix.codes.float() * matrix.scales[:, None])
    return model, len(matrices)


class Rounding(unittest.TestCase):
    def test_the_rounding_error_of_a_weight_is_at_most_half_a_scale(self):
        torch.manual_seed(1)
        tensor = torch.randn(70, 96) * torch.logspace(-30, 30, 70)[:, None]
        tensor[3] = 0.0
        tensor[5] = -2.0
        for dtype in (torch.float32, torch.bfloat16):
            matrix, weights = Int8Matrix(80, 96), tensor.to(dtype)
            # Pieces of 9 rows, so that this tensor is written in pieces like a large tensor.
            with mock.patch.dict(fast_network.WEIGHTS_PER_PIECE, cpu=9 * 96):
                self.assertTrue(matrix.write(10, weights))
            codes, scales = matrix.codes[10:], matrix.scales[10:]
            difference = (codes.double() * scales[:, None] - weights.double()).abs()
            self.assertTrue((difference <= (0.5 + 1e-5) * scales[:, None].double()).all())
            largest_codes = codes.abs().amax(-1)
            self.assertEqual(largest_codes.unique().tolist(), [0, 127])
            self.assertEqual((largest_codes == 0).nonzero().tolist(), [[3]])

    def test_a_weight_that_is_not_finite_is_reported(self):
        for invalid in (float("nan"), float("inf")):
            tensor = torch.ones(6, 8)
            tensor[4, 2] = invalid
            self.assertFalse(Int8Matrix(6, 8).write(0, tensor))

    def test_an_int8_product_equals_the_product_with_the_dequantized_weights(self):
        torch.manual_seed(2)
        # Rows for 4, 1 and 2 panels. 6000 columns are more than one sum takes.
        for rows, columns in ((12, 40), (7, 40), (10, 6000)):
            matrix, bias = Int8Matrix(rows, columns), torch.randn(rows)
            matrix.write(0, torch.randn(rows, columns))
            for x_rows in (1, 3):
                x = torch.randn(x_rows, columns)
                expected = x.double() @ (matrix.codes.double() * matrix.scales[:, None]).T + bias
                with mock.patch.object(torch.compiler, "is_compiling", lambda: True):
                    by_loop = int8_product(x, matrix.codes, matrix.scales, bias)
                with mock.patch.dict(fast_network.WEIGHTS_PER_PIECE, cpu=3 * columns):
                    in_pieces = linear_in_pieces(x, matrix.codes, matrix.scales, bias)
                for output in (by_loop, in_pieces, int8_product(x, matrix.codes, matrix.scales, bias)):
                    self.assertEqual(output.shape, expected.shape)
                    self.assertLess((output - expected).abs().max(), 2e-4 * expected.abs().max())


@mock.patch.object(fast.CompiledStep, "_compile", lambda self, step: step)
class Network(unittest.TestCase):
    def test_every_architecture_has_equal_results_in_int8_and_with_the_dequantized_weights(self):
        for name in CONFIGS:
            for dtype in ("f32", "bf16"):
                with self.subTest(name, dtype=dtype):
                    path = write_model(self, name)
                    model = load(path, INT8, dtype=dtype)
                    dequantized, matrices = load_dequantized(path, model, dtype)
                    # Four matrices in each of 3 layers, the embedding, and a head that is not tied.
                    self.assertEqual(matrices, 3 * 4 + 1 + (dequantized.network.head is not None))
                    self.assertEqual(model.score(IDS), dequantized.score(IDS))
                    prompts = [IDS, IDS[:3]]
                    expected = generate(dequantized, prompts, 12, ignore_eos=True)
                    self.assertEqual(generate(model, prompts, 12, ignore_eos=True), expected)

    def test_int8_scores_are_near_the_scores_in_f32(self):
        path = write_model(self, "llama")
        f32_scores = load(path, FAST, dtype="f32").score(IDS)
        for dtype, max_difference in (("f32", 0.3), ("bf16", 0.4), ("f16", 0.3)):
            scores = load(path, INT8, dtype=dtype).score(IDS)
            self.assertNotEqual(scores, f32_scores)
            for score, f32_score in zip(scores, f32_scores, strict=True):
                self.assertAlmostEqual(score, f32_score, delta=max_difference)

    def test_facts_report_the_weights_in_memory(self):
        path = write_folder(self)
        facts, bf16_facts = load(path, INT8).facts(), load(path, FAST).facts()
        self.assertEqual([facts[f"{name}_dtype"] for name in ("weights", "compute", "kv")], ["int8", "bf16", "bf16"])
        self.assertEqual(facts["parameters"], bf16_facts["parameters"])
        # A code has 1 byte, the scale of a row and the weight of a norm 4. Two layers, then the embedding and the head.
        codes = 2 * (32 * (32 + 16 + 16 + 32) + 3 * 32 * 64) + 2 * 64 * 32
        rows, norms = 2 * (64 + 32 + 128 + 32) + 2 * 64, 5 * 32
        self.assertEqual(facts["parameters"], codes + norms)
        self.assertEqual(facts["weights_bytes"], codes + 4 * rows + 4 * norms)
        self.assertRegex(facts["libraries"]["quantized by"], "^this engine itself .*int8 weight-only, a scale for each row$")
        self.assertNotIn("quantized by", bf16_facts["libraries"])

    def test_a_tensor_that_is_not_finite_or_has_another_shape_is_named(self):
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


@unittest.skipUnless(FULL_TESTS, "compiles for minutes; ORCHESTRATE_FULL_TESTS=1 runs it")
class Compiled(unittest.TestCase):
    def test_the_compiled_step_gives_the_ids_of_the_model_with_the_dequantized_weights(self):
        path = write_model(self, "llama with biases")
        model = load(path, INT8, dtype="f32")
        with mock.patch.object(fast.CompiledStep, "_compile", lambda self, step: step):
            dequantized, _ = load_dequantized(path, model, "f32")
        prompts = [IDS, IDS[:1], IDS[2:7]]
        separate_ids = [generate(dequantized, [prompt], 24, ignore_eos=True)[0] for prompt in prompts]
        self.assertEqual([generate(model, [prompt], 24, ignore_eos=True)[0] for prompt in prompts], separate_ids)
        for left, right in zip(model.score(IDS), dequantized.score(IDS), strict=True):
            self.assertAlmostEqual(left, right, delta=1e-4)
        # A batch of 3 uses the compiled loop over the codes. A batch of 12 uses the dequantized matrix.
        self.assertEqual(generate(model, prompts, 24, ignore_eos=True), separate_ids)
        self.assertEqual(generate(model, prompts * 4, 24, ignore_eos=True), separate_ids * 4)


if __name__ == "__main__":
    unittest.main()
