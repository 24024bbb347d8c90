"""Tests generation, scores and texts: a batch, the cache and the division of a prompt into calls do not change the tokens."""

import math
import unittest
import weakref
from types import SimpleNamespace
from unittest import mock

from support import EXACT_OPTIONS, load_model

import context
from engine_kit import Failed, Sampler
from engine_tests import RequestTests, generate
from worker import LlamaCpp

IDS = [0, 17, 42, 9]
# Longer than a pass of 512 tokens.
LONG = [(7 * index * index + 3 * index) % 2000 for index in range(700)]


class Requests(RequestTests, unittest.TestCase):
    capabilities = LlamaCpp().hello()["capabilities"]

    @classmethod
    def setUpClass(cls):
        cls.model = load_model(options=EXACT_OPTIONS)

    def logits(self, ids, size=2048):
        """The logits after the last of these ids, in calls of at most `size` ids."""
        context = self.model._contexts.empty_context(1, len(ids))
        for start in range(0, len(ids), size):
            (logits,) = context.compute([(0, start, ids[start : start + size], 1)])
        return logits.copy()

    def greedy_without_cache(self, prompt, new_tokens):
        """The greedy ids. Each is computed from the whole sequence before it."""
        ids = list(prompt)
        for _ in range(new_tokens):
            ids.append(int(self.logits(ids).argmax()))
        return ids[len(prompt) :]

    def test_greedy_ids_with_and_without_a_cache_equal_the_ids_of_whole_passes(self):
        expected = self.greedy_without_cache(IDS, 12)
        self.assertEqual(generate(self.model, [IDS], 12, ignore_eos=True), [expected])
        self.assertEqual(generate(self.model, [IDS], 12, ignore_eos=True, use_cache=False), [expected])

    def test_a_request_for_one_token_gets_one_token(self):
        self.assertEqual(generate(self.model, [IDS], 1, ignore_eos=True), [self.greedy_without_cache(IDS, 1)])

    def test_a_prompt_gives_the_same_ids_in_calls_of_96_ids_and_of_512(self):
        self.assertLess(abs(self.logits(LONG, 96) - self.logits(LONG)).max(), 1e-3)
        single, batch = (self.model._contexts.empty_context(sequences, len(LONG) + 6) for sequences in (1, 2))
        expected = generate(self.model, [LONG, IDS], 6, ignore_eos=True)
        with mock.patch.object(single, "pass_tokens", 96), mock.patch.object(batch, "pass_tokens", 96):
            self.assertEqual(generate(self.model, [LONG], 6, ignore_eos=True), expected[:1])
            self.assertEqual(generate(self.model, [LONG, IDS], 6, ignore_eos=True), expected)
            self.assertEqual(generate(self.model, [IDS, LONG], 6, ignore_eos=True), expected[::-1])

    @mock.patch.object(context, "DEFAULT_POSITIONS", 256)
    def test_a_longer_request_enlarges_the_context_and_the_next_request_keeps_it(self):
        model = load_model(options=EXACT_OPTIONS)
        first = model._contexts.single
        self.assertEqual(first.positions, 256)
        expected = generate(self.model, [LONG], 4, ignore_eos=True)
        self.assertEqual(generate(model, [LONG], 4, ignore_eos=True), expected)
        self.assertEqual(model._contexts.single.positions, 1024)  # 704, rounded up to a power of two
        larger = model._contexts.single
        generate(model, [IDS], 4, ignore_eos=True)
        self.assertIs(model._contexts.single, larger)
        self.assertEqual(model.facts()["context_tokens"], 2048)

    @mock.patch.object(context, "DEFAULT_POSITIONS", 256)
    def test_a_context_that_is_too_small_is_freed_before_a_larger_context_is_made(self):
        model = load_model(options=EXACT_OPTIONS)
        contexts, first = model._contexts, weakref.ref(model._contexts.single)
        new_context = contexts._new_context

        def new_context_after_check(*sizes):
            self.assertIsNone(first())
            return new_context(*sizes)

        contexts._new_context = new_context_after_check
        generate(model, [LONG], 2, ignore_eos=True)
        self.assertEqual(contexts.single.positions, 1024)

    def test_a_context_that_cannot_be_made_fails_only_its_request(self):
        model = load_model(options=EXACT_OPTIONS)
        expected = generate(model, [IDS], 4, ignore_eos=True)
        failure = Failed("out_of_memory", "no memory")
        with mock.patch.object(model._contexts, "_new_context", side_effect=failure), self.assertRaises(Failed):
            model._contexts.empty_context(1, 4096)
        self.assertEqual(model.facts()["threads"], 2)
        self.assertEqual(generate(model, [IDS], 4, ignore_eos=True), expected)

    def test_scores_are_the_log_probabilities_of_the_logits_of_generation(self):
        ids = LONG[:40]
        for end, logprob in enumerate(self.model.score(ids), 1):
            logits = [float(logit) for logit in self.logits(ids[:end])]
            largest = max(logits)
            expected = logits[ids[end]] - largest - math.log(sum(math.exp(logit - largest) for logit in logits))
            self.assertAlmostEqual(logprob, expected, delta=1e-3)

    def test_a_score_in_the_second_pass_equals_the_score_of_a_shorter_text(self):
        scores = self.model.score(LONG)
        self.assertEqual(len(scores), len(LONG) - 1)
        # This id is in the second pass.
        self.assertAlmostEqual(scores[519], self.model.score(LONG[:521])[-1], delta=1e-3)

    def test_greedy_takes_the_lowest_id_among_equal_logits(self):
        import numpy

        choose = self.model._chooser(SimpleNamespace(sampling=None))
        self.assertEqual(choose(numpy.array([0, 3, 1, 3], numpy.float32), 0), 1)

    def test_sampled_ids_equal_the_ids_of_the_kits_sampler(self):
        sampling = SimpleNamespace(temperature=0.8, top_k=40, top_p=0.9, seed=7)
        sampler, ids = Sampler(sampling), list(IDS)
        for _ in range(8):
            ids.append(sampler.pick(self.logits(ids).tolist()))
        self.assertEqual(generate(self.model, [IDS], 8, ignore_eos=True, sampling=sampling), [ids[len(IDS) :]])

    def test_a_text_survives_encoding_and_decoding(self):
        ids = self.model.encode("The old keeper, été 😀")
        self.assertEqual(ids[0], self.model.facts()["bos_id"])
        self.assertEqual(self.model.decode(ids).strip(), "The old keeper, été 😀")
        self.assertEqual(self.model.decode([]), "")


if __name__ == "__main__":
    unittest.main()
