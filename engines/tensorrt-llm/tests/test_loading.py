"""Tests loads: the library's arguments, the facts, and the refusals before a load."""

import json
import time
import unittest
import uuid

from support import CONFIG, TIMEOUT_S, PROMPT, Worker, expected_ids, ids, loaded, write_folder

import machine

FP8 = {"quant_algo": "FP8", "kv_cache_quant_algo": None}


class Arriving(unittest.TestCase):
    """Presets and options, as `LLM(...)` receives them."""

    def made(self, **fields):
        worker = loaded(self, **fields)
        (made,) = worker.records("made")
        return made

    def test_basic_has_neither_graphs_nor_overlap_and_the_models_own_dtype(self):
        folder = write_folder(self)
        made = self.made(folder=folder, options={"cuda_graphs": False, "overlap": False, "fp8": "off"})
        self.assertEqual((made["made"], made["module"]), ("LLM", "tensorrt_llm.llmapi"))
        self.assertEqual(made["model"], str(folder.resolve()))
        self.assertEqual((made["skip_tokenizer_init"], made["trust_remote_code"]), (True, False))
        self.assertEqual((made["tensor_parallel_size"], made["dtype"], made["visible"]), (1, "auto", "0"))
        kwargs = made["kwargs"]
        self.assertEqual((kwargs["cuda_graph_config"], kwargs["disable_overlap_scheduler"]), (None, True))
        self.assertEqual((kwargs["max_batch_size"], kwargs["max_seq_len"], kwargs["max_num_tokens"]), (64, 128, 8192))
        self.assertEqual((kwargs["enable_chunked_prefill"], kwargs["stream_interval"]), (False, 1))
        pool = kwargs["kv_cache_config"]
        self.assertEqual((pool["enable_block_reuse"], pool["free_gpu_memory_fraction"]), (False, 0.9))
        self.assertEqual((pool["max_tokens"], pool["dtype"]), (None, "auto"))

    def test_optimized_captures_every_batch_size_that_padding_rounds_to(self):
        options = {"cuda_graphs": True, "overlap": True, "fp8": "auto"}
        kwargs = self.made(options=options)["kwargs"]
        graphs = kwargs["cuda_graph_config"]
        self.assertEqual((graphs["batch_sizes"], graphs["enable_padding"]), ([1, 2, 4, 8, 16, 32, 64], True))
        self.assertEqual((kwargs["disable_overlap_scheduler"], kwargs["kv_cache_config"]["dtype"]), (False, "auto"))
        # Without an explicit option, a load is the same.
        self.assertEqual(self.made()["kwargs"], kwargs)
        arguments = self.made(options={**options, "max_batch": 12})["kwargs"]
        self.assertEqual((arguments["cuda_graph_config"]["batch_sizes"], arguments["max_batch_size"]), ([1, 2, 4, 8, 12], 12))

    def test_keys_and_values_are_fp8_if_the_model_is_or_on_request(self):
        for quantised, fp8, expected in (
            (None, "auto", "auto"),
            (None, "on", "fp8"),
            (FP8, "auto", "fp8"),
            (FP8, "off", "auto"),
            ({"quant_algo": "W4A16_AWQ"}, "auto", "auto"),
        ):
            folder = write_folder(self, quantised=quantised)
            made = self.made(folder=folder, options={"fp8": fp8})
            self.assertEqual(made["kwargs"]["kv_cache_config"]["dtype"], expected, (quantised, fp8))

    def test_the_pool_the_context_the_dtype_and_the_device_are_passed_on(self):
        worker = Worker(self, gpus=[["A", [9, 0]], ["B", [9, 0]], ["C", [9, 0]]])
        options = {"memory_fraction": 0.25, "pool_tokens": 4096, "tp": "2"}
        folder = write_folder(self, {"max_position_embeddings": 20000})
        worker.load(folder, options=options, device="cuda:1", dtype="f16", context_tokens=16000)
        (made,) = worker.records("made")
        pool = made["kwargs"]["kv_cache_config"]
        self.assertEqual((pool["free_gpu_memory_fraction"], pool["max_tokens"]), (0.25, 4096))
        self.assertEqual((made["tensor_parallel_size"], made["visible"], made["dtype"]), (2, "1,2", "float16"))
        # A prompt longer than one pass is computed in pieces.
        self.assertEqual((made["kwargs"]["max_seq_len"], made["kwargs"]["enable_chunked_prefill"]), (16000, True))

    def test_devices_are_counted_among_the_callers_visible_ones(self):
        worker = Worker(self, environment={"CUDA_VISIBLE_DEVICES": "5,7"}, gpus=[["A", [9, 0]]] * 8)
        folder = write_folder(self)
        worker.load(folder, device="cuda:1")
        worker.load(folder, device="cuda:0")
        self.assertEqual([made["visible"] for made in worker.records("made")], ["7", "5"])

    def test_a_list_of_devices_is_read_like_by_cuda(self):
        folder = write_folder(self)
        for allowed, expected in (("1gpu, 0", "1"), ("GPU-2,GPU-0f", "GPU-2"), ("MIG-10,MIG-11", "MIG-10"), ("2,-1,0", "2")):
            worker = Worker(self, environment={"CUDA_VISIBLE_DEVICES": allowed}, gpus=[["A", [9, 0]]] * 3, divided=1)
            self.assertEqual(worker.load(folder)["type"], "loaded", allowed)
            self.assertEqual([made["visible"] for made in worker.records("made")], [expected])

    def test_the_backend_tensorrt_has_separate_phases_for_build_and_load(self):
        worker = Worker(self)
        options = {"backend": "tensorrt", "cuda_graphs": False, "overlap": False, "context_logits": True}
        message = worker.load(write_folder(self), options=options)
        (made,) = worker.records("made")
        self.assertEqual(made["module"], "tensorrt_llm._tensorrt_engine")
        self.assertEqual(
            made["kwargs"]["build_config"],
            {
                "max_input_len": 1024,
                "max_seq_len": 128,
                "max_batch_size": 64,
                "max_num_tokens": 8192,
                "gather_context_logits": True,
            },
        )
        self.assertNotIn("cuda_graph_config", made["kwargs"])
        phases = [phase["name"] for phase in message["phases"]]
        self.assertEqual(phases, ["headers", "import", "check", "build", "load"])
        build = next(phase["ns"] for phase in message["phases"] if phase["name"] == "build")
        self.assertEqual(build, 300_000)

    def test_the_library_is_offline_without_telemetry(self):
        names = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TRTLLM_NO_USAGE_STATS", "TELEMETRY_DISABLED", "DO_NOT_TRACK"]
        worker = loaded(self, variables=names)
        (record,) = worker.records("environment")
        self.assertEqual(record["environment"], dict(zip(names, ["1", "1", "1", "true", "1"])))


