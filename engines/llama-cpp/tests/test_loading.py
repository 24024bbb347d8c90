"""Tests loads: files, folders, conversions, dtypes, and refusals. Also tests the worker as a program."""

import json
import os
import shutil
import struct
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from support import gguf_file, load_model, with_metadata

import library
from checkout import EMBEDDED
from engine_kit import Failed, Phases
from engine_tests import RefusalTests, changed_folder, generate, scratch, with_number_in_last_norm, worker_answers
from gguf_model import convert
from worker import DTYPES, read_options

# The GGUF field of the architecture, up to its value: the name, the type (8: a string), and the length of the value.
ARCHITECTURE = b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0"


class Loads(RefusalTests):
    def test_a_folder_is_converted_to_every_dtype_and_the_facts_report_the_dtype(self):
        for dtype in DTYPES:
            facts = load_model(EMBEDDED, dtype=dtype).facts()
            self.assertEqual(facts["weights_dtype"], dtype)
        self.assertEqual((facts["compute_dtype"], facts["kv_dtype"]), ("q8_k", "f16"))

    def test_a_load_without_a_dtype_keeps_the_dtype_of_the_model(self):
        self.assertEqual(load_model(EMBEDDED).facts()["weights_dtype"], "bf16")
        self.assertEqual(load_model(gguf_file("q4_0")).facts()["weights_dtype"], "q4_0")

    def test_a_file_in_another_dtype_is_converted_like_a_folder(self):
        model = load_model(gguf_file("f32"), dtype="q8_0")
        self.assertEqual(model.facts()["weights_dtype"], "q8_0")
        self.assertEqual(generate(model, [[0, 5]], 4), generate(load_model(gguf_file("q8_0")), [[0, 5]], 4))

    def test_a_folder_with_one_gguf_file_loads_that_file(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(gguf_file("f32"), Path(folder) / "model.gguf")
            self.assertEqual(load_model(folder).facts()["weights_dtype"], "f32")

    def test_facts_report_the_configuration_in_effect(self):
        facts = load_model(gguf_file("q8_0"), {"kv": "q8_0"}, context_tokens=512).facts()
        expected = {
            "device": "cpu", "threads": 2, "context_tokens": 512, "kv_dtype": "q8_0", "architecture": "llama",
            "vocabulary_size": 2048, "bos_id": 0, "eos_ids": [1], "prefix_cache": False, "use_cache": True,
        }
        self.assertEqual({name: facts[name] for name in expected}, expected)
        self.assertEqual(facts["libraries"]["llama-cpp-python"], "0.3.36")
        self.assertIn("llama.cpp", facts["libraries"])

    def test_the_default_number_of_threads_does_not_exceed_the_processors(self):
        self.assertIn(load_model(threads=None).facts()["threads"], range(1, os.cpu_count() + 1))

    def test_a_model_answers_with_options_other_than_the_defaults(self):
        for options in ({"attention": "plain"}, {"attention": "fused"}, {"kv": "bf16"}, {"repack": "false"}):
            self.assertEqual(len(generate(load_model(gguf_file("q4_0"), options), [[0, 5]], 4, ignore_eos=True)[0]), 4)

    def test_the_reported_dtype_is_that_of_most_bytes_and_not_the_file_type_in_the_header(self):
        content, file_type = gguf_file("f16").read_bytes(), b"general.file_type" + struct.pack("<I", 4)
        at = content.index(file_type) + len(file_type)
        self.assertEqual(content[at], 1)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            # 2 means Q4_0.
            path.write_bytes(content[:at] + b"\x02" + content[at + 1 :])
            facts = load_model(path, dtype="q4_0").facts()
        self.assertEqual((facts["weights_dtype"], facts["compute_dtype"]), ("f16", "f16"))

    def test_a_window_that_llama_cpp_ignores_is_the_longest_context(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            path.write_bytes(with_metadata(gguf_file("f32").read_bytes(), {"llama.attention.sliding_window": 100}))
            model = load_model(path)
            self.assertEqual(model.facts()["context_tokens"], 100)
            self.assertEqual(generate(model, [[0, 5]], 4), generate(load_model(), [[0, 5]], 4))
            with self.assertRaises(Failed) as raised:
                load_model(path, context_tokens=101)
            message = "`context_tokens`: 101 is more than the 100 of model `model.gguf`: llama.cpp ignores its sliding window"
            self.assertEqual((raised.exception.kind, raised.exception.message), ("context", message))
            # A window as long as the context hides no token.
            path.write_bytes(with_metadata(gguf_file("f32").read_bytes(), {"llama.attention.sliding_window": 2048}))
            self.assertEqual(load_model(path).facts()["context_tokens"], 2048)

    def test_the_tokens_that_end_a_sequence_a_turn_or_a_message_are_eos_ids(self):
        keys = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 9}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            path.write_bytes(with_metadata(gguf_file("f32").read_bytes(), keys))
            self.assertEqual(load_model(path).facts()["eos_ids"], [1, 7, 9])
            copy = changed_folder(EMBEDDED)
            (copy / "generation_config.json").unlink(missing_ok=True)
            (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 1, 7]}))
            self.assertEqual(load_model(copy).facts()["eos_ids"], [9, 1, 7])

    def test_weights_that_are_not_finite_fail_requests(self):
        for bits in (0x7FC0, 0x7F80):  # NaN and infinity
            model = load_model(with_number_in_last_norm(EMBEDDED, bits))
            sampling = SimpleNamespace(temperature=1.0, top_k=0, top_p=None, seed=3)
            for request in (
                lambda: generate(model, [[0, 5]], 4),
                lambda: generate(model, [[0, 5], [7]], 4, use_cache=False),
                lambda: generate(model, [[0, 5]], 4, sampling=sampling),
                lambda: model.score([0, 5, 9]),
            ):
                self.assert_refused("model", "its weights lead to logits that are NaN or infinite", request)

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "one processor")
    def test_a_pinned_model_pins_the_calling_thread_until_the_model_is_dropped(self):
        allowed = os.sched_getaffinity(0)
        expected = generate(load_model(), [[0, 5]], 8)
        self.assertEqual(os.sched_getaffinity(0), allowed)
        model = load_model(options={"pin": "true"})
        self.assertTrue(model.facts()["pin"])
        self.assertEqual(len(os.sched_getaffinity(0)), 1)
        self.assertEqual(generate(model, [[0, 5]], 8), expected)
        del model
        self.assertEqual(os.sched_getaffinity(0), allowed)
        # Several threads share a processor if there are more threads than processors.
        self.assertEqual(generate(load_model(options={"pin": True}, threads=len(allowed) + 1), [[0, 5]], 8), expected)


