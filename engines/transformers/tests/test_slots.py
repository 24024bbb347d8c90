"""Tests overlapping requests on the paths `generate` and `loop`: each gets the ids that it gets alone, and a request that leaves costs
nothing more."""

import itertools
import unittest
import weakref
from types import SimpleNamespace

from support import CONFIG, load, random_weights, write_folder, write_network

import engine_tests
from checkout import EMBEDDED
from engine_kit import Failed, Job, Tokens
from engine_tests import generate
from options import CONCURRENCY

PATHS = ("generate", "loop")
IDS = [(7 * index * index + 3 * index + 1) % 60 for index in range(90)]
# A request computes more tokens alone than any test requests, if no other joins.
UNTIL_DONE = 1000


class Running:
    """Requests in the slots of a model. `calls` has the shape of the ids of each call of the network."""

    def __init__(self, model):
        self.model, self.tokens, self.sizes, self.ids, self.failures, self.calls = model, {}, {}, {}, {}, []

    def join(self, slot, prompts, new_tokens, alone=1, **fields):
        """Admits a request. If it begins alone, its first step ends after `alone` tokens."""
        job = Job(prompts, new_tokens, **{"ignore_eos": True, **fields})
        self.model.admit(slot, job)
        checks = itertools.count(1)
        eos_ids = self.model.facts()["eos_ids"]
        self.tokens[slot] = Tokens(job, eos_ids, 0, 0, check_step=lambda: next(checks) >= alone)
        self.sizes[slot] = len(prompts)

    def step(self, times=1):
        """Makes steps. Requests that are done leave, as with the kit."""
        record = lambda network, arguments, keywords: self.calls.append(tuple(keywords["input_ids"].shape))
        hook = self.model.network.register_forward_pre_hook(record, with_kwargs=True)
        try:
            for _ in range(times):
                if not self.tokens:
                    return
                self.model.step([self.tokens.get(slot) for slot in range(max(self.tokens) + 1)])
                for slot in [slot for slot, tokens in self.tokens.items() if tokens.all_done()]:
                    self.leave(slot)
        finally:
            hook.remove()

    def leave(self, slot):
        tokens = self.tokens.pop(slot)
        self.model.leave(slot)
        try:
            tokens.cancelled = True
            sequences = tokens.iteration()["sequences"]
            self.ids[slot] = [sequence["output_ids"] for sequence in sequences]
        except Failed as failed:
            self.failures[slot] = failed

    def finish(self):
        """Makes steps until every request has left. Returns the ids of each slot, in the order of the slots."""
        while self.tokens:
            self.step()
        return [self.ids[slot] for slot in sorted(self.ids)]


