"""Tests generation and scores in f32: they equal the forward passes of transformers, and batches, caches and earlier requests do
not change them."""

import math
import shutil
import unittest
from types import SimpleNamespace

from support import LLAMA_3, greedy_ids_of_transformers, load_model, random_model, scores_of_transformers

import engine_tests
from engine_kit import Failed, Job, Tokens
from engine_tests import RequestTests, generate, scratch
from worker import OpenVINO

IDS = [0, 17, 42, 9]
# Longer than three blocks of the KV cache, and than the windows below.
LONG = [(7 * index * index + 3 * index) % 97 for index in range(120)]

# Features that no shape `tiny-*` has. A window hides most of `LONG`.
FEATURES = [
    ("scaled RoPE, tied output", "llama", dict(rope_parameters=LLAMA_3, tie_word_embeddings=True)),
    ("biases", "llama", dict(attention_bias=True, mlp_bias=True, tie_word_embeddings=False)),
    ("window", "mistral", dict(sliding_window=8)),
    ("window and partial RoPE", "phi3", dict(sliding_window=8, partial_rotary_factor=0.5, num_key_value_heads=4)),
    ("window in one layer", "qwen2", dict(sliding_window=8, use_sliding_window=True, max_window_layers=1)),
    ("linear scaling", "llama", dict(rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0))),
    ("yarn", "llama", dict(rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=64))),
]


class Requests(RequestTests, unittest.TestCase):
    capabilities = OpenVINO().hello()["capabilities"]
    ids = [id % 97 for id in engine_tests.IDS]

    @classmethod
    def setUpClass(cls):
        cls.network, cls.model = random_model().network, load_model(random_model())

    def test_features_of_architectures_give_the_output_of_transformers(self):
        for name, architecture, fields in FEATURES:
            with self.subTest(name):
                made = random_model(name, architecture, **fields)
                model = load_model(made)
                expected = scores_of_transformers(made.network, LONG)
                difference = max(abs(a - b) for a, b in zip(model.score(LONG), expected, strict=True))
                self.assertLess(difference, 1e-4)
                ids = generate(model, [LONG[:60]], 16, ignore_eos=True)
                self.assertEqual(ids, [greedy_ids_of_transformers(made.network, LONG[:60], 16)])

    def test_greedy_ids_with_and_without_a_cache_equal_the_ids_of_whole_passes(self):
        expected = greedy_ids_of_transformers(self.network, IDS, 12)
        self.assertEqual(generate(self.model, [IDS], 12, ignore_eos=True), [expected])
        self.assertEqual(generate(self.model, [IDS], 12, ignore_eos=True, use_cache=False), [expected])
        self.assertEqual(generate(self.model, [IDS], 1, ignore_eos=True), [expected[:1]])

    def test_the_library_does_not_stop_at_the_eos_id_of_the_folder(self):
        made = random_model()
        third = greedy_ids_of_transformers(self.network, IDS, 3)[2]
        folder = scratch() / "another-eos"
        shutil.copytree(made.converted, folder)
        (folder / "generation_config.json").write_text(f'{{"eos_token_id": {third}}}')
        model = load_model(SimpleNamespace(folder=made.folder, converted=folder))
        expected = greedy_ids_of_transformers(self.network, IDS, 8)
        self.assertEqual(generate(model, [IDS], 8, ignore_eos=True), [expected])

    def test_a_cancelled_request_ends_early_and_leaves_the_pipeline_free(self):
        job = Job([IDS, LONG], 50, ignore_eos=True)
        tokens = Tokens(job, [], 0, 0)
        push = tokens.push

        def push_and_cancel(sequence, id):
            tokens.cancelled = len(tokens.ids(0)) >= 3
            return push(sequence, id)

        tokens.push = push_and_cancel
        self.model.generate(job, tokens)
        self.assertLess(len(tokens.ids(1)), 10)
        self.assertFalse(self.model.is_busy())

    def test_sampling_depends_on_the_seed_and_on_each_sequence(self):
        def sampled(seed, **fields):
            settings = SimpleNamespace(temperature=1.5, top_k=0, top_p=None, seed=seed)
            return generate(self.model, [IDS, IDS], 12, ignore_eos=True, sampling=settings, **fields)

        self.assertEqual(sampled(1), sampled(1))
        self.assertNotEqual(sampled(1), sampled(2))
        first, second = sampled(1)
        self.assertNotEqual(first, second)
        self.assertGreater(len(set(sampled(1, use_cache=False)[0])), 3)

    def test_the_most_likely_token_alone_is_drawn_with_a_top_k_of_1_and_with_a_small_top_p(self):
        greedy = generate(self.model, [IDS], 8, ignore_eos=True)
        for top_k, top_p in ((1, None), (0, 1e-6)):
            settings = SimpleNamespace(temperature=2.0, top_k=top_k, top_p=top_p, seed=1)
            self.assertEqual(generate(self.model, [IDS], 8, ignore_eos=True, sampling=settings), greedy, (top_k, top_p))

    def test_logits_that_are_nan_fail_the_request(self):
        # The weights of the file are the exporter's, except that the final norm is NaN.
        made = random_model()
        folder = scratch() / "nan"
        shutil.copytree(made.converted, folder)
        norm = made.network.model.norm.weight.detach().numpy().tobytes()
        weights = (folder / "openvino_model.bin").read_bytes()
        self.assertEqual(weights.count(norm), 1)
        (folder / "openvino_model.bin").write_bytes(weights.replace(norm, b"\xff" * len(norm)))
        model = load_model(SimpleNamespace(folder=made.folder, converted=folder))
        sampling = SimpleNamespace(temperature=1.0, top_k=0, top_p=None, seed=1)
        for fields in ({}, {"use_cache": False}, {"sampling": sampling}):
            with self.assertRaises(Failed, msg=fields) as caught:
                generate(model, [IDS], 4, ignore_eos=True, **fields)
            self.assertEqual(caught.exception.kind, "model")
            self.assertFalse(model.is_busy())
        with self.assertRaises(Failed):
            model.score(IDS)
        self.assertTrue(all(map(math.isfinite, self.model.score(IDS))))


if __name__ == "__main__":
    unittest.main()