class Refusals(RefusalTests):
    def test_a_broken_file_is_refused_with_the_reason(self):
        content = gguf_file("f32").read_bytes()
        self.assertIn(ARCHITECTURE + b"llama", content)
        unknown_architecture = content.replace(ARCHITECTURE + b"llama", ARCHITECTURE + b"lamma")
        without_tokenizer = content.replace(b"tokenizer.ggml.model", b"tokenizer.ggml.xodel")
        missing_tensor = content.replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight")
        broken = {
            "half.gguf": (content[: len(content) // 2], "model", "not within the file bounds"),
            "truncated.gguf": (content[:200], "model", "truncated.gguf"),
            "empty.gguf": (b"", "model", "is not a GGUF file"),
            "text.gguf": (b"hello, this is text", "model", "is not a GGUF file"),
            "unknown-architecture.gguf": (unknown_architecture, "unsupported", "unknown model architecture"),
            "without-tokenizer.gguf": (without_tokenizer, "model", "has no tokenizer that llama.cpp can load: key not found"),
            "missing-tensor.gguf": (missing_tensor, "model", "blk.0.attn_q.weight"),
        }
        with tempfile.TemporaryDirectory() as folder:
            for name, (content, kind, text) in broken.items():
                path = Path(folder) / name
                path.write_bytes(content)
                self.assert_refused(kind, text, lambda: load_model(path))
        # The next load is not affected.
        load_model()

    def test_a_path_without_a_model_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assert_refused("model", "config.json", lambda: load_model(folder))
            path = Path(folder) / "model.gguf"
            os.mkfifo(path)
            self.assert_refused("model", "is not a file", lambda: load_model(path))
            path = Path(folder) / "model.bin"
            path.write_bytes(b"x")
            self.assert_refused("model", "expected a `.gguf` file or a model folder", lambda: load_model(path))

    def test_a_folder_that_cannot_be_converted_is_refused_with_the_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text('{"model_type": "llama"}')
            self.assert_refused("model", "no `tokenizer.json`", lambda: load_model(folder))
            (Path(folder) / "tokenizer.json").write_text("{}")
            self.assert_refused("model", "cannot be converted to GGUF", lambda: load_model(folder))

    def test_more_threads_than_ggml_supports_are_refused(self):
        self.assert_refused("bad_request", "more than the 512", lambda: load_model(threads=1_000_000))

    def test_a_context_longer_than_that_of_the_model_is_refused(self):
        self.assert_refused("context", "more than the 2048", lambda: load_model(context_tokens=4096))

    def test_invalid_options_are_refused(self):
        cases = [
            ({"kv": "f8"}, "unsupported", "`kv`"),
            ({"attention": 1}, "bad_request", "`attention`"),
            ({"repack": "perhaps"}, "bad_request", "`repack`"),
            ({"pin": 1}, "bad_request", "`pin`"),
            ({"library": "/no/such/folder"}, "bad_request", "no `libllama.so`"),
            ({"kv": "q8_0", "attention": "plain"}, "unsupported", "fused"),
        ]
        for options, kind, text in cases:
            self.assert_refused(kind, text, lambda: read_options(options))

    @mock.patch.dict(os.environ)
    def test_a_second_library_in_the_same_process_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "libllama.so").write_bytes(b"")
            self.assert_refused("unsupported", "this process already uses", lambda: load_model(options={"library": folder}))


class Conversions(unittest.TestCase):
    def test_a_conversion_of_the_same_content_in_another_folder_is_found_again(self):
        first = gguf_file("f32")
        inode = first.stat().st_ino
        copy = shutil.copytree(EMBEDDED, scratch() / "copy")
        self.assertEqual(convert(copy, "f32", Phases()), first)
        self.assertEqual(first.stat().st_ino, inode)

        def change_last_number(content, tensors):
            content[-100] ^= 1

        self.assertNotEqual(convert(changed_folder(EMBEDDED, change_last_number), "f32", Phases()), first)


class Process(unittest.TestCase):
    def test_the_engine_answers_after_a_broken_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "truncated.gguf"
            path.write_bytes(gguf_file("f32").read_bytes()[:100_000])
            load = {"type": "load", "model": str(path)}
            requests = [{"type": "hello", "protocol": 1}, load, {**load, "model": str(gguf_file("f32"))}]
            kinds = [answer["type"] for answer in worker_answers("llama-cpp", requests)]
        self.assertEqual(kinds, ["hello", "failed", "loaded"])

    def test_the_same_request_always_has_the_same_answer(self):
        load = {"type": "load", "model": str(gguf_file("q8_0")), "threads": 2}
        generate = {"type": "generate", "prompt_ids": [0, 5, 9], "max_new_tokens": 32, "ignore_eos": True, "iterations": 5}
        answer = worker_answers("llama-cpp", [load, generate])[-1]
        ids = [iteration["sequences"][0]["output_ids"] for iteration in answer["iterations"]]
        self.assertEqual(ids, [ids[0]] * 5)

    def test_the_users_own_library_is_loaded(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in library.FOLDER.glob("lib*"):
                os.symlink(path, Path(folder) / path.name)
            load = {"type": "load", "model": str(gguf_file("f32")), "options": {"library": f"{folder}/libllama.so"}}
            environment = {"LLAMA_CPP_LIB_PATH": ""} if "LLAMA_CPP_LIB_PATH" in os.environ else {}
            requests = [load, {"type": "generate", "prompt": "The", "max_new_tokens": 2}]
            answers = worker_answers("llama-cpp", requests, **environment)
        self.assertEqual([answer["type"] for answer in answers[-2:]], ["loaded", "generated"])


class Build(unittest.TestCase):
    def test_the_library_is_built_with_this_processors_fast_instructions(self):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
        names = {flag: flag.upper() for flag in ("avx2", "avx512_vnni", "avx512_bf16", "amx_int8")} | {"avx512f": "AVX512"}
        expected = {name for flag, name in names.items() if flag in flags} | {"REPACK", "LLAMAFILE"}
        self.assertLessEqual(expected, set(library.system_info()))


if __name__ == "__main__":
    unittest.main()
