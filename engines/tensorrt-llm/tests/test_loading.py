"""Tests loads: the library's arguments, the reported facts, and the refused loads."""

import json
import unittest

from support import PROMPT, EngineProcess, expected_ids, ids, loaded_engine, write_folder

FP8 = {"quant_algo": "FP8", "kv_cache_quant_algo": None}


class LoadArguments(unittest.TestCase):
    def llm_call(self, **fields):
        """Loads a model. Returns the stand-in's record of the call of `LLM`."""
        engine = loaded_engine(self, **fields)
        (call,) = engine.records("llm_class")
        return call

    def test_preset_basic_has_no_graphs_and_no_overlap_and_keeps_the_models_dtype(self):
        folder = write_folder(self)
        call = self.llm_call(folder=folder, options={"cuda_graphs": False, "overlap": False, "fp8": "off"})
        self.assertEqual((call["llm_class"], call["module"]), ("LLM", "tensorrt_llm.llmapi"))
        self.assertEqual(call["model"], str(folder.resolve()))
        self.assertEqual((call["skip_tokenizer_init"], call["trust_remote_code"]), (True, False))
        self.assertEqual((call["tensor_parallel_size"], call["dtype"], call["visible"]), (1, "auto", "0"))
        kwargs = call["kwargs"]
        self.assertEqual((kwargs["cuda_graph_config"], kwargs["disable_overlap_scheduler"]), (None, True))
        self.assertEqual((kwargs["max_batch_size"], kwargs["max_seq_len"], kwargs["max_num_tokens"]), (64, 128, 8192))
        self.assertEqual((kwargs["enable_chunked_prefill"], kwargs["stream_interval"]), (False, 1))
        pool = kwargs["kv_cache_config"]
        self.assertEqual((pool["enable_block_reuse"], pool["free_gpu_memory_fraction"]), (False, 0.9))
        self.assertEqual((pool["max_tokens"], pool["dtype"]), (None, "auto"))

    def test_preset_optimized_captures_graphs_of_several_batch_sizes_with_padding(self):
        options = {"cuda_graphs": True, "overlap": True, "fp8": "auto"}
        kwargs = self.llm_call(options=options)["kwargs"]
        graphs = kwargs["cuda_graph_config"]
        self.assertEqual((graphs["batch_sizes"], graphs["enable_padding"]), ([1, 2, 4, 8, 16, 32, 64], True))
        self.assertEqual((kwargs["disable_overlap_scheduler"], kwargs["kv_cache_config"]["dtype"]), (False, "auto"))
        # These options are the defaults.
        self.assertEqual(self.llm_call()["kwargs"], kwargs)
        small = self.llm_call(options={**options, "max_batch": 12})["kwargs"]
        self.assertEqual((small["cuda_graph_config"]["batch_sizes"], small["max_batch_size"]), ([1, 2, 4, 8, 12], 12))

    def test_keys_and_values_are_fp8_on_request_or_with_an_fp8_model(self):
        for quantization, fp8, expected in (
            (None, "auto", "auto"),
            (None, "on", "fp8"),
            (FP8, "auto", "fp8"),
            (FP8, "off", "auto"),
            ({"quant_algo": "W4A16_AWQ"}, "auto", "auto"),
        ):
            folder = write_folder(self, quantization=quantization)
            call = self.llm_call(folder=folder, options={"fp8": fp8})
            self.assertEqual(call["kwargs"]["kv_cache_config"]["dtype"], expected, (quantization, fp8))

    def test_pool_context_dtype_and_device_reach_the_library(self):
        engine = EngineProcess(self, gpus=[["A", [9, 0]], ["B", [9, 0]], ["C", [9, 0]]])
        options = {"memory_fraction": 0.25, "pool_tokens": 4096, "tp": "2"}
        folder = write_folder(self, {"max_position_embeddings": 20000})
        engine.load(folder, options=options, device="cuda:1", dtype="f16", context_tokens=16000)
        (call,) = engine.records("llm_class")
        pool = call["kwargs"]["kv_cache_config"]
        self.assertEqual((pool["free_gpu_memory_fraction"], pool["max_tokens"]), (0.25, 4096))
        self.assertEqual((call["tensor_parallel_size"], call["visible"], call["dtype"]), (2, "1,2", "float16"))
        # A prompt with more tokens than one pass computes needs chunks.
        self.assertEqual((call["kwargs"]["max_seq_len"], call["kwargs"]["enable_chunked_prefill"]), (16000, True))

    def test_a_device_number_counts_only_the_devices_in_the_callers_list(self):
        engine = EngineProcess(self, environment={"CUDA_VISIBLE_DEVICES": "5,7"}, gpus=[["A", [9, 0]]] * 8)
        folder = write_folder(self)
        engine.load(folder, device="cuda:1")
        engine.load(folder, device="cuda:0")
        self.assertEqual([call["visible"] for call in engine.records("llm_class")], ["7", "5"])

    def test_the_library_sees_the_first_device_of_the_callers_list_as_cuda_reads_the_list(self):
        folder = write_folder(self)
        three_gpus = {"gpus": [["A", [9, 0]]] * 3, "partitioned_gpu": 1}
        cases = (("1gpu, 0", "1"), ("GPU-2,GPU-0f", "GPU-2"), ("MIG-10,MIG-11", "MIG-10"), ("2,-1,0", "2"))
        for visible_list, expected in cases:
            engine = EngineProcess(self, environment={"CUDA_VISIBLE_DEVICES": visible_list}, **three_gpus)
            self.assertEqual(engine.load(folder)["type"], "loaded", visible_list)
            self.assertEqual([call["visible"] for call in engine.records("llm_class")], [expected])

    def test_the_backend_tensorrt_has_separate_phases_for_build_and_load(self):
        engine = EngineProcess(self)
        options = {"backend": "tensorrt", "cuda_graphs": False, "overlap": False, "context_logits": True}
        message = engine.load(write_folder(self), options=options)
        (call,) = engine.records("llm_class")
        self.assertEqual(call["module"], "tensorrt_llm._tensorrt_engine")
        self.assertEqual(
            call["kwargs"]["build_config"],
            {
                "max_input_len": 1024,  # The stand-in's default.
                "max_seq_len": 128,
                "max_batch_size": 64,
                "max_num_tokens": 8192,
                "gather_context_logits": True,
            },
        )
        self.assertNotIn("cuda_graph_config", call["kwargs"])
        phases = [phase["name"] for phase in message["phases"]]
        self.assertEqual(phases, ["headers", "import", "check", "build", "load"])
        build = next(phase["ns"] for phase in message["phases"] if phase["name"] == "build")
        self.assertEqual(build, 300_000)  # The stand-in reports steps of 0.1 ms and 0.2 ms.

    def test_the_library_is_offline_without_telemetry(self):
        names = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TRTLLM_NO_USAGE_STATS", "TELEMETRY_DISABLED", "DO_NOT_TRACK"]
        engine = loaded_engine(self, variables=names)
        (record,) = engine.records("environment")
        self.assertEqual(record["environment"], dict(zip(names, ["1", "1", "1", "true", "1"])))


