"""Tests batches and the cache. A sequence has the same tokens in a batch and alone, with the cache and without it."""

import json
import unittest
from pathlib import Path
from types import SimpleNamespace

from seeded import seeded_ids
from support import generate, generate_batch, load, make_weights, write_folder

import numpy
import torch

from batch import Batch
from engine_kit import Failed

GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())
CASES = GOLDEN["cases"]
LAYOUTS = ["left", "right", "packed"]
# The longest prompt is longer than the sliding windows of the cases. So is the longest padding, that of the prompt of one token.
LENGTHS = [3, 64, 17, 1]
NEW_TOKENS = 6


def load_case(test, case, **options):
    return load(write_folder(test, weights=make_weights(case), config=case["config"]), options=options)


def prompts_of(case, lengths=LENGTHS):
    ids = seeded_ids(sum(lengths), case["config"]["vocab_size"])
    return [[ids.pop() for _ in range(length)] for length in lengths]


class Batches(unittest.TestCase):
    def test_each_sequence_of_a_batch_has_the_ids_that_it_has_alone_without_a_cache(self):
        for name, case in CASES.items():
            model, prompts = load_case(self, case, kv_cache=True), prompts_of(case)
            alone = [generate(model, prompt, NEW_TOKENS, use_cache=False, ignore_eos=True) for prompt in prompts]
            for layout in LAYOUTS:
                for use_cache in (False, True):
                    with self.subTest(name, layout=layout, use_cache=use_cache):
                        job = dict(padding=layout, use_cache=use_cache, ignore_eos=True)
                        self.assertEqual(generate_batch(model, prompts, NEW_TOKENS, **job), alone)

    def test_pads_and_other_sequences_change_no_logit_beyond_rounding(self):
        for name, case in CASES.items():
            model, prompts = load_case(self, case), prompts_of(case)
            with torch.no_grad():
                alone = [model._logits(prompt)[-1] for prompt in prompts]
                for layout in LAYOUTS:
                    with self.subTest(name, layout=layout):
                        batch = Batch(prompts, layout, torch.device("cpu"))
                        logits = model._decoder(batch)[batch.last]
                        numpy.testing.assert_allclose(logits, torch.stack(alone), rtol=0, atol=1e-5)

    def test_a_batch_of_equal_lengths_has_no_pads_in_any_layout(self):
        for layout in LAYOUTS:
            batch = Batch([[5, 6], [7, 8]], layout, torch.device("cpu"))
            self.assertEqual(sorted(batch.ids.flatten().tolist()), [5, 6, 7, 8])

    def test_a_sequence_that_ends_early_does_not_change_the_others(self):
        case = CASES["llama"]
        prompts = prompts_of(case, [5, 9])
        first, second = (generate(load_case(self, case), prompt, 8, ignore_eos=True) for prompt in prompts)
        (eos, *_) = [id for id in first[1:7] if id not in second]
        path = write_folder(self, {"eos_token_id": eos}, make_weights(case), config=case["config"])
        for options in ({}, {"kv_cache": True}):
            outputs = generate_batch(load(path, options=options), prompts, 8)
            self.assertEqual(outputs, [first[: first.index(eos) + 1], second])

    def test_the_first_sequence_is_sampled_as_it_is_alone(self):
        case = CASES["llama"]
        sampling = SimpleNamespace(temperature=1.0, top_k=0, top_p=None, seed=5)
        model, prompts = load_case(self, case), prompts_of(case)
        sampled = generate_batch(model, prompts, 12, sampling=sampling, ignore_eos=True)
        self.assertEqual(sampled[0], generate(model, prompts[0], 12, sampling=sampling, ignore_eos=True))
        again, _ = generate_batch(model, [prompts[0]] * 2, 12, sampling=sampling, ignore_eos=True)
        self.assertEqual(again, sampled[0])

    def test_two_equal_prompts_are_sampled_with_different_random_numbers(self):
        case = CASES["llama"]
        sampling = SimpleNamespace(temperature=1.0, top_k=0, top_p=None, seed=5)
        first, second = generate_batch(load_case(self, case), [[1, 2]] * 2, 12, sampling=sampling, ignore_eos=True)
        self.assertNotEqual(first, second)


class CacheOption(unittest.TestCase):
    def columns_of_steps(self, model, **job):
        """The number of columns that each step of a request computes."""
        columns = []
        hook = model._decoder.register_forward_pre_hook(lambda _, inputs: columns.append(inputs[0].ids.shape[1]))
        generate(model, [5, 6, 7], 4, ignore_eos=True, **job)
        hook.remove()
        return columns

    def test_a_request_uses_the_cache_only_if_load_and_request_ask_for_it(self):
        case = CASES["llama"]
        default, cached = load_case(self, case), load_case(self, case, kv_cache="true")
        self.assertEqual(self.columns_of_steps(default), [3, 4, 5, 6])
        self.assertEqual(self.columns_of_steps(cached, use_cache=False), [3, 4, 5, 6])
        self.assertEqual(self.columns_of_steps(cached), [3, 1, 1, 1])

    def test_facts_report_whether_the_cache_is_used(self):
        default, cached = load_case(self, CASES["llama"]).facts(), load_case(self, CASES["llama"], kv_cache=True).facts()
        self.assertEqual((default["use_cache"], default.get("kv_dtype")), (False, None))
        self.assertEqual((cached["use_cache"], cached["kv_dtype"]), (True, "f32"))

    def test_a_value_of_kv_cache_other_than_true_or_false_is_refused(self):
        with self.assertRaises(Failed) as caught:
            load_case(self, CASES["llama"], kv_cache="yes")
        self.assertEqual(caught.exception.message, "option `kv_cache`: expected true or false, found `yes`")


if __name__ == "__main__":
    unittest.main()
