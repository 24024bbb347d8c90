"""Tests overlapping requests: each gets the ids that it gets alone, and a request that leaves costs nothing more."""

import unittest
import weakref
from types import SimpleNamespace
from unittest import mock

from support import EXACT_OPTIONS, gguf_file, load_model

import context
from engine_kit import Failed, Job, Tokens
from engine_tests import IDS, assert_requests_overlap, generate
from slots import CONCURRENCY, share_of

# Longer than a pass of 512 tokens.
LONG = [(7 * index * index + 3 * index) % 2000 for index in range(700)]


class Running:
    """Requests in the slots of a model. `calls` has the parts of every call of `Context.compute`, with the number of ids in place
    of the ids."""

    def __init__(self, model):
        self.model, self.tokens, self.sizes, self.ids, self.calls = model, {}, {}, {}, []

    def join(self, slot, prompts, new_tokens, **fields):
        job = Job(prompts, new_tokens, ignore_eos=True, **fields)
        self.model.admit(slot, job)
        self.tokens[slot], self.sizes[slot] = Tokens(job, (), 0, 0), len(prompts)

    def step(self, times=1):
        """Makes steps. Requests that are done leave, as with the kit."""
        compute = context.Context.compute

        def recorded(self_, parts):
            self.calls.append([(sequence, start, len(ids), wanted) for sequence, start, ids, wanted in parts])
            return compute(self_, parts)

        with mock.patch.object(context.Context, "compute", recorded):
            for _ in range(times):
                self.model.step([self.tokens.get(slot) for slot in range(max(self.tokens) + 1)])
                for slot in [slot for slot, tokens in self.tokens.items() if tokens.all_done()]:
                    self.leave(slot)

    def leave(self, slot):
        tokens = self.tokens.pop(slot)
        self.model.leave(slot)
        self.ids[slot] = [tokens.ids(sequence) for sequence in range(self.sizes[slot])]

    def finish(self):
        """Makes steps until every request has left. Returns the ids of each slot."""
        while self.tokens:
            self.step()
        return self.ids


