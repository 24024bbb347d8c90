"""Tests converted models with the library: outputs equal those of `pytorch-baseline`, and requests do not change each other."""

import json
import shutil
import struct
import sys
import unittest

from support import (
    EMBEDDED, FULL_TESTS, RELEASE, changed_config, convert_together, generate, load_converted, load_model, run_worker, scratch,
    tiny_model
)

from engine_kit import Failed
from worker import ARCHITECTURES

IDS = [(7 * index * index + 3 * index + 1) % 2048 for index in range(200)]
RAGGED = [IDS[:20], IDS[20:33], IDS[40:70]]
# The largest difference of a log-probability in f32.
MAX_DIFFERENCE = 1e-4
# Bounds of the drift on the embedded model: the root mean square difference of log-probabilities.
MAX_DRIFT = {"f32": 1e-5, "int8": 0.1}


@unittest.skipUnless(FULL_TESTS, "converts models; ORCHESTRATE_FULL_TESTS=1 runs it")
class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # tiny-llama has the rope scaling `llama3`, which is refused. The embedded model is a llama model without it.
        names = [f"tiny-{name}" for name in ARCHITECTURES if name != "llama"]
        cls.folders = {name: tiny_model(name) for name in names}
        out = scratch()
        cls.paths = {name: out / name for name in (*cls.folders, "f32", "int8")}
        cls.folders |= {"f32": EMBEDDED, "int8": EMBEDDED}
        convert_together([cls.folders[name], "int8" if name == "int8" else "float32", path] for name, path in cls.paths.items())
        requests = []
        for folder in cls.folders.values():
            requests.append({"type": "load", "model": str(folder), "dtype": "f32", "threads": 1})
            requests.append({"type": "score", "sequences": [IDS]})
            requests.append({"type": "generate", "prompt_ids": IDS[:100], "max_new_tokens": 48, "ignore_eos": True})
        answers = run_worker([RELEASE / "pytorch-baseline"], requests)
        scores = [answer["logprobs"][0] for answer in answers if answer["type"] == "scored"]
        ids = [answer["iterations"][0]["sequences"][0]["output_ids"] for answer in answers if answer["type"] == "generated"]
        cls.expected = dict(zip(cls.folders, zip(scores, ids, strict=True)))
        cls.embedded = cls.load("f32")

    @classmethod
    def load(cls, name, **fields):
        return load_converted(cls.folders[name], cls.paths[name], **fields)

    def test_every_claimed_architecture_gives_the_outputs_of_pytorch_baseline(self):
        for name in self.folders:
            if name != "int8":
                model, (scores, ids) = self.load(name), self.expected[name]
                difference = max(abs(a - b) for a, b in zip(model.score(IDS), scores, strict=True))
                self.assertLess(difference, MAX_DIFFERENCE, name)
                self.assertEqual(generate(model, [IDS[:100]], 48, ignore_eos=True), [ids], name)

    def test_each_dtype_drifts_within_its_bound_and_the_facts_report_it(self):
        for dtype, bound in MAX_DRIFT.items():
            model, (scores, _) = self.load(dtype, dtype=dtype), self.expected[dtype]
            squares = [(a - b) ** 2 for a, b in zip(model.score(IDS), scores, strict=True)]
            drift = (sum(squares) / len(squares)) ** 0.5
            print(f"{dtype}: drift {drift:.2g}", file=sys.stderr)
            self.assertLess(drift, bound, dtype)
            facts = model.facts()
            self.assertEqual((facts["weights_dtype"], facts["compute_dtype"], facts["kv_dtype"]), (dtype, dtype, "f32"))

    def test_a_dtype_that_the_processor_lacks_is_refused_with_the_supported_ones(self):
        import ctranslate2

        if "int16" in ctranslate2.get_supported_compute_types("cpu"):
            self.skipTest("this processor supports int16")
        with self.assertRaises(Failed) as raised:
            load_model(dtype="int16")
        self.assertEqual(raised.exception.kind, "unsupported")
        self.assertIn("CTranslate2 supports only `float32`", raised.exception.message)

    def test_the_facts_report_the_threads_that_the_library_started(self):
        for threads in (3, 1, 2):
            self.assertEqual(self.load("f32", threads=threads).facts()["threads"], threads)

    def test_the_text_of_each_token_in_the_vocabulary_is_its_id(self):
        for name, path in self.paths.items():
            size = json.loads((self.folders[name] / "config.json").read_text())["vocab_size"]
            self.assertEqual(json.loads((path / "vocabulary.json").read_text()), [str(id) for id in range(size)], name)

    def test_a_sequence_gets_the_same_ids_in_a_batch_alone_and_without_a_cache(self):
        separate = [generate(self.embedded, [prompt], 8, ignore_eos=True)[0] for prompt in RAGGED]
        for use_cache in (True, False):
            self.assertEqual(generate(self.embedded, RAGGED, 8, ignore_eos=True, use_cache=use_cache), separate, use_cache)

    def test_each_sequence_of_a_batch_ends_at_its_own_eos_id(self):
        model = self.load("f32")
        separate = generate(model, RAGGED, 8, ignore_eos=True)
        model._facts["eos_ids"] = [separate[0][2]]
        ended = [ids[: ids.index(separate[0][2]) + 1] if separate[0][2] in ids else ids for ids in separate]
        for use_cache in (True, False):
            self.assertEqual(generate(model, RAGGED, 8, use_cache=use_cache), ended, use_cache)
        self.assertLess(len(ended[0]), 8)

    def test_a_request_does_not_change_the_next_answer(self):
        first = generate(self.embedded, [IDS[:20]], 8, ignore_eos=True)
        generate(self.embedded, [IDS], 30, ignore_eos=True)
        self.embedded.score(IDS)
        self.assertEqual(generate(self.embedded, [IDS[:20]], 8, ignore_eos=True), first)

    def test_an_exception_during_a_generation_reaches_the_kit(self):
        def push(sequence, id):
            raise Failed("internal", "the reader has gone")

        with self.assertRaises(Failed):
            self.embedded._generate([IDS[:5]], 4, push)
        self.assertEqual(len(generate(self.embedded, [IDS[:5]], 4, ignore_eos=True)[0]), 4)

    def test_a_score_of_more_than_1024_tokens_has_every_token(self):
        self.assertEqual(len(self.embedded.score(IDS * 6)), 6 * len(IDS) - 1)

    def test_weights_of_nan_fail_the_conversion_and_a_converted_nan_fails_the_load(self):
        with self.assertRaises(AssertionError) as raised:
            convert_together([[with_nan(EMBEDDED), "float32", scratch() / "nan"]])
        self.assertIn("tensor `model.norm.weight` has numbers that are NaN or infinite", str(raised.exception))
        planted = self.planted(lambda data, middle: b"\xff" * 65536)  # a NaN in f32
        with self.assertRaises(Failed) as raised:
            load_converted(EMBEDDED, planted)
        self.assertEqual(raised.exception.kind, "model")

    def test_a_fault_in_the_conversion_changes_the_outputs(self):
        planted = self.planted(lambda data, middle: data[middle + 65536 : middle + 131072])
        scores = load_converted(EMBEDDED, planted).score(IDS)
        difference = max(abs(a - b) for a, b in zip(scores, self.expected["f32"][0]))
        self.assertGreater(difference, 100 * MAX_DIFFERENCE)

    def planted(self, other_bytes):
        """A conversion of the embedded model with other bytes in its middle."""
        planted = scratch() / "planted"
        shutil.copytree(self.paths["f32"], planted)
        data = bytearray((planted / "model.bin").read_bytes())
        middle = len(data) // 2
        data[middle : middle + 65536] = other_bytes(data, middle)
        (planted / "model.bin").write_bytes(data)
        return planted


def with_nan(folder):
    """A copy of a model in bf16, with a NaN in the last norm."""
    from model_folder import read_tensors

    out = changed_config(folder)
    (out / "model.safetensors").unlink()
    content = bytearray((folder / "model.safetensors").read_bytes())
    norm = read_tensors([folder / "model.safetensors"])["model.norm.weight"]
    content[norm.offset + 6 : norm.offset + 8] = struct.pack("<H", 0x7FC0)
    (out / "model.safetensors").write_bytes(content)
    return out


if __name__ == "__main__":
    unittest.main()
