"""Tests the defaults of options, and the refusals of invalid and incompatible options."""

import unittest
from itertools import product

import support  # noqa: F401  This import adds the engine to `sys.path`.

from engine_kit import Failed
from options import OPTIONS, PATHS, default_dtype, read_options


def failure(test, options, device="cpu"):
    with test.assertRaises(Failed) as caught:
        read_options(options, device)
    return caught.exception


class Options(unittest.TestCase):
    def test_the_default_path_is_generate_of_transformers_without_quantization(self):
        options = read_options({}, "cpu")
        self.assertEqual((options.path, options.quantize, options.attention, options.shard), ("generate", "none", "sdpa", 1))

    def test_every_option_that_the_worker_names_is_read(self):
        self.assertLessEqual(set(OPTIONS), set(vars(read_options({}, "cpu"))))

    def test_compile_uses_cuda_graphs_on_cuda_only(self):
        self.assertEqual(read_options({"path": "compile"}, "cpu").mode, "default")
        self.assertEqual(read_options({"path": "compile"}, "cuda").mode, "reduce-overhead")

    def test_options_for_cuda_are_refused_on_a_cpu(self):
        for options, text in [
            ({"path": "cuda-graph"}, "path `cuda-graph` needs a CUDA device, and this load is for `cpu`"),
            ({"path": "jit-cuda-graph"}, "path `jit-cuda-graph` needs a CUDA device, and this load is for `cpu`"),
            ({"quantize": "nf4"}, "quantize `nf4` needs a CUDA device, and this load is for `cpu`"),
            ({"shard": 2}, "`shard` 2 needs CUDA devices, and this load is for `cpu`"),
        ]:
            failed = failure(self, options)
            self.assertEqual((failed.kind, failed.message), ("unsupported", text))
            read_options(options, "cuda:1")

    def test_values_of_number_and_boolean_options_can_be_text(self):
        options = read_options({"path": "compile", "fusion": "false", "cache_tokens": "512"}, "cpu")
        self.assertEqual((options.fusion, options.cache_tokens), (False, 512))

    def test_the_refusal_of_an_unknown_value_lists_the_known_values(self):
        failed = failure(self, {"path": "fastest"})
        self.assertIn("option `path` `fastest`: expected one of `generate`, `loop`", failed.message)
        for options, text in [
            ({"path": 3}, "option `path`: expected a text, found `3`"),
            ({"shard": "two"}, "option `shard`: expected a whole number of at least 1, found `two`"),
            ({"cache_tokens": 0, "path": "jit"}, "option `cache_tokens`: expected a whole number of at least 16"),
            ({"fusion": "perhaps", "path": "compile"}, "option `fusion`: expected true or false"),
        ]:
            self.assertIn(text, failure(self, options).message)

    def test_the_refusal_of_an_option_without_effect_names_the_setting_that_it_needs(self):
        for options, hint in [
            ({"mode": "max-autotune"}, "--set path=compile"),
            ({"compiler": "inductor", "path": "compile"}, "--set path=jit"),
            ({"fusion": False}, "--set path=compile"),
            ({"fusion": False, "path": "loop"}, "--set path=compile"),
            ({"fusion": False, "path": "fast"}, None),
            ({"fusion": False, "path": "jit"}, "--set compiler=inductor"),
            ({"fusion": False, "path": "compile", "mode": "max-autotune"}, "--set fusion=true"),
            ({"cache_tokens": 512}, "--set path=compile"),
            ({"quantize": "int8"}, "--set path=fast"),
            ({"quantize": "int8", "path": "compile"}, "--set path=fast"),
            ({"quantize": "int4", "path": "fast"}, "--set quantize=int8"),
            ({"quantize": "int8-dynamic", "path": "fast"}, "--set quantize=int8"),
            ({"quantize": "nf4", "path": "fast"}, "--set quantize=int8"),
        ]:
            failed = failure(self, options)
            self.assertEqual((failed.kind, failed.hint), ("unsupported", hint), failed.message)
        # On CUDA a mode also decides about CUDA graphs.
        read_options({"fusion": False, "path": "compile", "mode": "max-autotune"}, "cuda")

    def test_following_the_hints_never_leads_back_to_the_same_options(self):
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
            previous, hint = [], ""
            while hint is not None:
                self.assertNotIn(options, previous)
                previous.append(options)
                try:
                    read_options(options, "cuda")
                    hint = None
                except Failed as failed:
                    hint = failed.hint
                    if hint is not None:
                        name, value = hint.removeprefix("--set ").split("=")
                        options = {**options, name: value}

    def test_incompatible_options_are_refused(self):
        for options, text in [
            ({"attention": "flash", "path": "compile"}, "the flash kernel takes no mask"),
            ({"shard": 2, "path": "cuda-graph"}, "its step runs on one device"),
            ({"shard": 2, "quantize": "int4"}, "the weights are quantized on one device"),
            ({"quantize": "int4", "path": "jit"}, "with compiler `torchscript`"),
        ]:
            failed = failure(self, options, "cuda")
            self.assertEqual(failed.kind, "unsupported")
            self.assertIn(text, failed.message)

    def test_the_default_dtype_depends_on_the_device_the_path_and_the_quantization(self):
        for path in PATHS:
            self.assertEqual(default_dtype({"path": path}, "cpu"), "bf16" if path == "fast" else "f32", path)
        self.assertEqual(default_dtype({}, "cuda:1"), "bf16")
        self.assertEqual(default_dtype({"quantize": "int4"}, "cpu"), "bf16")
        self.assertEqual(default_dtype({"quantize": "int8-dynamic"}, "cpu"), "f32")
        self.assertEqual(default_dtype({"path": "fast", "quantize": "int8"}, "cpu"), "bf16")
        self.assertEqual(read_options({"path": "fast", "quantize": "int8"}, "cuda").quantize, "int8")


if __name__ == "__main__":
    unittest.main()
