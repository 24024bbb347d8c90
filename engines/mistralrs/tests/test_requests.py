"""Tests generation: the ids of prompts and answers reach and leave mistral.rs unchanged, alone, in a batch, and after other
requests."""

import unittest

from support import load_model

import id_folder
from engine_kit import Failed
from engine_tests import RequestTests, generate
from worker import MistralRs

# Every id is sent as it is, special ones too.
IDS = [0, 17, 42, 9, 1, 2047]


class Requests(RequestTests, unittest.TestCase):
    capabilities = MistralRs().hello()["capabilities"]

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

    def test_a_text_that_is_not_ids_is_refused(self):
        self.assertEqual(id_folder.ids_of(id_folder.text_of([3, 0, 17])), [3, 0, 17])
        for text in ("#3 #4", "3", "#3x", "Hello"):
            with self.assertRaises(Failed):
                id_folder.ids_of(text)


if __name__ == "__main__":
    unittest.main()
