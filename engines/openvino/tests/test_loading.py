"""Tests loads: the configuration in effect, conversions, and refusals."""

import shutil
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

from support import load_model, random_model, scores_of_transformers

import checkpoint
import openvino
from safetensors.torch import load_file, save_file

import convert
import loading
from engine_kit import Failed, Phases
from engine_tests import FULL_TESTS, changed_folder, drift, scratch, status_of_planted_conversion
from worker import ARCHITECTURES

HAS_BF16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
IDS = [(7 * index * index + 3 * index) % 97 for index in range(80)]

# Bounds of the root mean square difference of log-probabilities from f32, with random weights.
MAX_DRIFT = {"bf16": 0.05, "int8": 0.1, "int4": 0.8}


class Configuration(unittest.TestCase):
    def test_facts_report_what_openvino_reports_and_not_the_request(self):
        facts = load_model(random_model(), {"kv": "u8"}, threads=1, context_tokens=256).facts()
        expected = {
            "device": "cpu", "threads": 1, "weights_dtype": "f32", "compute_dtype": "f32", "kv_dtype": "u8",
            "context_tokens": 256, "vocabulary_size": 97, "bos_id": 0, "eos_ids": [1], "layers": 2, "prefix_cache": False,
        }
        self.assertEqual({name: facts[name] for name in expected}, expected)
        self.assertEqual(facts["parameters"], sum(weights.numel() for weights in random_model().network.parameters()))
        self.assertTrue(loading.openvino_genai.__version__.startswith(facts["libraries"]["openvino-genai"]))

    def test_f32_keeps_keys_and_values_in_f32_unless_the_load_requests_otherwise(self):
        self.assertEqual(load_model(random_model()).facts()["kv_dtype"], "f32")
        exact = scores_of_transformers(random_model().network, IDS)
        self.assertLess(drift(load_model(random_model()).score(IDS), exact), 1e-5)
        self.assertGreater(drift(load_model(random_model(), {"kv": "u8"}).score(IDS), exact), 1e-4)

    def test_without_a_dtype_openvino_chooses_between_bf16_and_f32(self):
        dtype = "bf16" if HAS_BF16 else "f32"
        facts = load_model(random_model(dtype=dtype), dtype=None).facts()
        self.assertEqual((facts["weights_dtype"], facts["compute_dtype"]), (dtype, dtype))

    def test_a_dtype_or_precision_without_instructions_is_refused_and_not_computed_in_f32(self):
        with mock.patch.object(openvino.Core, "get_property", lambda *_: ["FP32"]):
            with self.assertRaises(Failed) as caught:
                loading.resolve_dtype("bf16")
            self.assertEqual((caught.exception.kind, caught.exception.hint), ("unsupported", "--dtype f32"))
            self.assertEqual(loading.resolve_dtype(None), "f32")
        # The facts are those of a processor on which OpenVINO ignored the request.
        facts = {**load_model(random_model()).facts(), "weights_dtype": "int8"}
        with self.assertRaisesRegex(Failed, "`compute_dtype`: `bf16` was requested, and OpenVINO uses `f32`"):
            loading.check_in_effect(facts, "int8", SimpleNamespace(kv=None, precision="bf16"))
        with self.assertRaisesRegex(Failed, "`kv_dtype`: `f16` was requested, and OpenVINO uses `f32`"):
            loading.check_in_effect(facts, "int8", SimpleNamespace(kv="f16", precision=None))

    def test_keys_and_values_in_a_dtype_without_a_kernel_are_refused(self):
        with self.assertRaisesRegex(Failed, "option `kv`: .* in `bf16`") as caught:
            load_model(random_model(), {"kv": "bf16"})
        self.assertEqual(caught.exception.kind, "unsupported")

    def test_narrow_dtypes_drift_within_their_bounds_and_are_narrow_in_the_file(self):
        for dtype, bound in MAX_DRIFT.items():
            if dtype == "bf16" and not HAS_BF16:
                continue
            with self.subTest(dtype):
                made = random_model(dtype=dtype, hidden_size=128, intermediate_size=256)
                model = load_model(made, dtype=dtype)
                self.assertEqual(model.facts()["weights_dtype"], dtype)
                # As in the exporter's own conversions.
                self.assertEqual(model.facts()["kv_dtype"], "f16" if dtype == "bf16" else "u8")
                found = drift(model.score(IDS), scores_of_transformers(made.network, IDS))
                print(f"{dtype}: drift {found:.4f}", file=sys.stderr)
                self.assertLess(found, bound)
                self.assertGreater(found, 1e-4)