class Stating(unittest.TestCase):
    def test_facts_are_the_configuration_in_effect(self):
        worker = Worker(self)
        message = worker.load(write_folder(self), options={"memory_fraction": 0.5, "max_batch": 4})
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

    def test_dtypes_are_stated_only_as_far_as_they_are_known(self):
        def dtypes(folder, **fields):
            message = Worker(self).load(folder, **fields)
            return [message.get(name) for name in ("weights_dtype", "compute_dtype", "kv_dtype")]

        wide = write_folder(self, {"torch_dtype": "float32"}, dtype="F32")
        self.assertEqual(dtypes(wide), [None, None, None])
        self.assertEqual(dtypes(wide, dtype="bf16"), ["bf16", "bf16", "bf16"])
        self.assertEqual(dtypes(write_folder(self, quantised=FP8, dtype="F8_E4M3")), ["fp8", "bf16", "fp8"])
        self.assertEqual(dtypes(write_folder(self, quantised={"quant_algo": "W4A16_AWQ"})), [None, "bf16", "bf16"])
        self.assertEqual(dtypes(write_folder(self), options={"fp8": "on"}), ["bf16", "bf16", "fp8"])

    def test_memory_is_that_of_the_worker_processes_and_their_ids_are_stated(self):
        worker = Worker(self, environment=launch(), faults=["detached_worker"], gpus=[["A", [9, 0]]] * 2)
        message = worker.load(write_folder(self), options={"tp": 2})
        (record,) = worker.records("workers")
        self.assertEqual(message["pids"], sorted(record["workers"]))
        held = {"in_use_bytes": 2 << 30, "peak_bytes": 2 << 30, "reserved_bytes": 2 << 30}
        self.assertEqual(message["device_memory"], held)
        self.assertEqual(worker.generate(max_new_tokens=1)["device_memory"], held)

    def test_child_processes_need_no_pids(self):
        message = Worker(self, environment=launch()).load(write_folder(self))
        self.assertNotIn("pids", message)
        self.assertEqual(message["device_memory"]["in_use_bytes"], 1 << 30)

    def test_worker_processes_end_with_the_engine(self):
        for faults in (["detached_worker"], ["detached_worker", "does_not_shut_down"]):
            worker = loaded(self, faults=faults, environment=launch())
            (record,) = worker.records("workers")
            self.assertEqual(worker.request(type="shutdown"), {"type": "bye"})
            self.assertEqual(worker.process.wait(timeout=60), 0)
            self.assertEqual(worker.records("shut_down"), [{"shut_down": True}])
            for pid in record["workers"]:
                wait_for_end(self, pid)

    def test_a_second_load_ends_the_first(self):
        worker = loaded(self)
        message = worker.load(write_folder(self), options={"overlap": False})
        self.assertEqual((message["type"], len(worker.records("shut_down"))), ("loaded", 1))
        self.assertEqual(ids(worker.generate(max_new_tokens=2, ignore_eos=True)), expected_ids(PROMPT, 2))