class LoadFacts(unittest.TestCase):
    def test_facts_are_the_configuration_in_effect(self):
        engine = EngineProcess(self)
        message = engine.load(write_folder(self), options={"memory_fraction": 0.5, "max_batch": 4})
        expected = {
            "device": "cuda",
            "weights_dtype": "bf16",
            "compute_dtype": "bf16",
            "kv_dtype": "bf16",
            "architecture": "llama",
            "context_tokens": 128,
            "use_cache": True,
            "prefix_cache": False,
            "vocabulary_size": 64,
            "hidden_size": 32,
            "parameters": 64 * 32,
            "weights_bytes": 2 * 64 * 32,
            "eos_ids": [3],
            "bos_id": 1,
        }
        self.assertEqual({name: message.get(name) for name in expected}, expected)
        self.assertEqual(message["libraries"]["tensorrt-llm"], "1.2.1")
        self.assertEqual([phase["name"] for phase in message["phases"]], ["headers", "import", "check", "load"])
        in_effect = message["in_effect"]
        self.assertEqual((in_effect["cuda_graph_batch_sizes"], in_effect["overlap_scheduler"]), ([1, 2, 4], True))
        self.assertEqual((in_effect["block_reuse"], in_effect["pool_fraction"]), (False, 0.5))

    def test_only_known_dtypes_are_reported(self):
        def reported_dtypes(folder, **fields):
            message = EngineProcess(self).load(folder, **fields)
            return [message.get(name) for name in ("weights_dtype", "compute_dtype", "kv_dtype")]

        f32_folder = write_folder(self, {"torch_dtype": "float32"}, dtype="F32")
        self.assertEqual(reported_dtypes(f32_folder), [None, None, None])
        self.assertEqual(reported_dtypes(f32_folder, dtype="bf16"), ["bf16", "bf16", "bf16"])
        self.assertEqual(reported_dtypes(write_folder(self, quantization=FP8, dtype="F8_E4M3")), ["fp8", "bf16", "fp8"])
        awq_folder = write_folder(self, quantization={"quant_algo": "W4A16_AWQ"})
        self.assertEqual(reported_dtypes(awq_folder), [None, "bf16", "bf16"])
        self.assertEqual(reported_dtypes(write_folder(self), options={"fp8": "on"}), ["bf16", "bf16", "fp8"])

    def test_a_second_load_ends_the_first(self):
        engine = loaded_engine(self)
        message = engine.load(write_folder(self), options={"overlap": False})
        self.assertEqual((message["type"], len(engine.records("shut_down"))), ("loaded", 1))
        self.assertEqual(ids(engine.generate(max_new_tokens=2, ignore_eos=True)), expected_ids(PROMPT, 2))


