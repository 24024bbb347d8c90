"""Tests requests: the same tokens for every layout, cache and sampler."""

import math
import unittest
import unittest.mock
import weakref
from types import SimpleNamespace

from support import EXACT, generate, load

import room
from engine_kit import Failed, Sampler

IDS = [0, 17, 42, 9]
RAGGED = [[0, 17, 42, 9, 3, 8], [0, 5], [7]]
LONG = [(7 * place * place + 3 * place) % 2000 for place in range(700)]


class Requests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = load(options=EXACT)

    def logits(self, ids):
        """The logits after the last of these ids, by one pass."""
        (logits,) = self.model._rooms.of(1, len(ids)).fill([ids])
        return logits.copy()

    def plain(self, prompt, new_tokens):
        """Greedy ids by whole passes only."""
        ids = list(prompt)
        for _ in range(new_tokens):
            ids.append(int(self.logits(ids).argmax()))
        return ids[len(prompt) :]

    def test_greedy_ids_are_those_of_whole_passes_with_a_cache_and_without(self):
        wanted = self.plain(IDS, 12)
        self.assertEqual(generate(self.model, [IDS], 12, ignore_eos=True), [wanted])
        self.assertEqual(generate(self.model, [IDS], 12, ignore_eos=True, use_cache=False), [wanted])

    def test_a_request_for_one_token_gets_one(self):
        self.assertEqual(generate(self.model, [IDS], 1, ignore_eos=True), [self.plain(IDS, 1)])

    def test_a_sequence_of_a_batch_gets_what_it_gets_alone(self):
        alone = [generate(self.model, [prompt], 8, ignore_eos=True)[0] for prompt in RAGGED]
        for padding in ("packed", "left", "right"):
            for use_cache in (True, False):
                asked = dict(ignore_eos=True, padding=padding, use_cache=use_cache)
                self.assertEqual(generate(self.model, RAGGED, 8, **asked), alone, asked)

    def test_sequences_of_a_batch_end_each_at_its_own_time(self):
        model = load(options=EXACT)
        alone = [generate(model, [prompt], 8, ignore_eos=True)[0] for prompt in RAGGED]
        # The third token of the first sequence ends every sequence that has it.
        model._facts["eos_ids"] = [alone[0][2]]
        ended = [ids[: ids.index(alone[0][2]) + 1] if alone[0][2] in ids else ids for ids in alone]
        self.assertEqual(generate(model, RAGGED, 8), ended)
        self.assertEqual(generate(model, RAGGED, 8, use_cache=False), ended)
        self.assertLess(len(ended[0]), 8)

    def test_requests_leave_nothing_behind_for_the_next(self):
        first = generate(self.model, [IDS], 8, ignore_eos=True)
        generate(self.model, [LONG], 30, ignore_eos=True)
        generate(self.model, RAGGED, 4, ignore_eos=True)
        self.model.score(LONG)
        self.assertEqual(generate(self.model, [IDS], 8, ignore_eos=True), first)

    def test_a_prompt_of_several_calls_gives_what_one_call_gives(self):
        whole = self.logits(LONG)
        one, batch = self.model._rooms.of(1, len(LONG)), self.model._rooms.of(2, len(LONG))
        wanted = generate(self.model, [LONG, IDS], 6, ignore_eos=True)
        most = one.batch_tokens, batch.batch_tokens
        one.batch_tokens, batch.batch_tokens = 96, 96
        self.addCleanup(lambda: (setattr(one, "batch_tokens", most[0]), setattr(batch, "batch_tokens", most[1])))
        self.assertLess(abs(self.logits(LONG) - whole).max(), 1e-3)
        self.assertEqual(generate(self.model, [LONG, IDS], 6, ignore_eos=True), wanted)
        self.assertEqual(generate(self.model, [IDS, LONG], 6, ignore_eos=True), wanted[::-1])

    def test_a_request_that_needs_more_room_gets_it_and_the_next_has_it(self):
        self.addCleanup(setattr, room, "FIRST_POSITIONS", room.FIRST_POSITIONS)
        room.FIRST_POSITIONS = 256
        model = load(options=EXACT)
        first = model._rooms.one
        self.assertEqual(first.positions, 256)
        wanted = generate(self.model, [LONG], 4, ignore_eos=True)
        self.assertEqual(generate(model, [LONG], 4, ignore_eos=True), wanted)
        self.assertEqual(model._rooms.one.positions, 1024)
        grown = model._rooms.one
        generate(model, [IDS], 4, ignore_eos=True)
        self.assertIs(model._rooms.one, grown)
        self.assertEqual(model.facts()["context_tokens"], 2048)

    def test_a_room_that_is_outgrown_is_gone_before_the_next_one_is_made(self):
        self.addCleanup(setattr, room, "FIRST_POSITIONS", room.FIRST_POSITIONS)
        room.FIRST_POSITIONS = 256
        model = load(options=EXACT)
        rooms, first = model._rooms, weakref.ref(model._rooms.one)
        made = rooms._made

        def making(*asked):
            self.assertIsNone(first())
            return made(*asked)

        rooms._made = making
        generate(model, [LONG], 2, ignore_eos=True)
        self.assertEqual(rooms.one.positions, 1024)

    def test_a_room_that_cannot_be_made_is_told_of_and_the_next_request_is_answered(self):
        model = load(options=EXACT)
        wanted = generate(model, [IDS], 4, ignore_eos=True)
        rooms, made = model._rooms, model._rooms._made
        rooms._made = unittest.mock.Mock(side_effect=Failed("out_of_memory", "no room"))
        with self.assertRaises(Failed):
            rooms.of(1, 4096)
        rooms._made = made
        self.assertEqual(model.facts()["threads"], 2)
        self.assertEqual(generate(model, [IDS], 4, ignore_eos=True), wanted)

    def test_scores_are_the_logarithms_of_what_generating_chooses_from(self):
        ids = LONG[:40]
        for place, logprob in enumerate(self.model.score(ids), 1):
            wide = [float(value) for value in self.logits(ids[:place])]
            largest = max(wide)
            wanted = wide[ids[place]] - largest - math.log(sum(math.exp(value - largest) for value in wide))
            self.assertAlmostEqual(logprob, wanted, delta=1e-3)

    def test_scores_of_more_than_one_pass_are_those_of_each_prefix(self):
        scores = self.model.score(LONG)
        self.assertEqual(len(scores), len(LONG) - 1)
        # 520 is in the second pass.
        self.assertAlmostEqual(scores[519], self.model.score(LONG[:521])[-1], delta=1e-3)

    def test_among_equal_logits_the_lowest_id_is_taken(self):
        import numpy

        pick = self.model._picking(SimpleNamespace(sampling=None))
        self.assertEqual(pick(numpy.array([0, 3, 1, 3], numpy.float32), 0), 1)

    def test_sampling_is_the_kits_on_these_logits(self):
        sampling = SimpleNamespace(temperature=0.8, top_k=40, top_p=0.9, seed=7)
        sampler, ids = Sampler(sampling), list(IDS)
        for _ in range(8):
            ids.append(sampler.pick(self.logits(ids).tolist()))
        self.assertEqual(generate(self.model, [IDS], 8, ignore_eos=True, sampling=sampling), [ids[len(IDS) :]])

    def test_texts_become_ids_and_ids_texts(self):
        ids = self.model.encode("The old keeper, été 😀")
        self.assertEqual(ids[0], self.model.facts()["bos_id"])
        self.assertEqual(self.model.decode(ids).strip(), "The old keeper, été 😀")
        self.assertEqual(self.model.decode([]), "")


if __name__ == "__main__":
    unittest.main()