class Refusing(unittest.TestCase):
    def failure(self, folder=None, settings=None, **fields):
        worker = Worker(self, **(settings or {}))
        failed = worker.load(folder or write_folder(self), **fields)
        self.assertEqual((failed["type"], worker.records("workers")), ("failed", []), failed)
        return failed

    def test_unknown_and_invalid_options_are_refused_by_name(self):
        for options, message in {
            ("colour", "red"): "unknown option `colour`",
            ("tp", 0): "option `tp`: expected a whole number from 1 to 1024, found `0`",
            ("tp", "two"): 'option `tp`: expected a whole number from 1 to 1024, found `"two"`',
            ("max_batch", 65): "option `max_batch`: expected a whole number from 1 to 64, found `65`",
            ("memory_fraction", 1.5): "option `memory_fraction`: expected a number above 0, at most 1, found `1.5`",
            ("overlap", "maybe"): 'option `overlap`: expected true or false, found `"maybe"`',
            ("fp8", 8): "option `fp8`: expected one of `auto`, `on`, `off`, found `8`",
            ("backend", "autodeploy"): 'option `backend`: expected one of `pytorch`, `tensorrt`, found `"autodeploy"`',
            ("context_logits", True): "option `context_logits`: the backend `pytorch` has context logits without a build",
        }.items():
            failed = self.failure(options=dict([options]))
            self.assertEqual((failed["kind"], failed["message"]), ("bad_request", message))

    def test_an_option_that_a_backend_lacks_is_refused(self):
        failed = self.failure(options={"backend": "tensorrt", "cuda_graphs": True})
        self.assertEqual(failed["message"], "option `cuda_graphs`: the backend `tensorrt` has no such setting")

    def test_fp8_is_refused_on_a_gpu_without_it(self):
        ampere = {"gpus": [["A100-SXM4", [8, 0]]]}
        failed = self.failure(settings=ampere, options={"fp8": "on"})
        self.assertEqual(failed["message"], "option `fp8`: `A100-SXM4` has compute capability 8.0, fp8 needs 8.9")
        failed = self.failure(write_folder(self, quantised=FP8), settings=ampere)
        self.assertIn("is in fp8: `A100-SXM4` has compute capability 8.0", failed["message"])
        self.assertEqual(failed["kind"], "unsupported")

    def test_fp8_is_checked_on_the_gpus_in_use(self):
        both = [["H100", [9, 0]], ["T400", [7, 5]]]
        folder = write_folder(self, quantised=FP8)
        self.assertEqual(Worker(self, gpus=both).load(folder, device="cuda:0")["type"], "loaded")
        failed = self.failure(folder, settings={"gpus": both}, device="cuda:1")
        self.assertIn("`T400` has compute capability 7.5, fp8 needs 8.9", failed["message"])
        self.assertIn("`T400`", self.failure(folder, settings={"gpus": both}, options={"tp": 2})["message"])
        # Only CUDA knows which of them comes first.
        fastest = {"environment": {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}}
        self.assertEqual(Worker(self, gpus=both, **fastest).load(folder)["type"], "loaded")
        self.failure(folder, settings={"gpus": both[1:] * 2, **fastest})

    def test_devices_that_the_caller_hides_are_refused_before_the_import(self):
        for allowed in ("", "-1", "0,0", "7", "NoDevFiles", "GPU-abc", "MIG-1"):
            failed = self.failure(settings={"environment": {"CUDA_VISIBLE_DEVICES": allowed}})
            message = f"no `cuda`: this machine has 1 GPU, and `CUDA_VISIBLE_DEVICES={allowed}` shows none"
            self.assertEqual((failed["kind"], failed["message"]), ("unavailable", message))

    def test_more_gpus_than_the_machine_has_are_refused(self):
        failed = self.failure(options={"tp": 2})
        message = "option `tp`: 2 GPUs from `cuda` on, this machine has 1 GPU"
        self.assertEqual((failed["kind"], failed["message"]), ("unavailable", message))
        self.assertEqual(self.failure(device="cuda:3")["message"], "no `cuda:3`: this machine has 1 GPU")
        self.assertEqual(self.failure(device="cpu")["message"], "device `cpu`: expected one of `cuda`")

    def test_out_of_memory_in_a_worker_process_is_reported_with_a_hint(self):
        failed = self.failure(settings={"faults": ["out_of_memory"]})
        self.assertEqual(failed["kind"], "out_of_memory")
        self.assertIn("CUDA out of memory. Tried to allocate 48.00 GiB", failed["message"])
        self.assertIn("`memory_fraction`", failed["hint"])

    def test_an_architecture_that_the_library_lacks_is_named(self):
        failed = self.failure(write_folder(self, {"architectures": ["MadeUpForCausalLM"]}))
        message = "architecture `MadeUpForCausalLM`: TensorRT-LLM has no such model"
        self.assertEqual((failed["kind"], failed["message"]), ("unsupported", message))

    def test_invalid_folders_are_refused(self):
        folder = write_folder(self)
        self.assertIn("expected a model folder", self.failure(folder / "model.safetensors")["message"])
        (folder / "model.safetensors").write_bytes(b"\xff" * 64)
        self.assertIn("is not a complete safetensors file", self.failure(folder)["message"])
        (folder / "model.safetensors").rename(folder / "model.gguf")
        self.assertEqual(self.failure(folder)["message"], "format `gguf`: expected one of `safetensors`")
        (folder / "model.gguf").rename(folder / "model.safetensors")
        for name, message in (("../model.safetensors", "is not a file name"), ("other.safetensors", "is missing")):
            (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
            failed = self.failure(folder)
            self.assertEqual((failed["kind"], message in failed["message"]), ("model", True), failed)
        silent = write_folder(self, {"max_position_embeddings": None})
        self.assertEqual(self.failure(silent)["hint"], "load with `context_tokens`")
        self.assertEqual(self.failure(context_tokens=129)["kind"], "context")
        self.assertNotIn("num_hidden_layers", CONFIG)


def launch():
    """A separate launch mark, like the orchestrator's: processes with it end with the engine."""
    return {"ORCHESTRATE_LAUNCH": uuid.uuid4().hex}


def wait_for_end(test, pid):
    deadline = time.monotonic() + TIMEOUT_S
    while machine.is_alive(pid):
        test.assertLess(time.monotonic(), deadline, f"process {pid} still runs")
        time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()
