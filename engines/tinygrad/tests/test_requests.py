"""Tests requests on one loaded model: caches, repeated requests, texts, scores, and the facts in effect."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from support import CONTEXT, Header, generate, gguf_file, load_model

import compiler
from checkout import EMBEDDED
from engine_kit import Failed, Job, Tokens
from gguf_file import GgufFile

# Longer than a chunk of 32 tokens.
IDS = [0, *((7 * index * index + 3 * index) % 2000 for index in range(70))]


class Requests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = load_model()

    def test_a_request_gives_the_same_ids_first_again_and_without_a_cache(self):
        first = generate(self.model, IDS, 6, ignore_eos=True)
        self.assertEqual(generate(self.model, IDS, 6, ignore_eos=True), first)
        # The next prompt begins as the last sequence did.
        generate(self.model, IDS + first, 2, ignore_eos=True)
        self.assertEqual(generate(self.model, IDS, 6, ignore_eos=True), first)
        self.assertEqual(generate(self.model, IDS, 6, ignore_eos=True, use_cache=False), first)
        self.assertEqual(len(first), 6)

    def test_every_chunk_of_a_prompt_is_computed_in_every_request(self):
        network = type(self.model._network)
        for _ in range(2):
            with mock.patch.object(network, "__call__", autospec=True, side_effect=network.__call__) as call:
                job = Job([IDS], 1, ignore_eos=True)
                tokens = Tokens(job, [], 0, 0)
                self.model.generate(job, tokens)
            # 71 ids are three chunks of at most 32.
            self.assertEqual(call.call_count, 3)
            self.assertEqual(tokens.iteration()["sequences"][0]["cached_prompt_tokens"], 0)

    def test_a_sequence_fills_the_context_to_its_end(self):
        self.assertEqual(len(generate(self.model, IDS, CONTEXT - len(IDS), ignore_eos=True)), CONTEXT - len(IDS))

    def test_scores_of_every_length_are_those_of_the_longest(self):
        longest = self.model.score(IDS)
        for length in (2, 5, 33, 34, 65, 70):
            for score, expected in zip(self.model.score(IDS[:length]), longest):
                self.assertAlmostEqual(score, expected, places=4)

    def test_the_greedy_id_has_the_largest_score(self):
        (id,) = generate(self.model, IDS, 1, ignore_eos=True)
        scores = {other: self.model.score([*IDS, other])[-1] for other in (id, 5, 500)}
        self.assertEqual(max(scores, key=scores.get), id)

    def test_texts_use_the_tokenizer_of_the_file(self):
        ids = self.model.encode("The old keeper")
        self.assertEqual(ids[0], 0)
        self.assertIn("The old keeper", self.model.decode(ids[1:]))

    def test_facts_report_the_configuration_in_effect(self):
        facts = self.model.facts()
        expected = {
            "device": "cpu", "weights_dtype": "f32", "compute_dtype": "f32", "kv_dtype": "f32", "unpacked_dtype": "f32",
            "threads": 2, "context_tokens": CONTEXT, "prefix_cache": False, "vocabulary_size": 2048, "layers": 4, "heads": 8,
            "kv_heads": 4, "bos_id": 0, "eos_ids": [1], "beam": 0, "parameters": 2_885_888,
        }
        self.assertEqual({name: facts[name] for name in expected}, expected)
        self.assertIn("clang version", facts["libraries"]["clang"])

    def test_an_id_beyond_the_vocabulary_is_a_failure_because_every_logit_was_nan(self):
        with mock.patch.object(self.model, "_stream", lambda ids: iter([2048])), self.assertRaises(Failed) as raised:
            generate(self.model, IDS, 1)
        self.assertEqual(raised.exception.kind, "model")
        self.assertIn("NaN", raised.exception.message)

    def test_compiled_kernels_are_kept_in_the_folder_of_the_engine(self):
        (database,) = compiler.data_folder().glob("kernels/*/2-threads.db")
        self.assertGreater(database.stat().st_size, 0)
        self.assertTrue(str(database).startswith(os.environ["ORCHESTRATE_HOME"]))


class OtherLoads(unittest.TestCase):
    def test_a_load_with_unpacked_weights_and_one_thread_gives_the_same_ids(self):
        options = {"unpack": True, "half": True}
        model = load_model(gguf_file("f16"), options, threads=1, context_tokens=100)
        facts = model.facts()
        self.assertEqual((facts["weights_dtype"], facts["threads"], facts["unpacked_dtype"]), ("f16", 1, "f16"))
        # The output matrix is the embedding, so it is not counted twice. The tables of RoPE are not weights.
        self.assertEqual(facts["weights_bytes"], 2 * facts["parameters"])
        expected = generate(load_model(EMBEDDED, dtype="f16", context_tokens=100), IDS, 6, ignore_eos=True)
        self.assertEqual(generate(model, IDS, 6, ignore_eos=True), expected)

    def test_a_tensor_that_tinygrad_would_ignore_is_refused(self):
        # The file says that there are three blocks, so tinygrad would leave the fourth out.
        with tempfile.TemporaryDirectory() as folder:
            header = Header(gguf_file("f32"))
            key = b"llama.block_count"
            at = header.content.index(key) + len(key) + 4
            path = header.set_number(at, b"\x03").write(folder)
            self.assertEqual(GgufFile(Path(path)).field("block_count"), 3)
            with self.assertRaises(Failed) as raised:
                load_model(path)
        self.assertIn("tinygrad ignores its tensor `blk.3.", raised.exception.message)


if __name__ == "__main__":
    unittest.main()
