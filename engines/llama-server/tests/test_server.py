"""Tests the engines `llama-server` and `openai` with llama.cpp's real server: texts, ids and counts, overlapping requests, cancels,
and failures."""

import importlib.metadata
import os
import signal
import unittest

from support import Program, RealServer, expected, fields_of, gguf, sequence_of, text_of

from checkout import EMBEDDED
from engine_tests import FULL_TESTS

NEW_TOKENS = 48
HELD_OUT = (EMBEDDED / "heldout.txt").read_text()
# Prompts of some 5, 100 and 400 tokens.
TEXTS = [HELD_OUT[:20], HELD_OUT[3000:3400], HELD_OUT[9000:10600]]


class OutputTests:
    """Tests of an engine with a model in f32, in a class that is also a `unittest.TestCase`. `engine` is its program."""

    def test_the_text_and_the_counts_are_those_of_pytorch_baseline(self):
        for text in TEXTS:
            sequence, right = self.engine.sequence(text, NEW_TOKENS), expected(text, NEW_TOKENS)
            # The text of a server ends before an incomplete character.
            self.assertEqual(text_of(sequence), right["text"].rstrip("\ufffd"))
            self.assertEqual(sequence["prompt_tokens"], right["prompt_tokens"])
            self.assertEqual((sequence["output_tokens"], sequence["finish"]), (NEW_TOKENS, "length"))
            counts = [chunk["tokens"] for chunk in sequence["chunks"]]
            self.assertEqual(sum(counts), NEW_TOKENS)
            # The server sends a token as soon as its text is complete, so nearly all of them come alone.
            self.assertGreater(counts.count(1), NEW_TOKENS * 3 // 4, counts)
            times = [chunk["ns"] for chunk in sequence["chunks"]]
            self.assertEqual(times, sorted(times))

    def test_overlapping_requests_get_the_texts_that_they_get_alone(self):
        lengths = range(9, 17)
        for id, length in enumerate(lengths):
            self.engine.send("generate", id=id, **fields_of(TEXTS[id % 2], length))
        answers = sorted((self.engine.answer() for _ in lengths), key=lambda answer: answer["id"])
        for id, (answer, length) in enumerate(zip(answers, lengths, strict=True)):
            sequence, alone = sequence_of(answer), self.engine.sequence(TEXTS[id % 2], length)
            self.assertEqual(sequence["output_tokens"], length)
            self.assertEqual(text_of(sequence), text_of(alone), id)

    def test_a_cancelled_request_ends_and_the_others_go_on(self):
        self.engine.send("generate", id="long", **fields_of(TEXTS[0], 1500))
        self.engine.send("generate", id="short", **fields_of(TEXTS[0], 8))
        self.assertEqual(self.engine.answer()["id"], "short")
        self.engine.send("cancel", id="long")
        cancelled = sequence_of(self.engine.answer())
        self.assertEqual(cancelled["finish"], "cancelled")
        self.assertLess(len(cancelled["chunks"]), 1500)
        self.assertEqual(self.engine.sequence(TEXTS[0], 8)["output_tokens"], 8)

    def test_a_request_beyond_the_context_is_refused_and_the_engine_goes_on(self):
        failed = self.engine.request("generate", **fields_of(TEXTS[0], 5000))
        self.assertEqual((failed["type"], failed["kind"]), ("failed", "context"), failed)
        self.assertEqual(self.engine.sequence(TEXTS[0], 8)["output_tokens"], 8)


@unittest.skipUnless(FULL_TESTS, "starts servers; ORCHESTRATE_FULL_TESTS=1 runs it")
class LlamaServer(OutputTests, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = Program("llama-server-engine")
        cls.addClassCleanup(cls.engine.close)
        cls.loaded = cls.engine.load("f32")

    def test_the_server_states_the_facts_in_effect(self):
        dtypes = [self.loaded[name] for name in ("weights_dtype", "compute_dtype", "kv_dtype")]
        self.assertEqual(dtypes, ["f32", "f32", "f16"])
        self.assertEqual((self.loaded["threads"], self.loaded["vocabulary_size"]), (2, 2048))
        self.assertEqual((self.loaded["context_tokens"], self.loaded["prefix_cache"]), (2048, False))
        self.assertIn(importlib.metadata.version("llama-cpp-python"), self.loaded["libraries"]["llama.cpp"])

    def test_a_repeated_prompt_is_computed_again(self):
        for _ in range(3):
            self.assertEqual(self.engine.sequence(TEXTS[1], 8)["cached_prompt_tokens"], 0)

    def test_a_repeated_prompt_comes_from_the_cache_where_the_request_allows_it(self):
        fields = {**fields_of(TEXTS[2], 8), "prefix_cache": True}
        answers = [sequence_of(self.engine.request("generate", **fields)) for _ in range(2)]
        # The server computes at least the last token of each prompt.
        self.assertEqual(answers[1]["cached_prompt_tokens"], answers[1]["prompt_tokens"] - 1)
        self.assertEqual(self.engine.sequence(TEXTS[2], 8)["cached_prompt_tokens"], 0)


@unittest.skipUnless(FULL_TESTS, "starts servers; ORCHESTRATE_FULL_TESTS=1 runs it")
class Loads(unittest.TestCase):
    def setUp(self):
        self.engine = Program("llama-server-engine")
        self.addCleanup(self.engine.close)

    def test_each_dtype_is_in_effect_and_a_second_load_ends_the_first_server(self):
        for dtype, in_effect in [(None, "bf16"), ("q8_0", "q8_0"), ("q4_k", "q4_k")]:
            self.assertEqual(self.engine.load(dtype)["weights_dtype"], in_effect)
            self.assertEqual(len(self.engine.children()), 1)

    def test_the_number_of_slots_divides_no_context(self):
        for slots in (1, 8):
            self.assertEqual(self.engine.load("f32", {"slots": slots})["context_tokens"], 2048)

    def test_a_server_that_dies_is_a_failure_with_its_last_lines(self):
        self.engine.load("f32")
        self.engine.send("generate", id="long", **fields_of(TEXTS[0], 1500))
        self.engine.send("generate", id="short", **fields_of(TEXTS[0], 8))
        self.assertEqual(self.engine.answer()["id"], "short")
        (server,) = self.engine.children()
        os.kill(server, signal.SIGKILL)
        failed = self.engine.answer()
        self.assertEqual((failed["type"], failed["kind"]), ("failed", "internal"), failed)
        self.assertIn("has ended (signal: 9", failed["message"])
        # The engine itself goes on: a new load starts a new server.
        self.engine.load("f32")
        self.assertEqual(self.engine.sequence(TEXTS[0], 8)["output_tokens"], 8)

    def test_the_server_ends_with_the_engine(self):
        self.engine.load("f32")
        (server,) = self.engine.children()
        self.assertEqual(self.engine.close(), 0)
        with self.assertRaises(ProcessLookupError):
            os.kill(server, 0)


@unittest.skipUnless(FULL_TESTS, "starts servers; ORCHESTRATE_FULL_TESTS=1 runs it")
class OpenAi(OutputTests, unittest.TestCase):
    """The engine `openai` with the same server by its `/v1/completions`."""

    @classmethod
    def setUpClass(cls):
        cls.server = RealServer(gguf())
        cls.addClassCleanup(cls.server.close)
        cls.engine = Program("openai-engine")
        cls.addClassCleanup(cls.engine.close)
        cls.loaded = cls.engine.load(options={"url": cls.server.url})

    def test_the_context_is_that_of_a_slot(self):
        self.assertEqual(self.loaded["context_tokens"], 2048)

    def test_the_servers_own_ids_are_those_of_pytorch_baseline(self):
        for text in TEXTS:
            right = expected(text, NEW_TOKENS)
            body = {"prompt": text, "n_predict": NEW_TOKENS, "ignore_eos": True, "temperature": 0, "return_tokens": True}
            answer = self.server.get("/completion", body)
            self.assertEqual(answer["tokens"], right["output_ids"])
            self.assertEqual(answer["tokens_evaluated"], right["prompt_tokens"])

    def test_a_prefix_cache_is_reported(self):
        cached = [self.engine.sequence(TEXTS[2], 8).get("cached_prompt_tokens") for _ in range(2)]
        prompt_tokens = expected(TEXTS[2], NEW_TOKENS)["prompt_tokens"]
        # The server computes at least the last token of each prompt.
        self.assertEqual(cached[1], prompt_tokens - 1)


if __name__ == "__main__":
    unittest.main()
