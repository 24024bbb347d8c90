"""Tests converted models with the library: outputs equal those of `pytorch-baseline`, and requests do not change each other."""

import json
import shutil
import unittest

from support import load_converted, load_model

import worker
from checkout import EMBEDDED
from engine_kit import Failed, Phases
from engine_tests import (
    FULL_TESTS, IDS, OutputTests, RefusalTests, RequestTests, call_together, expected_outputs, generate, scratch,
    status_of_planted_conversion, tiny_model, with_nan, with_reversed_rows
)


@unittest.skipUnless(FULL_TESTS, "converts models; ORCHESTRATE_FULL_TESTS=1 runs it")
class Models(OutputTests, RequestTests, RefusalTests):
    max_drift = {"f32": 1e-5, "int8": 0.1}
    capabilities = worker.CTranslate2().hello()["capabilities"] if FULL_TESTS else {}

    @classmethod
    def setUpClass(cls):
        # tiny-llama has the rope scaling `llama3`, which is refused. The embedded model is a llama model without it.
        shapes = {f"tiny-{name}": tiny_model(f"tiny-{name}") for name in worker.ARCHITECTURES if name != "llama"}
        cls.folders, out = {**shapes, "embedded": EMBEDDED}, scratch()
        cls.paths = {(name, "f32"): out / name for name in cls.folders} | {("embedded", "int8"): out / "int8"}
        cls.reversed_rows = out / "reversed-rows"
        conversions = [[cls.folders[name], worker.QUANTIZATIONS[dtype], path] for (name, dtype), path in cls.paths.items()]
        call_together("ctranslate2", "convert", [*conversions, [with_reversed_rows(EMBEDDED), "float32", cls.reversed_rows]])
        cls.expected = expected_outputs(cls.folders)
        cls.model = cls.load_as("embedded", "f32")

    @classmethod
    def load_as(cls, name, dtype, **fields):
        return load_converted(cls.folders[name], cls.paths[name, dtype], dtype, **fields)

    def test_the_facts_report_the_dtypes_in_effect(self):
        for dtype in ("f32", "int8"):
            facts = self.load_as("embedded", dtype).facts()
            self.assertEqual((facts["compute_dtype"], facts["kv_dtype"]), (dtype, "f32"))

    def test_a_dtype_that_the_processor_lacks_is_refused_with_the_supported_ones(self):
        import ctranslate2

        if "int16" in ctranslate2.get_supported_compute_types("cpu"):
            self.skipTest("this processor supports int16")
        self.assert_refused("unsupported", "CTranslate2 supports only `float32`", lambda: load_model(dtype="int16"))

    def test_the_facts_report_the_threads_that_the_library_started(self):
        for threads in (3, 1, 2):
            self.assertEqual(self.load_as("embedded", "f32", threads=threads).facts()["threads"], threads)

    def test_the_text_of_each_token_in_the_vocabulary_is_its_id(self):
        for (name, _), path in self.paths.items():
            size = json.loads((self.folders[name] / "config.json").read_text())["vocab_size"]
            self.assertEqual(json.loads((path / "vocabulary.json").read_text()), [str(id) for id in range(size)], name)

    def test_an_exception_during_a_generation_reaches_the_kit(self):
        def push(sequence, id):
            raise Failed("internal", "the reader has gone")

        self.assert_refused("internal", "the reader has gone", lambda: self.model._generate([IDS[:5]], 4, push))
        self.assertEqual(len(generate(self.model, [IDS[:5]], 4, ignore_eos=True)[0]), 4)

    def test_a_score_of_more_than_1024_tokens_has_every_token(self):
        self.assertEqual(len(self.model.score(IDS * 6)), 6 * len(IDS) - 1)

    def test_weights_of_nan_fail_the_conversion_and_a_converted_nan_fails_the_load(self):
        with self.assertRaises(AssertionError) as raised:
            call_together("ctranslate2", "convert", [[with_nan(EMBEDDED), "float32", scratch() / "nan"]])
        self.assertIn("tensor `model.norm.weight` has numbers that are NaN or infinite", str(raised.exception))
        planted = scratch() / "planted"
        shutil.copytree(self.paths["embedded", "f32"], planted)
        data = bytearray((planted / "model.bin").read_bytes())
        middle = len(data) // 2
        data[middle : middle + 65536] = b"\xff" * 65536  # NaN in f32
        (planted / "model.bin").write_bytes(data)
        self.assert_refused("model", "NaN", lambda: load_converted(EMBEDDED, planted))

    def test_a_run_finds_a_conversion_of_other_weights(self):
        status = status_of_planted_conversion("ctranslate2", lambda model: worker.convert(model, "f32", Phases()), self.reversed_rows)
        self.assertEqual(status, "wrong")


if __name__ == "__main__":
    unittest.main()