class Overlap(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = write_folder(SimpleNamespace(addCleanup=cls.addClassCleanup))
        cls.models = [load(cls.folder, {"path": path}) for path in PATHS]

    def tearDown(self):
        for model in self.models:
            # A test that fails must not leave its requests to the next one.
            for slot in range(CONCURRENCY + 1):
                model.leave(slot)
            self.assertIsNone(model._steps)

    def alone(self, model, *requests):
        """The ids of each of these requests, `(prompts, new_tokens)`, when it runs alone."""
        return [generate(model, prompts, new_tokens, ignore_eos=True) for prompts, new_tokens in requests]

    def test_requests_of_different_lengths_that_begin_together_get_the_ids_of_each_alone(self):
        requests = [([IDS[:5]], 24), ([IDS[:70]], 6), ([IDS[5:38]], 12), ([[7]], 40), ([IDS[20:25]], 1)]
        for model in self.models:
            running = Running(model)
            for slot, request in enumerate(requests):
                running.join(slot, *request)
            self.assertEqual(running.finish(), self.alone(model, *requests))

    def test_requests_that_join_and_leave_at_different_steps_get_the_ids_of_each_alone(self):
        requests = [([IDS[:20]], 30), ([IDS[20:23]], 4), ([IDS[:60]], 9), ([IDS[70:79]], 9), ([IDS[40:70]], 20)]
        for model in self.models:
            running = Running(model)
            for slot, request in enumerate(requests):
                running.join(slot, *request, alone=3)
                running.step(2)
            self.assertEqual(sorted(running.tokens), [0, 2, 3, 4])
            self.assertEqual(running.finish(), self.alone(model, *requests))

    def test_a_step_computes_one_prompt_and_one_call_for_all_rows(self):
        for model in self.models:
            running = Running(model)
            running.join(0, [IDS[:20]], 30, alone=4)
            running.step()
            self.assertEqual(running.calls, [(1, 20)] + [(1, 1)] * 3)
            running.join(1, [IDS[:9]], 30)
            running.join(2, [IDS[:7], IDS[:3]], 30)
            running.calls.clear()
            running.step(3)
            self.assertEqual(running.calls, [(1, 1), (1, 9), (2, 1), (2, 7), (4, 1)])

    def test_a_request_alone_makes_the_calls_of_a_request_without_slots(self):
        for model in self.models:
            expected, running = Running(model), Running(model)
            hook = model.network.register_forward_pre_hook(
                lambda network, arguments, keywords: expected.calls.append(tuple(keywords["input_ids"].shape)), with_kwargs=True
            )
            ids = generate(model, [IDS[:20]], 12, ignore_eos=True)
            hook.remove()
            running.join(0, [IDS[:20]], 12, alone=UNTIL_DONE)
            running.step()
            self.assertEqual((running.tokens, running.ids, running.calls), ({}, {0: ids}, expected.calls))

    def test_batches_with_either_padding_and_a_request_beside_them_get_the_ids_of_each_alone(self):
        ragged, equal, single = [IDS[:20], [9], IDS[40:70]], [IDS[:8], IDS[8:16]], [IDS[80:]]
        for model in self.models:
            expected = self.alone(model, (ragged, 12), (equal, 5), (single, 15))
            for padding in ("left", "right"):
                running = Running(model)
                running.join(0, ragged, 12, alone=3, padding=padding)
                running.step()
                running.join(1, equal, 5, padding=padding)
                running.join(2, single, 15, padding=padding)
                self.assertEqual(running.finish(), expected)
                running = Running(model)
                running.join(2, single, 15)
                running.step()
                running.join(0, ragged, 12, padding=padding)
                running.join(1, equal, 5, padding=padding)
                self.assertEqual(running.finish(), expected)

    def test_requests_without_a_cache_and_with_sampling_get_the_ids_of_each_alone(self):
        sampling = SimpleNamespace(temperature=0.9, top_k=40, top_p=0.9, seed=11)
        fields = [{"sampling": sampling}, {"use_cache": False}, {}, {"sampling": sampling, "use_cache": False}]
        prompts = [[IDS[20 * slot : 20 * slot + 15], IDS[: 5 + slot]] for slot in range(4)]
        for model in self.models:
            expected = [generate(model, it, 10, ignore_eos=True, **more) for it, more in zip(prompts, fields)]
            # Each of them is once the request that begins alone.
            for first in range(4):
                running, order = Running(model), [(first + slot) % 4 for slot in range(4)]
                for slot in order:
                    running.join(slot, prompts[slot], 10, alone=4, **fields[slot])
                    running.step()
                self.assertEqual(running.finish(), expected)

    def test_a_cancelled_request_costs_nothing_from_the_next_step_on(self):
        requests = [([IDS[:20]], 20), ([IDS[:70]], 40), ([IDS[40:70]], 20), ([IDS[70:88]], 8)]
        for model in self.models:
            expected, running = self.alone(model, *requests), Running(model)
            for slot in range(3):
                running.join(slot, *requests[slot])
            running.step(4)
            running.join(3, *requests[3])
            running.leave(1)
            self.assertEqual(running.ids.pop(1), [expected[1][0][:3]])
            # The columns of the long prompt are gone too: the longest remaining row has 30 tokens of a prompt and 1 new one.
            self.assertEqual(model._steps._cache.get_seq_length(), 31)
            running.calls.clear()
            # This one has not begun.
            running.leave(3)
            self.assertEqual(running.ids.pop(3), [[]])
            running.step(2)
            self.assertEqual(running.calls, [(2, 1), (2, 1)])
            self.assertEqual(running.finish(), [expected[0], expected[2]])

    def test_a_request_that_is_cancelled_while_it_runs_alone_costs_nothing_more(self):
        for model in self.models:
            running = Running(model)
            running.join(0, [IDS[:20]], 20, alone=5)
            running.step()
            running.leave(0)
            self.assertEqual([len(ids) for ids in running.ids[0]], [5])
            running.calls.clear()
            running.join(1, [IDS[:9]], 3, alone=UNTIL_DONE)
            running.step()
            self.assertEqual(running.calls, [(1, 9), (1, 1), (1, 1)])

    def test_each_request_ends_at_its_eos_id_unless_it_ignores_eos(self):
        prompts = [[IDS[:5]], [IDS[10:30]], [IDS[40:70], IDS[:9]], [[7]]]
        eos_id = self.alone(self.models[0], (prompts[1], 12))[0][0][4]
        folder = write_folder(self, {"eos_token_id": eos_id})
        for path in PATHS:
            model = load(folder, {"path": path})
            for ignored in (None, 1):
                fields = [{"ignore_eos": slot == ignored} for slot in range(4)]
                expected = [generate(model, it, 12, **more) for it, more in zip(prompts, fields)]
                running = Running(model)
                for slot, more in enumerate(fields):
                    running.join(slot, prompts[slot], 12, **more)
                    running.step()
                self.assertEqual(running.finish(), expected)
            self.assertLess(len(generate(model, prompts[1], 12)[0]), 12)

    def test_rows_within_and_beyond_a_sliding_window_get_the_ids_of_each_alone(self):
        window = {"sliding_window": 12, "rope_theta": 100.0, "pad_token_id": 0}
        switch = {"use_sliding_window": True, "max_window_layers": 1}
        requests = [([IDS[:30]], 20), ([IDS[5:9]], 25), ([IDS[50:61]], 6), ([[8], IDS[:20]], 18)]
        for architecture, fields in {"mistral": {}, "qwen2": switch, "phi3": {}}.items():
            folder = write_network(self, {**CONFIG, "model_type": architecture, **window, **fields})
            for path in PATHS:
                model = load(folder, {"path": path})
                expected = self.alone(model, *requests)
                for order in ([0, 1, 2, 3], [1, 3, 0, 2], [2, 1, 3, 0]):
                    running = Running(model)
                    for slot in order:
                        running.join(slot, *requests[slot], alone=5)
                        running.step(3)
                    self.assertEqual(running.finish(), expected, (architecture, path, order))

    def test_every_kind_of_attention_gives_the_ids_of_each_alone(self):
        requests = [([IDS[:20]], 12), ([IDS[:5]], 9), ([IDS[:40], [3]], 6)]
        for attention in ("eager", "flash"):
            model = load(self.folder, {"path": "loop", "attention": attention})
            running = Running(model)
            for slot, request in enumerate(requests):
                running.join(slot, *request)
                running.step()
            self.assertEqual(running.finish(), self.alone(model, *requests), attention)

    def test_a_request_with_drafts_continues_with_the_same_ids_beside_others(self):
        model = self.models[0]
        requests = [([IDS[:4] * 6], 40), ([IDS[:9]], 12)]
        expected = self.alone(model, *requests)
        for alone in (1, 2, 3):
            running = Running(model)
            running.join(0, *requests[0], alone=alone, speculation="prompt_lookup")
            running.step()
            drafted = running.tokens[0]._sequences[0]["drafted_tokens"]
            self.assertGreater(drafted, 0)
            # Beside others it has no drafts, and neither has one that begins beside others.
            running.join(1, *requests[1], speculation="prompt_lookup")
            running.step()
            later = [running.tokens[slot]._sequences[0]["drafted_tokens"] for slot in (0, 1)]
            self.assertEqual(later, [drafted, 0])
            self.assertEqual(running.finish(), expected)

    def test_a_request_that_fails_does_not_change_the_others(self):
        weights = random_weights(CONFIG)
        weights["model.embed_tokens.weight"][61] = float("nan")
        folder = write_folder(self, weights=weights)
        requests = [([IDS[:20]], 12), ([IDS[:5]], 9)]
        for path in PATHS:
            model = load(folder, {"path": path})
            expected, running = self.alone(model, *requests), Running(model)
            self.assertNotIn(61, [id for ids in expected for sequence in ids for id in sequence])
            running.join(0, *requests[0])
            running.step()
            running.join(1, [[5, 61, 6]], 9)
            running.join(2, [[5, 61, 6]], 9, use_cache=False)
            running.join(3, *requests[1])
            with self.assertRaises(Failed):
                running.join(4, [IDS[:5], IDS[:6]], 9, speculation="prompt_lookup")
            self.assertEqual(running.finish(), expected)
            self.assertEqual([running.failures[slot].kind for slot in (1, 2)], ["model", "model"])

    def test_the_memory_of_the_rows_is_free_after_the_last_one(self):
        for model in self.models:
            running = Running(model)
            for slot in range(2):
                running.join(slot, [IDS[:20]], 5)
                running.step()
            cache = weakref.ref(model._steps._cache)
            self.assertEqual(len(cache().layers[0].keys), 2)
            running.finish()
            self.assertIsNone(cache())

    def test_a_model_that_is_dropped_frees_its_weights_at_once(self):
        model = load(self.folder, {"path": "loop"})
        running = Running(model)
        running.join(0, [IDS[:20]], 3)
        running.finish()
        weights = weakref.ref(model.network.lm_head.weight)
        model = running = None
        self.assertIsNone(weights())


class OneAtATime(unittest.TestCase):
    def test_networks_and_paths_that_cannot_have_rows_take_one_request_at_a_time_and_say_why(self):
        dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
        networks = {
            "its rotations depend on the longest sequence of a batch": {**CONFIG, "rope_parameters": dynamic},
            "it takes no positions beside the ids": {
                "architectures": ["BloomForCausalLM"], "model_type": "bloom", "vocab_size": 64, "hidden_size": 32, "n_layer": 1, "n_head": 2,
            },
            "a layer keeps something else than the keys and values of its tokens": {
                **CONFIG, "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "layer_types": ["conv", "full_attention"],
            },
        }
        for reason, config in networks.items():
            for path in PATHS:
                # The library has no other attention for `bloom`.
                model = load(write_network(self, config), {"path": path, "attention": "eager"})
                self.assertFalse(hasattr(model, "step"), reason)
                self.assertEqual(model.facts()["libraries"]["overlapping requests"], f"one at a time: {reason}")
                self.assertEqual(len(generate(model, [[1, 5, 9]], 4, ignore_eos=True)[0]), 4)
        model = load(write_folder(self), {"path": "jit"})
        self.assertFalse(hasattr(model, "step"))
        self.assertIn("one at a time", model.facts()["libraries"]["overlapping requests"])

    def test_other_networks_say_how_many_requests_overlap(self):
        for path in PATHS:
            libraries = load(write_folder(self), {"path": path}).facts()["libraries"]
            self.assertEqual(libraries["overlapping requests"], f"{CONCURRENCY}, as rows of one growing cache")


class Process(unittest.TestCase):
    def test_the_engine_answers_overlapping_requests_and_a_cancel(self):
        load = {"model": str(EMBEDDED), "dtype": "f32", "threads": 2}
        engine_tests.assert_requests_overlap(self, "transformers", *({**load, "options": {"path": path}} for path in PATHS))


if __name__ == "__main__":
    unittest.main()
