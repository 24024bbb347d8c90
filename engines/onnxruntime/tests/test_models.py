"""Tests converted models with the library: outputs equal those of `pytorch-baseline`, and requests do not change each other."""

import shutil
import struct
import sys
import unittest
from types import SimpleNamespace

from support import (
    EMBEDDED, FULL_TESTS, RELEASE, changed_config, convert_together, generate, load_converted, run_worker, scratch, tiny_model
)

from engine_kit import Failed, Sampler
from worker import ARCHITECTURES

IDS = [(7 * index * index + 3 * index + 1) % 2048 for index in range(200)]
RAGGED = [IDS[:20], IDS[20:33], IDS[40:70]]
# The largest difference of a log-probability in f32.
MAX_DIFFERENCE = 1e-4
# Bounds of the drift on the embedded model: the root mean square difference of log-probabilities.
MAX_DRIFT = {"f32": 1e-5, "int8": 0.06, "int4": 0.6}


@unittest.skipUnless(FULL_TESTS, "converts models; ORCHESTRATE_FULL_TESTS=1 runs it")
class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folders = {f"tiny-{name}": tiny_model(f"tiny-{name}") for name in ARCHITECTURES}
        out = scratch()
        cls.paths = {name: out / name for name in (*cls.folders, "f32", "int8", "int4", "nan")}
        cls.folders |= {"f32": EMBEDDED, "int8": EMBEDDED, "int4": EMBEDDED, "nan": with_nan(EMBEDDED)}
        levels = {"int8": 4, "int4": 4}
        precisions = {"int8": "int8", "int4": "int4"}
        convert_together(
            [cls.folders[name], precisions.get(name, "fp32"), levels.get(name, 1), path] for name, path in cls.paths.items()
        )
        names, requests = [*cls.folders], []
        for name in names[:-1]:
            requests.append({"type": "load", "model": str(cls.folders[name]), "dtype": "f32", "threads": 1})
            requests.append({"type": "score", "sequences": [IDS]})
            requests.append({"type": "generate", "prompt_ids": IDS[:100], "max_new_tokens": 48, "ignore_eos": True})
        answers = run_worker([RELEASE / "pytorch-baseline"], requests)
        scores = [answer["logprobs"][0] for answer in answers if answer["type"] == "scored"]
        ids = [answer["iterations"][0]["sequences"][0]["output_ids"] for answer in answers if answer["type"] == "generated"]
        cls.expected = dict(zip(names, zip(scores, ids, strict=True)))
        cls.embedded = cls.load("f32")

    @classmethod
    def load(cls, name, **fields):
        return load_converted(cls.folders[name], cls.paths[name], **fields)

    def test_every_claimed_architecture_gives_the_outputs_of_pytorch_baseline(self):
        for name in self.folders:
            if name.startswith("tiny-"):
                model, (scores, ids) = self.load(name), self.expected[name]
                difference = max(abs(a - b) for a, b in zip(model.score(IDS), scores, strict=True))
                self.assertLess(difference, MAX_DIFFERENCE, name)
                self.assertEqual(generate(model, [IDS[:100]], 48, ignore_eos=True), [ids], name)

    def test_each_dtype_drifts_within_its_bound_and_the_facts_report_it(self):
        for dtype, bound in MAX_DRIFT.items():
            model, (scores, _) = self.load(dtype), self.expected[dtype]
            squares = [(a - b) ** 2 for a, b in zip(model.score(IDS), scores, strict=True)]
            drift = (sum(squares) / len(squares)) ** 0.5
            print(f"{dtype}: drift {drift:.2g}", file=sys.stderr)
            self.assertLess(drift, bound, dtype)
            facts = model.facts()
            self.assertEqual((facts["weights_dtype"], facts["kv_dtype"]), (dtype, "f32"))
            self.assertEqual(facts["compute_dtype"], "f32" if dtype == "f32" else "int8")

    def test_the_facts_report_the_threads_that_the_library_started(self):
        for threads in (1, 2, 3):
            self.assertEqual(self.load("f32", threads=threads).facts()["threads"], threads)

    def test_a_sequence_gets_the_same_ids_in_a_batch_alone_and_without_a_cache(self):
        separate = [generate(self.embedded, [prompt], 8, ignore_eos=True)[0] for prompt in RAGGED]
        for use_cache in (True, False):
            self.assertEqual(generate(self.embedded, RAGGED, 8, ignore_eos=True, use_cache=use_cache), separate, use_cache)

    def test_a_request_continues_after_the_id_at_which_the_library_ends(self):
        expected = generate(self.embedded, RAGGED, 12, ignore_eos=True)
        for end in {expected[0][3], expected[1][5], expected[2][0]}:
            model = load_converted(EMBEDDED, self.paths["f32"])
            model._special = model._special._replace(end=end)
            model._model = self.model_that_ends_at(end)
            self.assertEqual(generate(model, RAGGED, 12, ignore_eos=True), expected)
            self.assertEqual(generate(model, RAGGED[:1], 12, ignore_eos=True), expected[:1])

    def model_that_ends_at(self, end):
        import loading

        return loading.make_model(self.paths["f32"], SimpleNamespace(pad=2047, end=end), 1)

    def test_each_sequence_of_a_batch_ends_at_its_own_eos_id(self):
        model = load_converted(EMBEDDED, self.paths["f32"])
        separate = generate(model, RAGGED, 8, ignore_eos=True)
        model._facts["eos_ids"] = [separate[0][2]]
        ended = [ids[: ids.index(separate[0][2]) + 1] if separate[0][2] in ids else ids for ids in separate]
        self.assertEqual(generate(model, RAGGED, 8), ended)
        self.assertLess(len(ended[0]), 8)

    def test_a_batch_with_a_prompt_that_ends_with_the_padding_id_is_refused(self):
        prompt = [*IDS[:19], 2047]
        with self.assertRaises(Failed) as raised:
            generate(self.embedded, [prompt, IDS[:20]], 4, ignore_eos=True)
        self.assertEqual(raised.exception.kind, "unsupported")
        self.assertEqual(len(generate(self.embedded, [prompt], 4, ignore_eos=True)[0]), 4)

    def test_a_request_does_not_change_the_next_answer(self):
        first = generate(self.embedded, [IDS[:20]], 8, ignore_eos=True)
        generate(self.embedded, [IDS], 30, ignore_eos=True)
        self.embedded.score(IDS)
        self.assertEqual(generate(self.embedded, [IDS[:20]], 8, ignore_eos=True), first)

    def test_sampled_ids_equal_the_ids_of_the_kits_sampler(self):
        sampling = SimpleNamespace(temperature=0.8, top_k=40, top_p=0.9, seed=7)
        ids = generate(self.embedded, [IDS[:20], IDS[:20]], 6, ignore_eos=True, sampling=sampling)
        for sequence, new_ids in enumerate(ids):
            sampler, prompt = Sampler(sampling), list(IDS[:20])
            for id in new_ids:
                logits = self.embedded._new_generator([prompt], 1).get_logits()[0, -1]
                self.assertEqual(sampler.pick(logits.tolist(), sequence), id)
                prompt.append(id)
        self.assertNotEqual(*ids)

    def test_weights_of_nan_fail_requests_and_scores(self):
        model = self.load("nan")
        for request in (
            lambda: generate(model, [IDS[:5]], 4, ignore_eos=True),
            lambda: generate(model, [IDS[:5]], 1),
            lambda: generate(model, [IDS[:5], IDS[:3]], 3, use_cache=False),
            lambda: model.score(IDS[:5]),
        ):
            with self.assertRaises(Failed) as raised:
                request()
            self.assertEqual(raised.exception.kind, "model")

    def test_a_fault_in_the_conversion_changes_the_outputs(self):
        planted = scratch() / "planted"
        shutil.copytree(self.paths["f32"], planted)
        data = bytearray((planted / "model.onnx.data").read_bytes())
        middle = len(data) // 2 // 4096 * 4096
        data[middle : middle + 65536] = data[middle + 65536 : middle + 131072]
        (planted / "model.onnx.data").write_bytes(data)
        scores = load_converted(EMBEDDED, planted).score(IDS)
        difference = max(abs(a - b) for a, b in zip(scores, self.expected["f32"][0]))
        self.assertGreater(difference, 100 * MAX_DIFFERENCE)

    def test_the_logits_of_the_window_are_those_of_the_whole_sequence(self):
        # The window of tiny-phi3 is the longest context of the load.
        self.assertEqual(self.load("tiny-phi3").facts()["context_tokens"], 1023)


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
