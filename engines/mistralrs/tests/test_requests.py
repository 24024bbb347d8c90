"""Tests generation: the ids of prompts and answers reach and leave mistral.rs unchanged, alone, in a batch, and after other
requests."""

import unittest

from support import Failed, generate, load_model

import id_folder

# Every id is sent as it is, special ones too.
IDS = [0, 17, 42, 9, 1, 2047]
RAGGED = [[0, 17, 42, 9, 3, 8], [0, 5], [7]]


class Requests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = load_model()

    def test_mistral_rs_counts_exactly_the_ids_that_were_sent(self):
        generate(self.model, [IDS], 5, ignore_eos=True)
        self.assertEqual((self.model.usage[0].prompt_tokens, self.model.usage[0].completion_tokens), (len(IDS), 5))

    def test_each_token_of_an_answer_follows_from_the_prompt_and_the_tokens_before_it(self):
        (ids,) = generate(self.model, [IDS], 6, ignore_eos=True)
        for end in range(6):
            self.assertEqual(generate(self.model, [[*IDS, *ids[:end]]], 1, ignore_eos=True), [[ids[end]]])

    def test_a_sequence_gets_the_same_ids_in_a_batch_and_alone(self):
        separate = [generate(self.model, [prompt], 6, ignore_eos=True)[0] for prompt in RAGGED]
        self.assertEqual(generate(self.model, RAGGED, 6, ignore_eos=True), separate)
        same_length = [[0, 17, 42], [0, 5, 6], [7, 8, 9]]
        separate = [generate(self.model, [prompt], 6, ignore_eos=True)[0] for prompt in same_length]
        self.assertEqual(generate(self.model, same_length, 6, ignore_eos=True), separate)

    def test_each_sequence_ends_at_its_own_eos_and_the_next_request_is_correct(self):
        (ids,) = generate(self.model, [IDS], 8, ignore_eos=True)
        model = self.model
        eos_ids = model._facts["eos_ids"]
        try:
            model._facts["eos_ids"] = [ids[2]]
            ended = ids[: ids.index(ids[2]) + 1]
            self.assertEqual(generate(model, [IDS], 8), [ended])
            self.assertEqual(generate(model, [IDS, RAGGED[0]], 8)[0], ended)
        finally:
            model._facts["eos_ids"] = eos_ids
        self.assertEqual(generate(model, [IDS], 8, ignore_eos=True), [ids])

    def test_a_text_that_is_not_ids_is_refused(self):
        self.assertEqual(id_folder.ids_of(id_folder.text_of([3, 0, 17])), [3, 0, 17])
        for text in ("#3 #4", "3", "#3x", "Hello"):
            with self.assertRaises(Failed):
                id_folder.ids_of(text)


if __name__ == "__main__":
    unittest.main()
