"""Tests converted models with the library: outputs equal those of `pytorch-baseline`, and requests do not change each other."""

import unittest
from types import SimpleNamespace
from unittest import mock

from support import load_converted

import worker
from checkout import EMBEDDED
from engine_kit import Phases, Sampler
from engine_tests import (
    FULL_TESTS, IDS, OutputTests, RefusalTests, RequestTests, call_together, expected_outputs, generate, scratch,
    status_of_planted_conversion, tiny_model, with_nan, with_reversed_rows
)


@unittest.skipUnless(FULL_TESTS, "converts models; ORCHESTRATE_FULL_TESTS=1 runs it")
class Models(OutputTests, RequestTests, RefusalTests):
    max_drift = {"f32": 1e-5, "int8": 0.06, "int4": 0.6}
    capabilities = worker.OnnxRuntime().hello()["capabilities"] if FULL_TESTS else {}

    @classmethod
    def setUpClass(cls):
        cls.folders = {f"tiny-{name}": tiny_model(f"tiny-{name}") for name in worker.ARCHITECTURES} | {"embedded": EMBEDDED}
        names, out = [*((name, "f32") for name in cls.folders), ("embedded", "int8"), ("embedded", "int4")], scratch()
        cls.paths = {(name, dtype): out / f"{name}-{dtype}" for name, dtype in names}
        cls.reversed_rows, cls.nan = out / "reversed-rows", out / "nan"
        conversions = [(cls.folders[name], dtype, path) for (name, dtype), path in cls.paths.items()]
        conversions += [(with_reversed_rows(EMBEDDED), "f32", cls.reversed_rows), (with_nan(EMBEDDED), "f32", cls.nan)]
        level = worker.ACCURACY_LEVELS["int8"]
        call_together("onnxruntime", "build", [[folder, worker.PRECISIONS[dtype], level, path] for folder, dtype, path in conversions])
        cls.expected = expected_outputs(cls.folders)
        cls.model = cls.load_as("embedded", "f32")

    @classmethod
    def load_as(cls, name, dtype, **fields):
        return load_converted(cls.folders[name], cls.paths[name, dtype], dtype, **fields)

    def test_the_facts_report_the_dtypes_in_effect(self):
        for dtype in self.max_drift:
            facts = self.load_as("embedded", dtype).facts()
            self.assertEqual((facts["compute_dtype"], facts["kv_dtype"]), ("f32" if dtype == "f32" else "int8", "f32"))

    def test_the_facts_report_the_threads_that_the_library_started(self):
        for threads in (1, 2, 3):
            self.assertEqual(self.load_as("embedded", "f32", threads=threads).facts()["threads"], threads)

    def test_a_request_continues_after_the_id_at_which_the_library_ends(self):
        import loading

        prompts = self.ragged()
        expected = generate(self.model, prompts, 12, ignore_eos=True)
        for end in {expected[0][3], expected[1][5], expected[2][0]}:
            with mock.patch.object(loading, "Special", lambda pad, end, id=end: SimpleNamespace(pad=pad, end=id)):
                model = self.load_as("embedded", "f32")
            self.assertEqual(generate(model, prompts, 12, ignore_eos=True), expected)
            self.assertEqual(generate(model, prompts[:1], 12, ignore_eos=True), expected[:1])

    def test_a_batch_with_a_prompt_that_ends_with_the_padding_id_is_refused(self):
        prompt = [*IDS[:19], 2047]
        self.assert_refused("unsupported", "padding", lambda: generate(self.model, [prompt, IDS[:20]], 4, ignore_eos=True))
        self.assertEqual(len(generate(self.model, [prompt], 4, ignore_eos=True)[0]), 4)

    def test_sampled_ids_equal_the_ids_of_the_kits_sampler(self):
        sampling = SimpleNamespace(temperature=0.8, top_k=40, top_p=0.9, seed=7)
        ids = generate(self.model, [IDS[:20], IDS[:20]], 6, ignore_eos=True, sampling=sampling)
        for sequence, new_ids in enumerate(ids):
            sampler, prompt = Sampler(sampling), list(IDS[:20])
            for id in new_ids:
                logits = self.model._new_generator([prompt], 1).get_logits()[0, -1]
                self.assertEqual(sampler.pick(logits.tolist(), sequence), id)
                prompt.append(id)
        self.assertNotEqual(*ids)

    def test_weights_of_nan_fail_requests_and_scores(self):
        model = load_converted(EMBEDDED, self.nan)
        sampling = SimpleNamespace(temperature=1.0, top_k=0, top_p=None, seed=1)
        for request in (
            lambda: generate(model, [IDS[:5]], 4, ignore_eos=True),
            lambda: generate(model, [IDS[:5]], 1),
            lambda: generate(model, [IDS[:5], IDS[:3]], 3, use_cache=False),
            lambda: generate(model, [IDS[:5]], 4, sampling=sampling),
            lambda: model.score(IDS[:5]),
        ):
            self.assert_refused("model", "NaN", request)

    def test_a_run_finds_a_conversion_of_other_weights(self):
        def convert(model):
            return worker.convert(model, "f32", "f32", Phases())

        self.assertEqual(status_of_planted_conversion("onnxruntime", convert, self.reversed_rows), "wrong")

    def test_the_logits_of_the_window_are_those_of_the_whole_sequence(self):
        # The window of tiny-phi3 is the longest context of the load.
        self.assertEqual(self.load_as("tiny-phi3", "f32").facts()["context_tokens"], 1023)


if __name__ == "__main__":
    unittest.main()
