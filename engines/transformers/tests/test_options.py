"""Tests options: their defaults, and which cannot be combined."""

import unittest
from itertools import product

import support  # noqa: F401  It sets the engine's path.

from engine_kit import Failed
from options import OPTIONS, PATHS, default_dtype, read_options


def refusal(test, options, device="cpu"):
    with test.assertRaises(Failed) as caught:
        read_options(options, device)
    return caught.exception


class Options(unittest.TestCase):
    def test_nothing_said_is_generate_as_it_comes(self):
        said = read_options({}, "cpu")
        self.assertEqual((said.path, said.quantize, said.attention, said.shard), ("generate", "none", "sdpa", 1))

    def test_every_option_that_the_worker_names_is_read(self):
        self.assertLessEqual(set(OPTIONS), set(vars(read_options({}, "cpu"))))

    def test_compile_takes_graphs_where_there_are_graphs(self):
        self.assertEqual(read_options({"path": "compile"}, "cpu").mode, "default")
        self.assertEqual(read_options({"path": "compile"}, "cuda").mode, "reduce-overhead")

    def test_what_needs_cuda_says_so_on_a_cpu_and_is_read_on_cuda(self):
        for options, words in [
            ({"path": "cuda-graph"}, "path `cuda-graph` needs a CUDA device, and this load is for `cpu`"),
            ({"path": "jit-cuda-graph"}, "path `jit-cuda-graph` needs a CUDA device, and this load is for `cpu`"),
            ({"quantize": "nf4"}, "quantize `nf4` needs a CUDA device, and this load is for `cpu`"),
            ({"shard": 2}, "`shard` 2 needs CUDA devices, and this load is for `cpu`"),
        ]:
            failed = refusal(self, options)
            self.assertEqual((failed.kind, failed.message), ("unsupported", words))
            read_options(options, "cuda:1")

    def test_words_and_numbers_from_a_command_line_count_as_what_they_spell(self):
        said = read_options({"path": "compile", "fusion": "false", "cache_tokens": "512"}, "cpu")
        self.assertEqual((said.fusion, said.cache_tokens), (False, 512))

    def test_a_word_that_nobody_knows_is_refused_with_those_that_are_known(self):
        failed = refusal(self, {"path": "fastest"})
        self.assertIn("option `path` `fastest`: offered are `generate`, `loop`", failed.message)
        for options, words in [
            ({"path": 3}, "option `path`: expected a word, found `3`"),
            ({"shard": "two"}, "option `shard`: expected a whole number of at least 1, found `two`"),
            ({"cache_tokens": 0, "path": "jit"}, "option `cache_tokens`: expected a whole number of at least 16"),
            ({"fusion": "perhaps", "path": "compile"}, "option `fusion`: expected true or false"),
        ]:
            self.assertIn(words, refusal(self, options).message)

    def test_an_option_that_would_change_nothing_is_refused_with_what_it_belongs_to(self):
        for options, hint in [
            ({"mode": "max-autotune"}, "--set path=compile"),
            ({"compiler": "inductor", "path": "compile"}, "--set path=jit"),
            ({"fusion": False}, "--set path=compile"),
            ({"fusion": False, "path": "loop"}, "--set path=compile"),
            ({"fusion": False, "path": "fast"}, None),
            ({"fusion": False, "path": "jit"}, "--set compiler=inductor"),
            ({"cache_tokens": 512}, "--set path=compile"),
            ({"quantize": "int8"}, "--set path=fast"),
            ({"quantize": "int8", "path": "compile"}, "--set path=fast"),
            ({"quantize": "int4", "path": "fast"}, "--set quantize=int8"),
            ({"quantize": "int8-dynamic", "path": "fast"}, "--set quantize=int8"),
            ({"quantize": "nf4", "path": "fast"}, "--set quantize=int8"),
        ]:
            failed = refusal(self, options)
            self.assertEqual((failed.kind, failed.hint), ("unsupported", hint), failed.message)

    def test_whoever_does_what_hints_say_gets_somewhere(self):
        offered = {
            "path": [None, *PATHS],
            "quantize": [None, "int8", "int4"],
            "mode": [None, "max-autotune"],
            "compiler": [None, "inductor"],
            "fusion": [None, False],
            "cache_tokens": [None, 512],
            "shard": [None, 2],
            "attention": [None, "flash"],
        }
        for values in product(*offered.values()):
            options = {name: value for name, value in zip(offered, values) if value is not None}
            seen, hint = [], ""
            while hint is not None:
                self.assertNotIn(options, seen)
                seen.append(options)
                try:
                    hint = read_options(options, "cuda") and None
                except Failed as failed:
                    hint = failed.hint
                    if hint is not None:
                        name, value = hint.removeprefix("--set ").split("=")
                        options = {**options, name: value}

    def test_what_cannot_stand_together_is_refused(self):
        for options, words in [
            ({"attention": "flash", "path": "compile"}, "the flash kernel takes no mask"),
            ({"shard": 2, "path": "cuda-graph"}, "its step lives on one device"),
            ({"shard": 2, "quantize": "int4"}, "it is quantised on one device"),
            ({"quantize": "int4", "path": "jit"}, "with compiler `torchscript`"),
        ]:
            failed = refusal(self, options, "cuda")
            self.assertEqual(failed.kind, "unsupported")
            self.assertIn(words, failed.message)

    def test_the_dtype_that_nobody_names_depends_on_the_device_and_on_four_bits(self):
        for path in PATHS:
            # The fastest path needs no more than 16 bits.
            self.assertEqual(default_dtype({"path": path}, "cpu"), "bf16" if path == "fast" else "f32", path)
        self.assertEqual(default_dtype({}, "cuda:1"), "bf16")
        self.assertEqual(default_dtype({"quantize": "int4"}, "cpu"), "bf16")
        self.assertEqual(default_dtype({"quantize": "int8-dynamic"}, "cpu"), "f32")
        self.assertEqual(default_dtype({"path": "fast", "quantize": "int8"}, "cpu"), "bf16")
        self.assertEqual(read_options({"path": "fast", "quantize": "int8"}, "cuda").quantize, "int8")


if __name__ == "__main__":
    unittest.main()
