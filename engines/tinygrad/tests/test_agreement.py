"""Compares the engine with `pytorch-baseline`: the embedded model in several dtypes, and the shapes `tiny-*` that the engine loads. The
tests are skipped if the environment of `pytorch-baseline` is not set up."""

import unittest

from support import gguf_file, load_model

from checkout import EMBEDDED
from engine_kit import Phases
from engine_tests import FULL_TESTS, OutputTests, expected_outputs, status_of_planted_conversion, tiny_model
from gguf_model import convert

# The shapes of the architectures that the engine loads. The first has Llama 3's RoPE scaling.
SHAPES = ["tiny-llama", "tiny-qwen2", "tiny-qwen3"]


class Agreement(OutputTests, unittest.TestCase):
    # The bounds have a margin for other machines' kernels.
    max_drift = {"bf16": 0.01, "q8_0": 0.1, "q4_k": 0.5}

    @classmethod
    def setUpClass(cls):
        cls.folders = {shape: tiny_model(shape) for shape in SHAPES} | {"embedded": EMBEDDED}
        cls.expected = expected_outputs(cls.folders)

    def load_as(self, name, dtype):
        return load_model(gguf_file(dtype, self.folders[name]))

    @unittest.skipUnless(FULL_TESTS, "runs the program; ORCHESTRATE_FULL_TESTS=1 runs it")
    def test_a_run_finds_a_conversion_of_other_weights(self):
        status = status_of_planted_conversion("tinygrad", lambda model: convert(model, "f32", Phases()))
        self.assertEqual(status, "wrong")


if __name__ == "__main__":
    unittest.main()
