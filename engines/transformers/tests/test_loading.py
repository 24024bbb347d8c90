"""Tests loads: their facts and refusals, the checks of memory, and the worker as a process."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from support import CONFIG, ENGINE, load, random_weights, write_folder

from checkout import EMBEDDED, KIT
from engine_tests import generate
import torch

import devices
import model_folder
from devices import requested_bytes, bytes_as, check_free_memory, container_free_bytes
from engine_kit import Failed, Phases
from environment import prepare_environment

IDS = [0, 17, 42, 9]


class Loading(unittest.TestCase):
    def failure(self, path, options=None, **fields):
        with self.assertRaises(Failed) as caught:
            load(path, options, **fields)
        return caught.exception

    def test_facts_are_the_configuration_in_effect(self):
        facts = load(write_folder(self), threads=2, context_tokens=100).facts()
        parameters = sum(tensor.numel() for tensor in random_weights(CONFIG).values())
        expected = {
            "device": "cpu",
            "weights_dtype": "f32",
            "compute_dtype": "f32",
            "kv_dtype": "f32",
            "threads": 2,
            "context_tokens": 100,
            "use_cache": True,
            "prefix_cache": False,
            "architecture": "llama",
            "parameters": parameters,
            "weights_bytes": 4 * parameters,
            "vocabulary_size": 64,
            "hidden_size": 32,
            "layers": 2,
            "heads": 4,
            "kv_heads": 2,
            "intermediate_size": 64,
            "eos_ids": [63],
            "bos_id": 0,
        }
        self.assertEqual({name: facts[name] for name in expected}, expected)
        self.assertEqual(facts["libraries"]["torch"], torch.__version__.split("+")[0])
        self.assertNotIn("device_memory", facts)

    def test_shared_embeddings_count_once(self):
        tied, untied = load(write_folder(self, {"tie_word_embeddings": True})).facts(), load(write_folder(self)).facts()
        self.assertEqual(untied["parameters"] - tied["parameters"], 64 * 32)
        self.assertEqual(untied["weights_bytes"] - tied["weights_bytes"], 4 * 64 * 32)

    def test_an_output_matrix_beside_a_tied_embedding_is_used_and_reported_or_refused(self):
        weights = random_weights(CONFIG)
        expected = generate(load(write_folder(self, {}, weights)), [[0, 7]], 12, ignore_eos=True)
        path = write_folder(self, {"tie_word_embeddings": True}, weights)
        model = load(path)
        self.assertEqual(generate(model, [[0, 7]], 12, ignore_eos=True), expected)
        self.assertEqual(model.facts()["libraries"]["output matrix"], "lm_head.weight, although tie_word_embeddings is true")
        message = f"model `{path.name}`: `tie_word_embeddings` is true, and `lm_head.weight` differs from `model.embed_tokens.weight`"
        self.assertEqual(self.failure(path, {"path": "fast"}).message, message)
        # A copy of the embedding is no other matrix.
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        self.assertNotIn("output matrix", load(write_folder(self, {"tie_word_embeddings": True}, weights)).facts()["libraries"])

    def test_requested_threads_apply_to_one_load_only(self):
        path = write_folder(self)
        self.assertEqual(load(path, threads=devices.DEFAULT_THREADS + 1).facts()["threads"], devices.DEFAULT_THREADS + 1)
        self.assertEqual(load(path, threads=None).facts()["threads"], devices.DEFAULT_THREADS)

    def test_each_phase_of_a_load_is_timed(self):
        for options, last_phases in [({}, []), ({"quantize": "int4"}, ["quantize"]), ({"path": "jit"}, ["compile"])]:
            phases = Phases()
            load(write_folder(self), options, phases=phases)
            names = [phase["name"] for phase in phases.times if phase["name"] != "import"]
            self.assertEqual(names, ["config", "weights", "device", *last_phases])

    def test_a_folder_without_a_tokenizer_accepts_ids_and_refuses_text(self):
        model = load(write_folder(self))
        self.assertEqual(len(generate(model, [IDS], 3, ignore_eos=True)[0]), 3)
        self.assertIsNone(model.decode(IDS))
        with self.assertRaises(Failed) as caught:
            model.encode("Hello")
        self.assertEqual((caught.exception.kind, caught.exception.hint), ("model", "send `prompt_ids`"))

    def test_a_tokenizer_is_read_when_the_first_text_comes(self):
        path = write_folder(self, tokenizer_words=64)
        model = load(path)
        with mock.patch("model_folder.read_tokenizer", wraps=model_folder.read_tokenizer) as read_tokenizer:
            generate(model, [IDS], 3, ignore_eos=True)
            model.score(IDS)
            read_tokenizer.assert_not_called()
            for _ in range(2):
                self.assertEqual((model.encode("w3 w9"), model.decode([3, 9])), ([3, 9], "w3 w9"))
            read_tokenizer.assert_called_once()

    def test_a_broken_or_unsuitable_tokenizer_fails_requests_with_text_but_not_with_ids(self):
        broken = write_folder(self)
        (broken / "tokenizer.json").write_text("{}")
        unsuitable = "is another model's tokenizer: its ids reach 64, and the embedding of model"
        for path, text in ((write_folder(self, tokenizer_words=65), unsuitable), (broken, "tokenizer.json`: ")):
            model = load(path)
            for _ in range(2):
                with self.assertRaises(Failed) as caught:
                    model.encode("w3")
                self.assertEqual(caught.exception.kind, "model")
                self.assertIn(text, caught.exception.message)
                self.assertEqual(len(generate(model, [IDS], 3, ignore_eos=True)[0]), 3)

    def test_the_refusal_of_an_architecture_unknown_to_transformers_names_the_architecture(self):
        failed = self.failure(write_folder(self, {"model_type": "lamma"}, random_weights(CONFIG)))
        self.assertEqual(failed.kind, "unsupported")
        self.assertRegex(failed.message, r"architecture `lamma`: transformers [\d.]+ has no causal language model of that name")
        # `transformers` has architecture `vit`, but this architecture generates no text.
        failed = self.failure(write_folder(self, {"model_type": "vit"}, random_weights(CONFIG)))
        self.assertEqual(failed.kind, "unsupported")

    def test_code_in_a_folder_is_never_run(self):
        path = write_folder(self, {"auto_map": {"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"}})
        (path / "evil.py").write_text(f"open({str(path / 'ran')!r}, 'w')\n")
        self.assertEqual(len(generate(load(path), [IDS], 2)[0]), 2)
        failed = self.failure(write_folder(self, {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}))
        self.assertEqual(failed.kind, "unsupported")
        self.assertFalse((path / "ran").exists())

    def test_the_refusal_of_weights_that_differ_from_the_config_names_the_difference(self):
        missing = random_weights(CONFIG)
        del missing["model.norm.weight"], missing["model.layers.1.mlp.up_proj.weight"]
        failed = self.failure(write_folder(self, weights=missing))
        self.assertEqual(failed.kind, "model")
        self.assertIn("has no tensor `model.layers.1.mlp.up_proj.weight` and 1 more", failed.message)
        failed = self.failure(write_folder(self, {"vocab_size": 65}, random_weights(CONFIG)))
        self.assertEqual(failed.kind, "model")
        self.assertIn("its `vocab_size` is 65, and its embedding has 64 rows", failed.message)
        failed = self.failure(write_folder(self, {"intermediate_size": 48}, random_weights(CONFIG)))
        message = "tensor `model.layers.0.mlp.down_proj.weight`: expected the shape [32, 48], found [32, 64]"
        self.assertEqual((failed.kind, failed.message), ("model", message))
        failed = self.failure(write_folder(self, {"num_attention_heads": 5}, random_weights(CONFIG)))
        self.assertEqual(failed.kind, "model")

    def test_an_error_of_the_library_about_the_config_is_reported(self):
        path = write_folder(self, {"hidden_act": "nonsense"})
        failed = self.failure(path)
        self.assertEqual(failed.kind, "model")
        self.assertIn(f"`{path / 'config.json'}`: KeyError: ", failed.message)
        self.assertIn("nonsense", failed.message)

    def test_path_fast_suggests_path_loop_if_transformers_supports_the_model(self):
        for changes, hint in [
            ({"model_type": "gpt2"}, "--set path=loop"),
            ({"hidden_act": "gelu"}, "--set path=loop"),
            ({"model_type": "t5"}, None),
            ({"model_type": "lamma"}, None),
            ({"hidden_act": "nonsense"}, None),
        ]:
            failed = self.failure(write_folder(self, changes, random_weights(CONFIG)), {"path": "fast"})
            self.assertEqual((failed.kind, failed.hint), ("unsupported", hint), changes)

    def test_a_context_beyond_the_limit_of_the_model_is_refused(self):
        failed = self.failure(write_folder(self), context_tokens=129)
        self.assertEqual(failed.kind, "context")
        self.assertIn("`context_tokens`: 129 is more than the 128 of model", failed.message)

    def test_a_missing_cuda_device_is_refused(self):
        import loading  # noqa: F401  A first import with simulated CUDA would search for a driver.

        with mock.patch("torch.cuda.is_available", return_value=True), mock.patch("torch.cuda.device_count", return_value=1):
            failed = self.failure(write_folder(self), device="cuda:1")
        self.assertEqual((failed.kind, failed.message), ("device", "no CUDA device `cuda:1`: PyTorch finds 1"))

    def test_the_embedded_model_answers_in_text(self):
        model = load(EMBEDDED)
        ids = generate(model, [model.encode("Once upon a time")], 12, ignore_eos=True)[0]
        self.assertTrue(model.decode(ids).strip())


class Memory(unittest.TestCase):
    def test_weights_that_do_not_fit_are_refused_before_they_are_read(self):
        needed_bytes = {"cpu": bytes_as({"a": SimpleNamespace(shape=(1000, 1000, 1000))}, torch.float32)}
        check_free_memory(needed_bytes, torch.float32, free_on=lambda device: 4 * 10**9)
        check_free_memory(needed_bytes, torch.float32, free_on=lambda device: None)
        with self.assertRaises(Failed) as caught:
            check_free_memory(needed_bytes, torch.float32, free_on=lambda device: 3 * 10**9)
        self.assertEqual(caught.exception.kind, "out_of_memory")
        self.assertEqual(caught.exception.message, "the weights take 4.00 GB as f32, and 3.00 GB are free on cpu")
        self.assertEqual(caught.exception.hint, "--dtype bf16")

    def test_every_shard_is_checked_against_the_free_memory_of_its_device(self):
        needed_bytes = {"cuda:0": 3 * 10**9, "cuda:1": 10**9}
        check_free_memory(needed_bytes, torch.bfloat16, free_on={"cuda:0": 3 * 10**9, "cuda:1": 2 * 10**9}.get)
        with self.assertRaises(Failed) as caught:
            check_free_memory(needed_bytes, torch.bfloat16, free_on={"cuda:0": 2 * 10**9, "cuda:1": 9 * 10**9}.get)
        message = "the shard on cuda:0 takes 3.00 GB as bf16, and 2.00 GB are free on cuda:0"
        self.assertEqual((caught.exception.kind, caught.exception.message), ("out_of_memory", message))

    def test_free_memory_is_the_smaller_of_host_memory_and_container_memory(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            self.assertIsNone(container_free_bytes(folder))
            (folder / "memory.current").write_text("300\n")
            for limit, stat, expected in [
                ("max", None, None),
                ("1000", None, 700),
                ("1000", "anon 5\nfile 250\ninactive_file 100\n", 800),
                ("200", "anon 5\n", 0),
            ]:
                (folder / "memory.max").write_text(limit + "\n")
                if stat is not None:
                    (folder / "memory.stat").write_text(stat)
                self.assertEqual(container_free_bytes(folder), expected)
        cpu = torch.device("cpu")
        for host, container, expected in [(5, 3, 3), (3, 5, 3), (5, None, 5), (None, 3, 3), (None, None, None)]:
            with mock.patch.multiple(devices, host_free_bytes=lambda: host, container_free_bytes=lambda: container):
                self.assertEqual(devices.free_bytes(cpu), expected)

    def test_the_requested_bytes_are_read_from_the_messages_of_the_cpu_and_cuda_allocators(self):
        with self.assertRaises(RuntimeError) as caught:
            torch.empty(1 << 50)
        self.assertEqual(requested_bytes(caught.exception), 4 << 50)
        message = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free."
        self.assertEqual(requested_bytes(torch.OutOfMemoryError(message)), 5 * 2**29)
        self.assertIsNone(requested_bytes(RuntimeError("shapes do not match")))

    def test_an_error_that_is_not_about_memory_is_unchanged(self):
        with self.assertRaisesRegex(RuntimeError, "shapes"), devices.explain_memory_errors("weights", torch.device("cpu")):
            raise RuntimeError("shapes do not match")
        with self.assertRaises(Failed) as caught, devices.explain_memory_errors("weights", torch.device("cpu")):
            raise MemoryError
        self.assertIn("weights: requested more memory on cpu", caught.exception.message)


class Environment(unittest.TestCase):
    def test_the_environment_has_the_offline_variables_and_the_requested_threads(self):
        environment = {"HF_HUB_OFFLINE": "0"}
        prepare_environment(3, environment)
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
            self.assertEqual(environment[name], "1")
        self.assertEqual((environment["OMP_NUM_THREADS"], environment["MKL_NUM_THREADS"]), ("3", "3"))
        environment = {}
        prepare_environment(None, environment)
        self.assertNotIn("OMP_NUM_THREADS", environment)


class Worker(unittest.TestCase):
    """Tests the worker as a process."""

    def converse(self, *requests, script=None, **environment):
        environment = {**os.environ, "PYTHONPATH": str(KIT), "HF_HUB_OFFLINE": "0", **environment}
        environment.pop("OMP_NUM_THREADS", None)
        command = [sys.executable, "-s", *(["-c", script] if script else [str(ENGINE / "worker.py")])]
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        process = subprocess.run(command, env=environment, input=lines, capture_output=True, text=True, timeout=600)
        self.assertEqual(process.returncode, 0, process.stderr)
        return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")], process.stderr

    def test_hello_imports_no_heavy_library(self):
        script = (
            f"import sys; sys.path.insert(0, {str(ENGINE)!r}); import worker; worker.Transformers().hello(); "
            "print(sorted({'torch', 'transformers', 'numpy', 'tokenizers'} & set(sys.modules)), file=sys.stderr)"
        )
        _, stderr = self.converse(script=script)
        self.assertEqual(stderr.strip(), "[]")

    def test_the_worker_answers_every_request_in_spite_of_a_refused_load(self):
        path = write_folder(self)
        messages, _ = self.converse(
            {"type": "hello", "protocol": 1},
            {"type": "load", "model": str(path), "options": {"path": "cuda-graph"}},
            {"type": "load", "model": str(path), "threads": 2},
            {"prompt_ids": IDS, "max_new_tokens": 4, "ignore_eos": True, "stream": True},
            {"type": "shutdown"},
        )
        answers = [message for message in messages if message["type"] != "progress"]
        kinds = [message["type"] for message in answers]
        self.assertEqual(kinds, ["hello", "failed", "loaded", "token", "token", "token", "token", "generated", "bye"])
        hello, refused, loaded, generated = (answers[index] for index in (0, 1, 2, 7))
        self.assertEqual((hello["engine"], hello["stamp"]), ("transformers", "token"))
        self.assertEqual(refused["kind"], "unsupported")
        self.assertEqual((loaded["threads"], loaded["libraries"]["inter-op threads"]), (2, "2"))
        phases = [phase["name"] for phase in loaded["phases"]]
        self.assertEqual(phases, ["config", "import", "weights", "device"])
        iteration = generated["iterations"][0]
        stamps = iteration["sequences"][0]["token_ns"]
        self.assertEqual(stamps, sorted(stamps))
        self.assertTrue(iteration["start_ns"] < stamps[0] and stamps[-1] <= iteration["end_ns"])
        self.assertNotIn("text", iteration["sequences"][0])


class Program(unittest.TestCase):
    def test_the_program_contains_every_file_of_the_worker(self):
        program = (ENGINE / "src" / "main.rs").read_text()
        for path in ENGINE.glob("*.py"):
            self.assertIn(f'"../{path.name}"', program)


if __name__ == "__main__":
    unittest.main()
