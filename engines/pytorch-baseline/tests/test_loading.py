"""Tests loads, the refusals of model folders, and the worker as a process."""

import json
import subprocess
import unittest
from pathlib import Path

from support import CONFIG, ENGINE, LLAMA3_ROPE_SCALING, generate, load, random_weights, worker_process, write_folder

import torch

from engine_kit import Failed

EMBEDDED = ENGINE.parents[1] / "models" / "embedded"
IDS = [0, 17, 42, 9]
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
REQUIREMENTS = ENGINE.parent / "environments" / "pytorch" / "requirements.txt"


class Loading(unittest.TestCase):
    def failure(self, path, **fields):
        with self.assertRaises(Failed) as caught:
            load(path, **fields)
        return caught.exception.kind, caught.exception.message

    def test_a_sharded_folder_gives_the_scores_of_a_single_file(self):
        weights = random_weights(CONFIG)
        single, sharded = write_folder(self, weights=weights), write_folder(self, weights=weights, shards=3)
        self.assertEqual(len(list(sharded.glob("*.safetensors"))), 3)
        self.assertEqual(load(single).score(IDS), load(sharded).score(IDS))

    def test_facts_are_the_configuration_in_effect(self):
        facts = load(write_folder(self), threads=2, context_tokens=100).facts()
        expected = {"device": "cpu", "weights_dtype": "f32", "use_cache": False, "threads": 2, "context_tokens": 100}
        self.assertEqual({name: facts[name] for name in expected}, expected)
        self.assertEqual((facts["vocabulary_size"], facts["eos_ids"], facts["bos_id"]), (64, [63], 0))
        dimensions = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "intermediate_size": 48}
        self.assertEqual({name: facts[name] for name in dimensions}, dimensions)
        parameters = sum(tensor.numel() for tensor in random_weights(CONFIG).values())
        self.assertEqual((facts["parameters"], facts["weights_bytes"]), (parameters, 4 * parameters))

    def test_requested_threads_apply_to_one_load_only(self):
        folder = write_folder(self)
        default = load(folder, threads=None).facts()["threads"]
        self.assertEqual(load(folder, threads=default + 1).facts()["threads"], default + 1)
        self.assertEqual(load(folder, threads=None).facts()["threads"], default)

    def test_an_embedding_that_is_the_output_matrix_too_counts_once(self):
        tied, untied = load(write_folder(self, {"tie_word_embeddings": True})), load(write_folder(self))
        self.assertEqual(untied.facts()["parameters"] - tied.facts()["parameters"], 64 * 32)

    def test_an_output_matrix_other_than_the_tied_embedding_is_refused(self):
        tied = {"tie_word_embeddings": True}
        weights = random_weights({**CONFIG, **tied})
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        expected = load(write_folder(self, tied)).score([0, 5, 9])
        self.assertEqual(load(write_folder(self, tied, weights, shards=3)).score([0, 5, 9]), expected)
        weights["lm_head.weight"][-1, -1] += 1
        with self.assertRaises(Failed) as caught:
            load(write_folder(self, tied, weights, shards=3))
        problem = "`tie_word_embeddings` is true, and `lm_head.weight` differs from `model.embed_tokens.weight`"
        self.assertIn(problem, caught.exception.message)

    def test_the_refusal_of_an_unsupported_feature_names_it(self):
        folder = write_folder(self)
        gguf = folder / "model.gguf"
        gguf.write_bytes(b"GGUF")
        only_gguf = write_folder(self)
        (only_gguf / "model.safetensors").rename(only_gguf / "model.gguf")
        for path in (gguf, only_gguf):
            self.assertEqual(self.failure(path), ("unsupported", "format `gguf`: expected one of `safetensors`"))
        for message, changes in {
            "architecture `mamba`: expected one of `llama`, `mistral`, `qwen2`, `qwen3`, `phi3`, `gemma`, `gpt2`": {
                "model_type": "mamba"
            },
            "rope scaling `yarn`: expected one of `default`, `llama3`": {"rope_scaling": {"rope_type": "yarn", "factor": 4}},
            "rope scaling `longrope`: expected one of `default`, `llama3`": {
                "model_type": "phi3",
                "rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]},
            },
            "`partial_rotary_factor` 0.75: this engine rotates the whole head": {
                "model_type": "phi3", "partial_rotary_factor": 0.75
            },
            "`partial_rotary_factor` 0.5: this engine rotates the whole head": {
                "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}
            },
            "`hidden_act` `gelu`: expected one of `silu`": {"hidden_act": "gelu"},
            "`hidden_act` `silu`: expected one of `gelu_pytorch_tanh`, `gelu`": {"model_type": "gemma"},
            "`use_bidirectional_attention`: this engine attends to earlier tokens only": {
                "model_type": "gemma",
                "hidden_act": None,
                "use_bidirectional_attention": True,
            },
            "`use_sliding_window`: this engine attends to the whole sequence": {"use_sliding_window": True},
            "`layer_types`: this engine computes `full_attention` in every layer": {
                "layer_types": ["full_attention", "sliding_attention"]
            },
            "`attention_bias`: architecture `mistral` has no such biases": {"model_type": "mistral", "attention_bias": True},
            "`mlp_bias`: architecture `qwen3` has no such biases": {"model_type": "qwen3", "mlp_bias": True},
            "`activation_function` `gelu`: expected one of `gelu_new`, `gelu_pytorch_tanh`": {
                **GPT2, "activation_function": "gelu"
            },
            "`scale_attn_by_inverse_layer_idx`: this engine scales all layers alike": {
                **GPT2, "scale_attn_by_inverse_layer_idx": True
            },
            "`scale_attn_weights` false: this engine divides attention scores by the square root of the head dimension": {
                **GPT2, "scale_attn_weights": False
            },
            "`add_cross_attention`: this engine has no encoder to attend to": {**GPT2, "add_cross_attention": True},
        }.items():
            folder = write_folder(self, changes, random_weights(CONFIG))
            self.assertEqual(self.failure(folder), ("unsupported", message))
        integers = {name: tensor.to(torch.int8) for name, tensor in random_weights(CONFIG).items()}
        kind, message = self.failure(write_folder(self, weights=integers))
        self.assertEqual(kind, "unsupported")
        self.assertIn("in int8: expected one of `float32`, `float16`, `bfloat16`", message)

    def test_a_broken_folder_is_refused_with_the_cause(self):
        empty = write_folder(self)
        (empty / "model.safetensors").unlink()
        truncated = write_folder(self)
        content = (truncated / "model.safetensors").read_bytes()
        (truncated / "model.safetensors").write_bytes(content[: len(content) // 2])
        without_config = write_folder(self)
        (without_config / "config.json").unlink()
        truncated_config = write_folder(self)
        (truncated_config / "config.json").write_text('{"model_type": "llama"')
        incomplete = random_weights(CONFIG)
        del incomplete["model.norm.weight"]
        missing_shard = write_folder(self, shards=2)
        next(missing_shard.glob("*00002-of*")).unlink()

        def with_config(changes):
            return write_folder(self, changes, random_weights(CONFIG))

        equal_factors = {**LLAMA3_ROPE_SCALING, "high_freq_factor": 1.0}
        for path, message_part in [
            (empty, "no `*.safetensors` file in"),
            (truncated, "model.safetensors`: "),
            (without_config, "config.json`: No such file"),
            (truncated_config, "config.json`: "),
            (write_folder(self, weights=incomplete), "has no tensor `model.norm.weight`"),
            (with_config({"vocab_size": 65}), "expected the shape [65, 32], found [64, 32]"),
            (with_config({"hidden_size": None}), "`hidden_size`: expected a whole number"),
            (with_config({"num_hidden_layers": 2**31}), "`num_hidden_layers`: expected at most 4096"),
            (with_config({"num_key_value_heads": 3}), "4 heads cannot share 3 key-value heads"),
            (with_config({"head_dim": 7}), "a head of 7 dimensions cannot be rotated in pairs"),
            (with_config({"tie_word_embeddings": "no"}), "`tie_word_embeddings`: expected true or false, found `no`"),
            (with_config({"rope_scaling": "llama3"}), "`rope_scaling`: expected an object, found `llama3`"),
            (with_config({"rope_scaling": equal_factors}), "`high_freq_factor` 1.0 is not above"),
            (with_config({"model_type": "phi3", "sliding_window": 0}), "`sliding_window`: expected a whole number"),
            (with_config({**GPT2, "n_head": 5}), "5 heads cannot share a hidden size of 32"),
            (with_config({**GPT2, "n_positions": None}), "`n_positions`: expected a whole number"),
            (missing_shard, "shard `model-00002-of-00002.safetensors` is missing"),
        ]:
            kind, message = self.failure(path)
            self.assertEqual(kind, "model", message)
            self.assertIn(message_part, message)

    def test_an_index_that_points_outside_the_folder_is_refused(self):
        folder = write_folder(self, shards=2)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
        self.assertIn("is not a file name", self.failure(folder)[1])

    def test_a_context_beyond_the_limit_of_the_model_is_refused(self):
        kind, message = self.failure(write_folder(self), context_tokens=129)
        self.assertEqual(kind, "context")
        self.assertIn("`context_tokens`: 129 is more than the 128 of model", message)

    def test_a_folder_without_a_tokenizer_accepts_ids_and_refuses_text(self):
        model = load(write_folder(self))
        self.assertEqual(len(generate(model, IDS, 3, ignore_eos=True)), 3)
        self.assertIsNone(model.decode(IDS))
        with self.assertRaises(Failed) as caught:
            model.encode("Hello")
        self.assertEqual((caught.exception.kind, caught.exception.hint), ("model", "send `prompt_ids`"))

    def test_a_broken_tokenizer_fails_requests_with_text_but_not_with_ids(self):
        folder = write_folder(self)
        (folder / "tokenizer.json").write_text("{}")
        model = load(folder)
        for _ in range(2):
            with self.assertRaises(Failed) as caught:
                model.encode("Hello")
            self.assertEqual(caught.exception.kind, "model")
            self.assertIn("tokenizer.json`: ", caught.exception.message)
            self.assertEqual(len(generate(model, IDS, 3, ignore_eos=True)), 3)

    def test_a_missing_cuda_device_is_refused(self):
        device = f"cuda:{torch.cuda.device_count()}"
        kind, message = self.failure(write_folder(self), device=device)
        self.assertEqual(kind, "device")
        self.assertIn("no CUDA device", message)


class Worker(unittest.TestCase):
    def converse(self, *requests, model=""):
        command, environment = worker_process(ORCHESTRATE_MODEL=str(model))
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        process = subprocess.run(command, env=environment, input=lines, capture_output=True, text=True, timeout=300)
        self.assertEqual(process.returncode, 0, process.stderr)
        return [json.loads(line) for line in process.stdout.splitlines()], process.stderr

    def test_hello_imports_no_heavy_library(self):
        command, environment = worker_process()
        script = (
            f"import sys; sys.path.insert(0, {str(ENGINE)!r}); import worker; worker.PyTorchBaseline().hello(); "
            "print(sorted({'torch', 'numpy', 'safetensors', 'tokenizers'} & set(sys.modules)), file=sys.stderr)"
        )
        process = subprocess.run([command[0], "-c", script], env=environment, capture_output=True, text=True, timeout=60)
        self.assertEqual((process.returncode, process.stderr.strip()), (0, "[]"))

    def test_a_load_does_not_import_the_tokenizer_library(self):
        command, environment = worker_process()
        script = (
            f"import sys; sys.path[:0] = [{str(ENGINE / 'tests')!r}]; import support; "
            "print_imported = lambda: print('tokenizers' in sys.modules, file=sys.stderr); "
            f"model = support.load({str(EMBEDDED)!r}); support.generate(model, [1, 2], 2); "
            "print_imported(); model.encode(''); print_imported()"
        )
        process = subprocess.run([command[0], "-c", script], env=environment, capture_output=True, text=True, timeout=300)
        self.assertEqual((process.returncode, process.stderr.split()), (0, ["False", "True"]))

    def test_the_version_of_hello_is_the_pinned_and_imported_version(self):
        ((hello,), _) = self.converse({"type": "hello", "protocol": 1})
        self.assertEqual(hello["version"], torch.__version__.split("+")[0])
        self.assertIn(f"torch=={hello['version']} ", REQUIREMENTS.read_text())

    def test_one_request_gives_one_line_with_all_iterations_and_a_summary_on_stderr(self):
        folder = write_folder(self)
        request = {"prompt_ids": IDS, "iterations": 50, "max_new_tokens": 4, "ignore_eos": True}
        ((answer,), stderr) = self.converse(request, model=folder)
        self.assertEqual((answer["type"], len(answer["iterations"])), ("generated", 50))
        self.assertFalse(answer["loaded"]["use_cache"])
        phases = [phase["name"] for phase in answer["loaded"]["phases"]]
        self.assertEqual(phases, ["headers", "import", "weights", "device"])
        self.assertIn("50 iterations, 200 tokens; first token ", stderr)
        self.assertNotIn("text", answer["iterations"][0]["sequences"][0])

    def test_use_cache_does_not_change_the_answer(self):
        folder = write_folder(self)
        requests = [{"prompt_ids": IDS, "max_new_tokens": 4, "use_cache": use_cache} for use_cache in (True, False)]
        (answers, _) = self.converse(*requests, model=folder)
        first, second = (answer["iterations"][0]["sequences"][0]["output_ids"] for answer in answers)
        self.assertEqual(first, second)

    def test_the_engine_answers_after_a_refused_load(self):
        folders = write_folder(self, {"model_type": "mamba"}), write_folder(self)
        (messages, _) = self.converse(*({"type": "load", "model": str(folder)} for folder in folders))
        answers = [message["type"] for message in messages if message["type"] != "progress"]
        self.assertEqual(answers, ["failed", "loaded"])

    def test_the_embedded_model_answers_in_text(self):
        ((answer,), _) = self.converse({"prompt": "Once", "max_new_tokens": 8, "ignore_eos": True}, model=EMBEDDED)
        sequence = answer["iterations"][0]["sequences"][0]
        self.assertEqual((len(sequence["output_ids"]), sequence["finish"]), (8, "length"))
        self.assertTrue(sequence["text"].isprintable() or "\n" in sequence["text"])


class Manifest(unittest.TestCase):
    def test_every_requirement_is_pinned_with_hashes_and_without_a_url(self):
        text = REQUIREMENTS.read_text()
        pins = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
        self.assertGreater(len(pins), 10)
        for pin in pins:
            self.assertRegex(pin, r"^[a-z0-9-]+==[^ ]+( ; .*)? \\$")
        self.assertNotIn("http:", text)
        self.assertNotIn("https:", text)
        self.assertGreaterEqual(text.count("--hash=sha256:"), len(pins))

    def test_the_program_contains_every_file_of_the_worker(self):
        program = (ENGINE / "src" / "main.rs").read_text()
        for path in Path(ENGINE).glob("*.py"):
            self.assertIn(f'"../{path.name}"', program)
        self.assertIn('"../../environments/pytorch/requirements.txt"', program)


if __name__ == "__main__":
    unittest.main()
