"""Tests that models which tinygrad would compute wrongly, broken files and wrong options are refused before tinygrad loads them, and
how clang is found. No test compiles a kernel."""

import json
import os
import struct
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from support import ENGINE, Header, gguf_file, load_model

import compiler
from engine_kit import Failed
from engine_tests import RefusalTests, tiny_model
from gguf_file import GgufFile
from worker import Tinygrad, read_options


class Refusals(RefusalTests):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.header = Header(gguf_file("f32"))

    def test_architectures_that_tinygrad_computes_wrongly_are_refused_with_their_name(self):
        for shape, name in (("tiny-gemma", "gemma"), ("tiny-phi3", "phi3"), ("tiny-gpt2", "gpt2")):
            model = gguf_file("f32", tiny_model(shape))
            self.assert_refused("unsupported", f"architecture `{name}`: expected one of `llama`", lambda: load_model(model))

    def test_fields_that_tinygrad_ignores_are_refused(self):
        # A field of other models, in place of a field of the same length.
        path = self.header.rename("llama.vocab_size", "llama.logit_size").write(self.folder)
        self.assert_refused("unsupported", "tinygrad ignores its field `llama.logit_size`", lambda: load_model(path))

    def test_a_rope_scaling_without_a_known_rule_is_refused(self):
        metadata = {"general.architecture": "llama", "llama.rope.scaling.type": "yarn"}
        gguf = GgufFile(gguf_file("f32"))
        gguf.metadata |= metadata
        self.assert_refused("unsupported", "RoPE scaling `yarn`", gguf.refuse_unsupported)

    def test_a_linear_rope_scaling_divides_every_frequency(self):
        gguf = GgufFile(gguf_file("f32"))
        gguf.metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
        gguf.refuse_unsupported()
        self.assertEqual(gguf.rope_factors().tolist(), [4.0] * 16)

    def test_biases_that_tinygrad_adds_in_the_wrong_order_are_refused(self):
        gguf = GgufFile(gguf_file("f32"))
        gguf.tensors["blk.0.attn_q.bias"] = gguf.tensors["blk.0.attn_norm.weight"]
        self.assert_refused("unsupported", "biases", gguf.refuse_unsupported)

    def test_a_missing_tensor_is_refused(self):
        path = self.header.rename("blk.0.attn_norm.weight", "blk.0.attn_gate.weight").write(self.folder)
        self.assert_refused("model", "blk.0.attn_norm.weight", lambda: load_model(path))

    def test_a_window_is_the_longest_context(self):
        gguf = GgufFile(gguf_file("f32"))
        gguf.metadata["llama.attention.sliding_window"] = 100
        self.assertEqual(gguf.context_limit(), (100, ": tinygrad ignores its sliding window"))
        self.assert_refused("context", "more than the 2048", lambda: load_model(context_tokens=4096))

    def test_weights_that_are_not_finite_are_refused_with_the_name_of_their_tensor(self):
        for dtype, numbers in (
            ("f32", (struct.pack("<f", float("nan")), struct.pack("<f", float("-inf")))),
            ("bf16", (b"\xc0\x7f", b"\x80\xff")),
            ("f16", (b"\x00\x7e", b"\x00\xfc")),
            ("q8_0", (b"\x00\x7e",)),
            ("q4_k", (b"\x00\x7c",)),
        ):
            tensor = GgufFile(gguf_file(dtype)).tensors["blk.2.ffn_up.weight"]
            for number in numbers:
                path = Header(gguf_file(dtype)).set_number(tensor.offset, number).write(self.folder)
                self.assert_refused("model", "tensor `blk.2.ffn_up.weight` has weights that are NaN", lambda: load_model(path))

    def test_weights_that_f16_cannot_hold_are_refused_only_if_they_are_rounded_to_f16(self):
        tensor = GgufFile(gguf_file("f32")).tensors["blk.2.ffn_up.weight"]
        path = self.header.set_number(tensor.offset, struct.pack("<f", -65520.0)).write(self.folder)
        failed = self.refusal(lambda: load_model(path, {"half": True}))
        self.assertEqual((failed.kind, failed.hint), ("unsupported", "--set half=false"))
        GgufFile(path).refuse_numbers(False, lambda fraction: None)
        path = self.header.set_number(tensor.offset, struct.pack("<f", 65504.0)).write(self.folder)
        GgufFile(path).refuse_numbers(True, lambda fraction: None)

    def test_broken_files_are_refused(self):
        content = bytes(self.header.content)
        path = Path(self.folder) / "model.gguf"
        for length, part in ((100, "its header cannot be read"), (len(content) - 4, "ends at byte")):
            path.write_bytes(content[:length])
            self.assert_refused("model", part, lambda: load_model(path))
        path.write_bytes(b"safetensors")
        self.assert_refused("model", "is not a GGUF file", lambda: load_model(path))
        path.write_bytes(content.replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenz"))
        self.assert_refused("model", "has no tokenizer", lambda: load_model(path))

    def test_a_folder_without_a_tokenizer_is_refused(self):
        (Path(self.folder) / "config.json").write_text(json.dumps({"model_type": "llama"}))
        self.assert_refused("model", "no `tokenizer.json`", lambda: load_model(self.folder))

    def test_packed_weights_of_blocks_are_not_unpacked(self):
        self.assert_refused("unsupported", "`unpack`", lambda: load_model(gguf_file("q8_0"), {"unpack": True}))

    def test_invalid_options_are_refused(self):
        for options, part in (
            ({"beam": -1}, "`beam`"), ({"beam": "wide"}, "`beam`"), ({"beam": 17}, "`beam`"), ({"beam": True}, "`beam`"),
            ({"half": "perhaps"}, "`half`"), ({"unpack": 1}, "`unpack`"),
        ):
            self.assert_refused("bad_request", part, lambda: read_options(options))
        self.assertEqual(read_options({"beam": "2"}).beam, 2)


class Clang(unittest.TestCase):
    def test_a_machine_without_clang_is_unavailable_with_a_hint(self):
        with mock.patch("importlib.util.find_spec", return_value=None), mock.patch.dict(os.environ, {"PATH": "", "CC": "gcc"}):
            with self.assertRaises(Failed) as raised:
                Tinygrad().hello()
        self.assertEqual(raised.exception.kind, "unavailable")
        self.assertIn("no clang", raised.exception.message)
        self.assertIn("apt-get install clang", raised.exception.hint)

    def test_the_users_clang_comes_first_and_another_compiler_is_not_used(self):
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder) / "clang-19"
            own.write_text("#!/bin/sh\n")
            own.chmod(0o755)
            with mock.patch.dict(os.environ, {"CC": str(own)}):
                self.assertEqual(compiler.find_clang(), own)
            with mock.patch.dict(os.environ, {"CC": str(own.with_name("clang-20"))}):
                with self.assertRaises(Failed):
                    compiler.find_clang()
            with mock.patch.dict(os.environ, {"CC": "gcc"}):
                self.assertNotIn("gcc", str(compiler.find_clang()))

    def test_the_environment_has_a_clang(self):
        clang = compiler.prepare_clang(compiler.require_clang(), compiler.data_folder())
        self.assertIn("clang version", compiler.version_of(clang))
        self.assertTrue((ENGINE / "requirements.txt").read_text().count("ziglang=="))


if __name__ == "__main__":
    unittest.main()