class Conversions(unittest.TestCase):
    def test_a_checkpoint_without_a_tensor_or_with_weights_that_are_nan_is_not_converted(self):
        name = "model.layers.1.mlp.up_proj.weight"

        def with_tensors(change):
            folder = changed_folder(random_model().folder)
            tensors = load_file(folder / "model.safetensors")
            change(tensors)
            (folder / "model.safetensors").unlink()
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
            return folder

        def with_number(value):
            return with_tensors(lambda tensors: tensors[name].__setitem__((3, 5), value))

        for value in (float("nan"), float("inf"), -float("inf")):
            with self.assertRaisesRegex(convert.Refused, f"`{name}` has weights that are NaN or infinite"):
                convert.main(with_number(value), "f32", scratch() / "converted")
        with self.assertRaisesRegex(convert.Refused, "a weight of 100000, too large for f16\nhint: --dtype f32"):
            convert.main(with_number(1e5), "int8", scratch() / "converted")
        for change, message in (
            (lambda tensors: tensors.pop(name), f"has no tensor `{name}`"),
            (lambda tensors: tensors.update({name: tensors[name][:95].clone()}), f"`{name}`: expected the shape .96, 64., found .95, 64."),
        ):
            with self.assertRaisesRegex(Failed, message):
                checkpoint.open_checkpoint(with_tensors(change), ARCHITECTURES)

    def test_a_folder_that_the_exporter_would_read_wrongly_is_refused(self):
        made = random_model()
        for fields, kind, message in [
            ({"num_hidden_layers": 1}, "model", "has tensors of layer 1, and the config has 1 layers"),
            ({"quantization_config": {"quant_method": "gptq"}}, "unsupported", "already quantized .`gptq`."),
            ({"model_type": "gemma"}, "unsupported", "architecture `gemma`: expected one of `llama`"),
            ({"tie_word_embeddings": True}, "model", "`lm_head.weight` differs from"),
            ({"vocab_size": None}, "model", "`vocab_size` is missing"),
            ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "unsupported", "rope scaling `dynamic`"),
        ]:
            with self.assertRaisesRegex(Failed, message) as caught:
                load_model(SimpleNamespace(folder=changed_folder(made.folder, **fields), converted=made.converted))
            self.assertEqual(caught.exception.kind, kind, fields)
        with self.assertRaisesRegex(Failed, "`context_tokens`: 513 is more than the 512"):
            load_model(made, context_tokens=513)

    def test_an_incomplete_conversion_fails_the_load(self):
        folder = scratch() / "incomplete"
        shutil.copytree(random_model().converted, folder)
        (folder / "openvino_model.bin").write_bytes(b"")
        with self.assertRaises(Failed) as caught:
            load_model(SimpleNamespace(folder=random_model().folder, converted=folder))
        self.assertEqual(caught.exception.kind, "model")

    @unittest.skipUnless(FULL_TESTS, "measures with the orchestrator; ORCHESTRATE_FULL_TESTS=1 runs it")
    def test_a_run_finds_a_conversion_of_other_weights(self):
        def convert_model(model):
            return loading.convert_folder(checkpoint.open_checkpoint(model, ARCHITECTURES), "f32", Phases())

        self.assertEqual(status_of_planted_conversion("openvino", convert_model), "wrong")


if __name__ == "__main__":
    unittest.main()