class RefusedLoads(unittest.TestCase):
    def failed_load(self, folder=None, settings=None, **fields):
        engine = EngineProcess(self, **(settings or {}))
        failed = engine.load(folder or write_folder(self), **fields)
        self.assertEqual((failed["type"], engine.records("workers")), ("failed", []), failed)
        return failed

    def test_the_refusal_of_an_unknown_or_invalid_option_names_it(self):
        for option, message in {
            ("colour", "red"): "unknown option `colour`",
            ("tp", 0): "option `tp`: expected a whole number from 1 to 1024, found `0`",
            ("tp", "two"): 'option `tp`: expected a whole number from 1 to 1024, found `"two"`',
            ("max_batch", 65): "option `max_batch`: expected a whole number from 1 to 64, found `65`",
            ("memory_fraction", 1.5): "option `memory_fraction`: expected a number above 0, at most 1, found `1.5`",
            ("overlap", "maybe"): 'option `overlap`: expected true or false, found `"maybe"`',
            ("fp8", 8): "option `fp8`: expected one of `auto`, `on`, `off`, found `8`",
            ("backend", "autodeploy"): 'option `backend`: expected one of `pytorch`, `tensorrt`, found `"autodeploy"`',
            ("context_logits", True): "option `context_logits`: only the backend `tensorrt` has this option",
        }.items():
            failed = self.failed_load(options=dict([option]))
            self.assertEqual((failed["kind"], failed["message"]), ("bad_request", message))

    def test_an_option_that_a_backend_lacks_is_refused(self):
        failed = self.failed_load(options={"backend": "tensorrt", "cuda_graphs": True})
        self.assertEqual(failed["message"], "option `cuda_graphs`: only the backend `pytorch` has this option")

    def test_fp8_is_refused_on_a_gpu_without_fp8(self):
        ampere = {"gpus": [["A100-SXM4", [8, 0]]]}
        failed = self.failed_load(settings=ampere, options={"fp8": "on"})
        self.assertEqual(failed["message"], "option `fp8`: `A100-SXM4` has compute capability 8.0, fp8 needs 8.9")
        failed = self.failed_load(write_folder(self, quantization=FP8), settings=ampere)
        self.assertIn("is in fp8: `A100-SXM4` has compute capability 8.0", failed["message"])
        self.assertEqual(failed["kind"], "unsupported")

    def test_only_the_selected_gpus_must_support_fp8(self):
        gpus = [["H100", [9, 0]], ["T400", [7, 5]]]
        folder = write_folder(self, quantization=FP8)
        self.assertEqual(EngineProcess(self, gpus=gpus).load(folder, device="cuda:0")["type"], "loaded")
        failed = self.failed_load(folder, settings={"gpus": gpus}, device="cuda:1")
        self.assertIn("`T400` has compute capability 7.5, fp8 needs 8.9", failed["message"])
        self.assertIn("`T400`", self.failed_load(folder, settings={"gpus": gpus}, options={"tp": 2})["message"])
        # With this order only CUDA knows which GPU comes first, so fp8 is refused only if all GPUs lack it.
        by_speed = {"environment": {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}}
        self.assertEqual(EngineProcess(self, gpus=gpus, **by_speed).load(folder)["type"], "loaded")
        self.failed_load(folder, settings={"gpus": gpus[1:] * 2, **by_speed})

    def test_a_load_without_a_visible_device_is_refused_before_the_import(self):
        for visible_list in ("", "-1", "0,0", "7", "NoDevFiles", "GPU-abc", "MIG-1"):
            failed = self.failed_load(settings={"environment": {"CUDA_VISIBLE_DEVICES": visible_list}})
            message = f"no `cuda`: this machine has 1 GPU, and `CUDA_VISIBLE_DEVICES={visible_list}` shows none"
            self.assertEqual((failed["kind"], failed["message"]), ("unavailable", message))

    def test_more_gpus_than_the_machine_has_are_refused(self):
        failed = self.failed_load(options={"tp": 2})
        message = "option `tp`: 2 GPUs starting at `cuda` are needed, but this machine has 1 GPU"
        self.assertEqual((failed["kind"], failed["message"]), ("unavailable", message))
        self.assertEqual(self.failed_load(device="cuda:3")["message"], "no `cuda:3`: this machine has 1 GPU")
        self.assertEqual(self.failed_load(device="cpu")["message"], "device `cpu`: expected one of `cuda`")

    def test_out_of_memory_in_a_worker_process_is_reported_with_a_hint(self):
        failed = self.failed_load(settings={"faults": ["out_of_memory"]})
        self.assertEqual(failed["kind"], "out_of_memory")
        self.assertIn("CUDA out of memory. Tried to allocate 48.00 GiB", failed["message"])
        self.assertIn("`memory_fraction`", failed["hint"])

    def test_an_architecture_that_the_library_lacks_is_named(self):
        failed = self.failed_load(write_folder(self, {"architectures": ["InventedForCausalLM"]}))
        message = "architecture `InventedForCausalLM`: TensorRT-LLM has no such model"
        self.assertEqual((failed["kind"], failed["message"]), ("unsupported", message))

    def test_invalid_folders_are_refused(self):
        folder = write_folder(self)
        self.assertIn("expected a model folder", self.failed_load(folder / "model.safetensors")["message"])
        (folder / "model.safetensors").write_bytes(b"\xff" * 64)
        self.assertIn("is not a complete safetensors file", self.failed_load(folder)["message"])
        (folder / "model.safetensors").rename(folder / "model.gguf")
        self.assertEqual(self.failed_load(folder)["message"], "format `gguf`: expected one of `safetensors`")
        (folder / "model.gguf").rename(folder / "model.safetensors")
        for name, message in (("../model.safetensors", "is not a file name"), ("other.safetensors", "is missing")):
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
            failed = self.failed_load(folder)
            self.assertEqual((failed["kind"], message in failed["message"]), ("model", True), failed)
        folder = write_folder(self, {"max_position_embeddings": None})
        self.assertEqual(self.failed_load(folder)["hint"], "set `context_tokens` in the request `load`")
        self.assertEqual(self.failed_load(context_tokens=129)["kind"], "context")


if __name__ == "__main__":
    unittest.main()
