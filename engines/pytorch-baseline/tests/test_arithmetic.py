"""Tests the engine's results against a second implementation in NumPy."""

import math
import unittest
from types import SimpleNamespace

from support import CONFIG, LLAMA3_ROPE_SCALING, expected_frequency, logits_in_numpy, random_weights
from support import generate, load, write_folder

import numpy
import torch

from engine_kit import Failed
from model import rotary_frequencies
from worker import open_folder

IDS = [0, 17, 42, 9, 9, 61, 3]


def greedy_ids_by_score(model, prompt, count):
    """Decodes greedily: `score` computes the log-probability of every id at every step."""
    ids = list(prompt)
    for _ in range(count):
        logprobs = [model.score([*ids, id])[-1] for id in range(CONFIG["vocab_size"])]
        ids.append(max(range(len(logprobs)), key=logprobs.__getitem__))
    return ids[len(prompt) :]


class Arithmetic(unittest.TestCase):
    def assert_logits_agree(self, changes, dtype=torch.float32, **fields):
        config = {**CONFIG, **changes}
        weights = random_weights(config, dtype)
        model = load(write_folder(self, changes, weights), **fields)
        with torch.no_grad():
            logits = model._logits(IDS).double().numpy()
        expected = logits_in_numpy(config, weights, IDS)
        self.assertGreater(numpy.abs(expected).max(), 0.1)
        numpy.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
        return logits

    def test_llama_logits_equal_the_second_implementation(self):
        self.assert_logits_agree({})

    def test_a_head_dimension_in_the_config_is_used(self):
        self.assert_logits_agree({"head_dim": 16})

    def test_tied_embeddings_are_the_output_matrix(self):
        self.assert_logits_agree({"tie_word_embeddings": True})

    def test_qwen2_adds_a_bias_to_queries_keys_and_values(self):
        with_bias = self.assert_logits_agree({"model_type": "qwen2"})
        without_bias = self.assert_logits_agree({})
        self.assertGreater(numpy.abs(with_bias - without_bias).max(), 0.01)

    def test_half_precision_weights_are_widened_exactly(self):
        for dtype in (torch.bfloat16, torch.float16):
            self.assert_logits_agree({}, dtype)

    def test_rope_scaling_changes_the_logits_as_defined(self):
        # With 32 positions, the head has frequencies that are unchanged, in between, and divided by the factor.
        scaling = {**LLAMA3_ROPE_SCALING, "original_max_position_embeddings": 32}
        scaled = self.assert_logits_agree({"rope_scaling": scaling, "head_dim": 16})
        self.assertGreater(numpy.abs(scaled - self.assert_logits_agree({"head_dim": 16})).max(), 0.001)

    def test_llama3_frequencies_follow_the_published_definition(self):
        # Llama 3.2 1B: 64 dimensions a head, theta 500000, factor 32, trained on 8192 positions.
        changes = {"head_dim": 64, "rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE_SCALING}
        shape = open_folder(write_folder(self, changes)).shape
        frequencies = rotary_frequencies(shape).tolist()
        for pair, value in enumerate(frequencies):
            self.assertAlmostEqual(value / expected_frequency(pair, 64, {**CONFIG, **changes}), 1.0, places=5)
        # By hand: pair 0 rotates 1 radian a token. Pair 31 rotates 500000^(-62/64) radians, divided by the factor 32.
        self.assertEqual(frequencies[0], 1.0)
        self.assertAlmostEqual(frequencies[31] * 32 * 500000 ** (62 / 64), 1.0, places=5)
        # Pair 16 has a wavelength of 2 pi sqrt(500000) = 4443 tokens. This is between 8192 / 4 and 8192 (`low_freq_factor`
        # 1, `high_freq_factor` 4), so the frequency is a weighted mean.
        weight = (8192 / (2 * math.pi * math.sqrt(500000)) - 1) / 3
        self.assertAlmostEqual(frequencies[16] * math.sqrt(500000), (1 - weight) / 32 + weight, places=5)

    def test_old_and_new_rope_fields_give_the_same_frequencies(self):
        old_fields = {"rope_theta": 500000.0, "rope_scaling": LLAMA3_ROPE_SCALING}
        new_fields = {"rope_theta": None, "rope_parameters": {**LLAMA3_ROPE_SCALING, "rope_theta": 500000.0}}
        old, new = (open_folder(write_folder(self, fields)).shape for fields in (old_fields, new_fields))
        self.assertTrue(torch.equal(rotary_frequencies(old), rotary_frequencies(new)))


class Generating(unittest.TestCase):
    def test_decoded_ids_have_the_highest_scores(self):
        model = load(write_folder(self))
        ids = generate(model, IDS, 8, ignore_eos=True)
        self.assertEqual(len(ids), 8)
        self.assertEqual(ids, greedy_ids_by_score(model, IDS, 8))

    def test_score_is_the_log_softmax_of_the_logits_of_the_second_implementation(self):
        weights = random_weights(CONFIG)
        model = load(write_folder(self, weights=weights))
        logits = logits_in_numpy(CONFIG, weights, IDS)
        expected = [row[id] - math.log(numpy.exp(row).sum()) for row, id in zip(logits, IDS[1:])]
        numpy.testing.assert_allclose(model.score(IDS), expected, atol=1e-4)

    def test_the_most_likely_ids_equal_a_greedy_continuation(self):
        model = load(write_folder(self))
        ids = [*IDS, *generate(model, IDS, 8, ignore_eos=True)]
        logprobs, most_likely, values = model.score_with_most_likely(ids)
        self.assertEqual(logprobs, model.score(ids))
        self.assertEqual(most_likely[len(IDS) - 1 :], ids[len(IDS) :])
        self.assertEqual(values[len(IDS) - 1 :], logprobs[len(IDS) - 1 :])
        self.assertTrue(all(value >= logprob for value, logprob in zip(values, logprobs)))

    def test_weights_that_are_not_finite_fail_requests(self):
        for value in (float("nan"), float("inf")):
            weights = random_weights(CONFIG)
            weights["model.norm.weight"][5] = value
            path = write_folder(self, weights=weights)
            model, message = load(path), f"model `{path.name}`: its weights lead to logits that are NaN or infinite"
            sampling = SimpleNamespace(temperature=1.0, top_k=0, top_p=None, seed=3)
            for request in (
                lambda: generate(model, [0, 5], 4),
                lambda: generate(model, [0, 5], 4, sampling=sampling),
                lambda: model.score([0, 5, 9]),
            ):
                with self.assertRaises(Failed) as caught:
                    request()
                self.assertEqual((caught.exception.kind, caught.exception.message), ("model", message))

    def test_equal_requests_give_equal_ids_and_another_seed_gives_other_ids(self):
        from types import SimpleNamespace

        model = load(write_folder(self))

        def sample_ids(seed):
            sampling = SimpleNamespace(temperature=1.0, top_k=0, top_p=None, seed=seed)
            return generate(model, IDS, 12, sampling=sampling, ignore_eos=True)

        self.assertEqual(generate(model, IDS, 12), generate(model, IDS, 12))
        self.assertEqual(sample_ids(1), sample_ids(1))
        self.assertNotEqual(sample_ids(1), sample_ids(2))

    def test_eos_ends_a_sequence_unless_the_request_ignores_it(self):
        expected = generate(load(write_folder(self)), IDS, 6, ignore_eos=True)
        model = load(write_folder(self, {"eos_token_id": [62, expected[2]]}))
        self.assertEqual(generate(model, IDS, 6, ignore_eos=True), expected)
        self.assertEqual(generate(model, IDS, 6), expected[: expected.index(expected[2]) + 1])


if __name__ == "__main__":
    unittest.main()