class Overlap(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = load_model(options=EXACT_OPTIONS)

    def setUp(self):
        self.running = Running(self.model)
        # A test that fails must not leave its requests to the next one.
        self.addCleanup(lambda: [self.running.leave(slot) for slot in list(self.running.tokens)])

    def alone(self, *requests):
        """The ids of each of these requests, `(prompts, new_tokens)`, when it runs alone."""
        return [generate(self.model, prompts, new_tokens, ignore_eos=True) for prompts, new_tokens in requests]

    def assert_ids(self, ids, expected):
        self.assertEqual([ids[slot] for slot in sorted(ids)], expected)

    def test_overlapping_requests_of_different_lengths_get_the_ids_of_each_alone(self):
        requests = [([IDS[:5]], 24), ([LONG], 6), ([IDS[5:38]], 12), ([IDS[50:180]], 3)]
        expected = self.alone(*requests)
        for slot, request in enumerate(requests):
            self.running.join(slot, *request)
        self.assert_ids(self.running.finish(), expected)

    def test_a_request_that_joins_later_gets_the_ids_of_it_alone_and_a_free_number(self):
        requests = [([IDS[:20]], 30), ([IDS[20:30]], 4), ([IDS[40:70]], 20), ([IDS[70:150]], 9)]
        expected = self.alone(*requests)
        for slot in range(3):
            self.running.join(slot, *requests[slot])
            self.running.step(2)
        self.running.step(2)
        self.assertEqual(list(self.running.tokens), [0, 2])
        # The second request has left number 0 of the shared context. The third one had number 1, and has number 0 now.
        self.running.join(1, *requests[3])
        self.running.step()
        self.assertEqual(self.running.calls[-1], [(0, 33, 1, 1), (1, 0, 80, 1)])
        self.assertEqual(self.running.ids.pop(1), expected[1])
        self.assert_ids(self.running.finish(), [expected[0], expected[3], expected[2]])

    def test_a_batch_and_a_request_beside_it_get_the_ids_of_each_alone(self):
        batch, single = ([IDS[:20], IDS[20:33], IDS[40:70]], 12), ([IDS[80:99]], 15)
        expected = self.alone(batch, single)
        for first, second in ((batch, single), (single, batch)):
            self.running = Running(self.model)
            self.running.join(0, *first)
            self.running.step(3)
            self.running.join(1, *second)
            self.assert_ids(self.running.finish(), expected if first is batch else expected[::-1])

    def test_a_batch_beyond_the_shared_context_gets_the_ids_of_it_alone(self):
        large, single = ([IDS[start : start + 9] for start in range(CONCURRENCY + 1)], 6), ([IDS[80:99]], 15)
        expected = self.alone(single, large)
        self.running.join(0, *single)
        self.running.step()
        self.running.join(1, *large)
        self.assert_ids(self.running.finish(), expected)

    def test_requests_without_a_cache_and_with_sampling_get_the_ids_of_each_alone(self):
        sampling = SimpleNamespace(temperature=0.9, top_k=40, top_p=0.9, seed=11)
        fields = [{"use_cache": False}, {"sampling": sampling}, {}, {"sampling": sampling, "use_cache": False}]
        prompts = [[IDS[20 * slot : 20 * slot + 15]] for slot in range(4)]
        expected = [generate(self.model, it, 10, ignore_eos=True, **more) for it, more in zip(prompts, fields)]
        for slot, more in enumerate(fields):
            self.running.join(slot, prompts[slot], 10, **more)
            self.running.step()
        self.assert_ids(self.running.finish(), expected)

    def test_a_cancelled_request_costs_nothing_from_the_next_step_on(self):
        requests = [([IDS[:20]], 20), ([LONG], 40), ([IDS[40:70]], 20), ([IDS[70:90]], 8)]
        expected = self.alone(*requests)
        for slot in range(3):
            self.running.join(slot, *requests[slot])
        self.running.step()
        # The long prompt has been computed in part, at number 0 of the shared context.
        self.assertEqual(self.running.calls[-1], [(0, 0, 482, 0), (1, 0, 30, 1)])
        self.running.leave(1)
        self.assertEqual(self.running.ids.pop(1), [[]])
        self.running.step()
        self.assertEqual(self.running.calls[-2:], [[(0, 20, 1, 1)], [(0, 30, 1, 1)]])
        # A number is free, and so are its positions.
        self.running.join(1, *requests[3])
        self.running.step()
        self.assertEqual(self.running.calls[-1], [(0, 31, 1, 1), (1, 0, 20, 1)])
        self.assert_ids(self.running.finish(), [expected[0], expected[3], expected[2]])

    def test_requests_that_leave_between_others_leave_no_gap_and_change_no_ids(self):
        requests = [([IDS[10 * slot : 10 * slot + 10 + slot]], 30 if slot in (0, 3, 6, 7) else 4 + slot // 4) for slot in range(8)]
        expected = self.alone(*requests, ([IDS[120:150]], 12))
        for slot, request in enumerate(requests):
            self.running.join(slot, *request)
        self.running.step(6)
        self.assertEqual(list(self.running.tokens), [0, 3, 6, 7])
        self.running.step()
        # The shared context had slot 3 at number 2, slot 6 at 5 and slot 7 at 6.
        self.assertEqual([number for number, *_ in self.running.calls[-1]], [0, 1, 2])
        early = {slot: self.running.ids.pop(slot) for slot in (1, 2, 4, 5)}
        self.assert_ids(early, [expected[slot] for slot in (1, 2, 4, 5)])
        self.running.join(1, [IDS[120:150]], 12)
        self.assert_ids(self.running.finish(), [expected[slot] for slot in (0, 8, 3, 6, 7)])

    def test_a_step_has_one_call_for_each_context_and_at_most_a_pass_of_prompt_ids(self):
        self.running.join(0, [IDS[:20]], 30)
        self.running.step()
        for slot in (1, 2, 3):
            self.running.join(slot, [LONG], 2)
        calls = []
        while len(self.running.tokens) > 1:
            self.running.calls.clear()
            self.running.step()
            calls.append(self.running.calls[:])
        self.assertEqual({len(of_step) for of_step in calls}, {2})
        shared = [[count for _, _, count, _ in of_step[1]] for of_step in calls]
        # 700 ids in equal shares of 512 / 3 ids, then the second token of each.
        self.assertEqual(shared, [[170] * 3] * 4 + [[20] * 3, [1] * 3])

    def test_prompts_have_equal_shares_of_a_pass_and_a_long_one_has_what_shorter_ones_leave(self):
        few = [([], 512), ([700], 512), ([700, 30], 482)]
        for lengths, expected in [*few, ([700, 700, 700], 170), ([300, 100, 100], 512), ([300, 100, 300], 206)]:
            self.assertEqual(share_of(lengths, 512), expected, lengths)
        # With as many prompts as a batch may have, each still gets some.
        self.assertEqual(share_of([700] * 64, 100), 1)

    @mock.patch.object(context, "DEFAULT_POSITIONS", 256)
    def test_a_request_longer_than_the_shared_context_gets_a_context_that_ends_with_it(self):
        model = load_model(options=EXACT_OPTIONS)
        requests = [([IDS[:20]], 24), ([LONG], 6), ([IDS[40:70]], 5)]
        expected = self.alone(*requests)
        self.running, made = Running(model), []
        own_context = model._contexts.own_context

        def recorded(*sizes):
            made.append(weakref.ref(new := own_context(*sizes)))
            return new

        with mock.patch.object(model._contexts, "own_context", recorded):
            for slot, request in enumerate(requests):
                self.running.join(slot, *request)
                self.running.step()
        self.assertEqual([(it().sequences, it().positions) for it in made], [(1, 1024)])
        self.assertEqual(model._contexts.shared.positions, 256)
        self.assert_ids(self.running.finish(), expected)
        self.assertIsNone(made[0]())

    def test_a_context_that_cannot_be_made_fails_only_the_request_that_needs_it(self):
        model = load_model(options=EXACT_OPTIONS)
        self.running = Running(model)
        (expected,) = self.alone(([IDS[:20]], 10))
        self.running.join(0, [IDS[:20]], 10)
        self.running.step()
        failure = Failed("out_of_memory", "no memory")
        with mock.patch.object(model._contexts, "_new_context", side_effect=failure), self.assertRaises(Failed):
            self.running.join(1, [IDS[:9]], 4)
        self.assert_ids(self.running.finish(), [expected])


class Process(unittest.TestCase):
    def test_the_engine_answers_overlapping_requests_and_a_cancel(self):
        load = {"model": str(gguf_file("f32")), "threads": 2, "options": EXACT_OPTIONS}
        assert_requests_overlap(self, "llama-cpp", load)


if __name__ == "__main__":
    unittest.main()
