"""Tests `hello`, the messages about a missing or changed library, and the use of the real PyTorch and `tokenizers`."""

import importlib.util
import sys
import unittest
from pathlib import Path

from support import ENGINE, TIMEOUT_S, EngineProcess, write_folder

import library

HAS_TORCH, HAS_TOKENIZERS = (importlib.util.find_spec(name) is not None for name in ("torch", "tokenizers"))
EMBEDDED = Path(__file__).resolve().parents[3] / "models" / "embedded"

HELLO = {"type": "hello", "protocol": 1}


class Hello(unittest.TestCase):
    def test_hello_does_not_import_the_library(self):
        engine = EngineProcess(self)
        hello = engine.request(**HELLO)
        self.assertEqual((hello["type"], hello["engine"], hello["version"]), ("hello", "tensorrt-llm", "1.2.1"))
        self.assertEqual((hello["stamp"], hello["deterministic"]), ("chunk", False))
        capabilities = hello["capabilities"]
        expected = {"devices": ["cuda"], "ignore_eos": "exact", "score": True, "batch": 64, "concurrency": 64}
        self.assertEqual({name: capabilities[name] for name in expected}, expected)
        self.assertEqual(capabilities["padding_sides"], ["packed"])
        self.assertFalse(capabilities["use_cache_toggle"])
        # The stand-in records its environment when it is imported.
        self.assertEqual(engine.records("environment"), [])

    def test_a_missing_library_is_reported_with_an_installation_hint(self):
        failed = EngineProcess(self, version=None).request(**HELLO)
        self.assertEqual(failed["kind"], "unavailable")
        self.assertEqual(failed["message"], f"TensorRT-LLM is not installed in `{sys.executable}`")
        self.assertIn("export ORCHESTRATE_PYTHON_TENSORRT_LLM=", failed["hint"])
        self.assertIn("`tensorrt-llm/release:1.2.1`", failed["hint"])

    def test_the_manifest_and_the_program_have_the_same_installation_hint(self):
        for file in ("engine.toml", "src/main.rs"):
            self.assertIn(f'"{library.INSTALL_HINT}"', (ENGINE / file).read_text(), file)

    def test_the_program_contains_every_python_file_of_the_engine(self):
        program = (ENGINE / "src/main.rs").read_text()
        for file in ENGINE.glob("*.py"):
            self.assertIn(f'("{file.name}", include_str!("../{file.name}"))', program)

    def test_metadata_without_a_package_counts_as_not_installed(self):
        failed = EngineProcess(self, stand_in=False).request(**HELLO)
        self.assertIn("TensorRT-LLM is not installed in", failed["message"])

    def test_a_missing_driver_is_reported(self):
        failed = EngineProcess(self, faults=["no_driver"]).request(**HELLO)
        self.assertEqual((failed["kind"], failed["message"]), ("unavailable", "no NVIDIA driver found"))
        both_missing = EngineProcess(self, version=None, faults=["no_driver"]).request(**HELLO)
        self.assertIn(" and no NVIDIA driver found", both_missing["message"])


class InterfaceComparison(unittest.TestCase):
    def failed_load(self, *faults, version="1.2.1"):
        engine = EngineProcess(self, version=version, faults=list(faults))
        failed = engine.load(write_folder(self))
        self.assertEqual((failed["type"], failed.get("kind")), ("failed", "unavailable"), failed)
        self.assertEqual(engine.records("llm_class"), [])
        return failed

    def test_a_library_that_cannot_be_imported_is_reported_with_the_error(self):
        failed = self.failed_load("import_error")
        message = "TensorRT-LLM 1.2.1 cannot be imported: ImportError: libmpi.so.40: cannot open shared object file"
        self.assertIn(message, failed["message"])
        self.assertIn("ORCHESTRATE_PYTHON_TENSORRT_LLM", failed["hint"])

    def test_a_missing_method_is_named_with_both_versions(self):
        failed = self.failed_load("no_generate_async", version="1.9.0")
        message = "TensorRT-LLM 1.9.0 has another interface than 1.2.1, for which this engine was written: "
        self.assertEqual(failed["message"], f"{message}`LLM.generate_async` is missing")

    def test_a_missing_parameter_and_a_new_required_one_are_named(self):
        message = self.failed_load("other_arguments")["message"]
        takes = "it takes `prompt`, `sampling_params`, `streaming`, `deadline`"
        self.assertIn(f"`LLM.generate_async` takes no `inputs`: {takes}", message)
        self.assertIn("`LLM.generate_async` needs `deadline`, which this engine does not pass", message)

    def test_a_renamed_field_and_a_renamed_class_are_named(self):
        message = self.failed_load("renamed_fields")["message"]
        self.assertIn("`KvCacheConfig` has no field `enable_block_reuse`: it has `reuse_blocks`", message)
        self.assertIn("`KvCacheConfig` has no field `free_gpu_memory_fraction`", message)
        self.assertIn("`tensorrt_llm.llmapi.CudaGraphConfig` is missing", message)

    def test_another_version_with_the_same_interface_runs_with_a_note(self):
        engine = EngineProcess(self, version="1.2.9")
        self.assertEqual(engine.load(write_folder(self))["type"], "loaded")
        engine.request(type="shutdown")
        engine.process.wait(timeout=TIMEOUT_S)
        self.assertIn(b"was written for TensorRT-LLM 1.2.1", b"".join(engine.stderr))


class RealPackages(unittest.TestCase):
    """Tests that need packages which the library uses. The Python of `scripts/python-of pytorch-baseline` has them."""

    @unittest.skipUnless(HAS_TORCH, "PyTorch is not installed in this Python")
    def test_log_probabilities_of_real_tensors_equal_log_softmax(self):
        import torch

        torch.manual_seed(1)
        logits, ids = torch.randn(5, 70).bfloat16(), [3, 64, 0, 17, 9]
        expected = torch.log_softmax(logits[:, :65].double(), dim=-1)[range(5), ids]
        # The library pads the vocabulary for the GPU (here from 65 ids to 70). Some backends add a dimension of size 1.
        for library_logits in (logits, logits[None]):
            values = library.logprobs(library_logits, ids, 65)
            self.assertTrue(torch.allclose(torch.tensor(values, dtype=torch.float64), expected, atol=1e-12))
        self.assertEqual(len(library.logprobs(logits.float(), ids[:2], 65)), 2)

    @unittest.skipUnless(HAS_TOKENIZERS, "`tokenizers` is not installed in this Python")
    def test_the_tokenizer_of_the_model_converts_text_to_ids(self):
        from tokenizers import Tokenizer

        engine = EngineProcess(self)
        self.assertEqual(engine.load(EMBEDDED)["type"], "loaded")
        answer = engine.request(type="generate", prompt="Hello", max_new_tokens=2)
        (request,) = engine.records("prompt_ids")
        self.assertEqual(request["prompt_ids"], Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")).encode("Hello").ids)
        self.assertIn("text", answer["iterations"][0]["sequences"][0])


if __name__ == "__main__":
    unittest.main()
