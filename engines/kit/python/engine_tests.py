"""For the tests of an engine with its real library: model folders, loads and requests by the worker's own code, expected answers of
`pytorch-baseline`, and runs of the release build. Only tests and scripts import this module; no worker gets it.

`tests/support.py` of an engine adds the folders of the engine and of the kit to `sys.path`, and imports this module first.
"""

import atexit
import functools
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import checkpoint
from checkout import EMBEDDED, ENGINES, RELEASE, ROOT, USER_HOME, python_of, worker_command
from engine_kit import Failed, Job, Phases, Tokens
from model_folder import read_tensors

# The tests that convert models, compile for long or run the whole program run only on request.
FULL_TESTS = os.environ.get("ORCHESTRATE_FULL_TESTS") == "1"

# Ids of the vocabulary of the embedded model and of the shapes `tiny-*`.
IDS = [(7 * index * index + 3 * index + 1) % 2000 for index in range(200)]

# The config of a small model for `write_model`.
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128,
}

_scratch = tempfile.mkdtemp(prefix="engine-tests-")
atexit.register(shutil.rmtree, _scratch, ignore_errors=True)


def scratch():
    """A new folder, which exists until the tests end."""
    return Path(tempfile.mkdtemp(dir=_scratch))


def use_own_home():
    """Gives the tests a data folder of their own, for conversions and compiled kernels."""
    os.environ["ORCHESTRATE_HOME"] = str(scratch())


# Model folders.


@functools.cache
def tiny_model(shape, dtype="f32", seed=1):
    """A folder with a model of a shape `tiny-*` of `orchestrate model synth`."""
    out = scratch() / shape
    command = [RELEASE / "orchestrate", "model", "synth", shape, "--dtype", dtype, "--seed", str(seed), "--out", out, "-q"]
    subprocess.run(command, check=True, capture_output=True)
    return out


def changed_folder(folder, change=None, **fields):
    """A folder with the files of another folder. `fields` replace fields of the config; None removes one. `change` gets the bytes of
    `model.safetensors` and its tensors by name, and may change the bytes, or return others."""
    out = scratch() / "changed"
    out.mkdir()
    for path in folder.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            os.symlink(path, out / path.name)
    config = {**json.loads((folder / "config.json").read_text()), **fields}
    (out / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    weights = folder / "model.safetensors"
    if change is None:
        os.symlink(weights, out / weights.name)
    else:
        content = bytearray(weights.read_bytes())
        (out / weights.name).write_bytes(change(content, read_tensors([weights])) or content)
    return out


def with_number_in_last_norm(folder, bits):
    """A copy of a model in bf16, with a number of these bits in the last norm."""

    def change(content, tensors):
        offset = tensors["model.norm.weight"].offset + 6
        content[offset : offset + 2] = struct.pack("<H", bits)

    return changed_folder(folder, change)


def with_nan(folder):
    return with_number_in_last_norm(folder, 0x7FC0)


def with_reversed_rows(folder, layer=1):
    """A copy of a model in which a matrix has its rows in the reverse order."""

    def change(content, tensors):
        tensor = tensors[f"model.layers.{layer}.mlp.up_proj.weight"]
        row = tensor.bytes // tensor.shape[0]
        starts = range(tensor.offset, tensor.offset + tensor.bytes, row)
        content[tensor.offset : tensor.offset + tensor.bytes] = b"".join(content[start : start + row] for start in reversed(starts))

    return changed_folder(folder, change)


def tensors_of(config):
    """The shapes of the tensors that a config needs."""
    return checkpoint.expected_tensors(config["model_type"], checkpoint.read_sizes(config["model_type"], config))


def write_model(config, tensors):
    """A folder with this config and with tensors of zeros in f32: `tensors` has the shape of each."""
    out = scratch() / "written"
    out.mkdir()
    header, size = {}, 0
    for name, shape in tensors.items():
        end = size + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [size, end]}
        size = end
    encoded = json.dumps(header).encode()
    (out / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(size))
    (out / "config.json").write_text(json.dumps(config))
    return out


# Loads and requests by the worker's own code.


def load(engine, model, options=None, phases=None, **fields):
    """Loads a model as the kit does, without the kit's checks of the request."""
    request = {"model": str(model), "device": "cpu", "dtype": None, "threads": 2, "context_tokens": None, **fields}
    request = SimpleNamespace(options=options or {}, **request)
    request.dtype = request.dtype or engine.default_dtype(request)
    return engine.load(request, phases or Phases())


def load_converted(engine, converter, model, path, options=None, **fields):
    """Loads a model whose conversion is at `path`. `converter` names the function of the worker that converts: `worker.convert`."""
    with mock.patch(converter, lambda *_: Path(path)):
        return load(engine, model, options, **fields)


def call_together(engine, module, calls):
    """Calls `main` of a module with each of these lists of arguments in one process, because the imports of a converter take longer
    than a small model."""
    code = f"import json, sys, {module}\nfor arguments in json.loads(sys.argv[1]): {module}.main(*arguments)"
    arguments = json.dumps([[str(argument) for argument in arguments] for arguments in calls])
    command = [sys.executable, "-s", "-c", code, arguments]
    done = subprocess.run(command, cwd=ENGINES / engine, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr[-2000:])


def generate(model, prompts, new_tokens, eos_ids=None, **fields):
    """The new ids of each prompt. `eos_ids` replaces the model's own."""
    job = Job(prompts, new_tokens, **fields)
    tokens = Tokens(job, model.facts()["eos_ids"] if eos_ids is None else eos_ids, 0, 0)
    model.generate(job, tokens)
    return [tokens.ids(sequence) for sequence in range(len(prompts))]


def drift(scores, expected):
    """The root mean square difference of log-probabilities."""
    squares = [(a - b) ** 2 for a, b in zip(scores, expected, strict=True)]
    return (sum(squares) / len(squares)) ** 0.5


# Answers of workers as programs.


def worker_answers(engine, requests, python=sys.executable, **variables):
    """The answers of an engine's worker to these requests, without progress. Only the protocol may be on its stdout."""
    command, environment = worker_command(engine, python)
    sent = "".join(json.dumps(request) + "\n" for request in requests)
    streams = {"input": sent, "capture_output": True, "text": True}
    done = subprocess.run(command, env={**environment, **variables}, timeout=3000, **streams)
    if done.returncode != 0:
        raise AssertionError(done.stderr[-2000:])
    return [answer for answer in map(json.loads, done.stdout.splitlines()) if answer["type"] != "progress"]


def assert_requests_overlap(test, engine, *loads):
    """Starts the worker of an engine. After each of these loads, four requests beside an endless one get the ids of each alone, and a
    `cancel` ends the endless one."""
    requests = [
        {"type": "generate", "prompt_ids": IDS[30 * index :][: 25 + index], "max_new_tokens": 10 + 10 * index, "ignore_eos": True}
        for index in range(4)
    ]
    command, environment = worker_command(engine, sys.executable)
    worker = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    test.addCleanup(worker.stdout.close)
    test.addCleanup(worker.kill)

    def send(*lines):
        worker.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
        worker.stdin.flush()

    def receive():
        return next(it for it in map(json.loads, worker.stdout) if it["type"] != "progress")

    def sequence(answer):
        return answer["iterations"][0]["sequences"][0]

    for load in loads:
        send({"type": "load", **load}, *requests)
        test.assertEqual(receive()["type"], "loaded")
        expected = [sequence(receive())["output_ids"] for _ in requests]
        # The endless request streams, so that it runs before the others begin.
        send({**requests[0], "id": "endless", "max_new_tokens": 1900, "stream": True})
        test.assertEqual(receive()["type"], "token")
        send(*({**request, "id": index} for index, request in enumerate(requests)))
        answers = {}
        while len(answers) < len(requests):
            if (answer := receive())["type"] != "token":
                answers[answer["id"]] = answer
        test.assertEqual([sequence(answers[index])["output_ids"] for index in range(4)], expected)
        send({"type": "cancel", "id": "endless"})
        while (answer := receive())["type"] == "token":
            pass
        test.assertEqual((answer["id"], sequence(answer)["finish"]), ("endless", "cancelled"))
    worker.stdin.close()
    test.assertEqual(worker.wait(timeout=60), 0)


def ids_and_scores(answers):
    """The new ids of each generation, and the log-probabilities of each text."""
    if failed := [answer for answer in answers if answer["type"] == "failed"]:
        raise AssertionError(failed[0])
    ids = [answer["iterations"][0]["sequences"][0]["output_ids"] for answer in answers if answer["type"] == "generated"]
    return ids, [answer["logprobs"][0] for answer in answers if answer["type"] == "scored"]


def baseline_answers(requests):
    """The ids and the log-probabilities that `pytorch-baseline` gives in f32. Skips the test if its environment is not set up."""
    python, reason = python_of("pytorch-baseline")
    if python is None:
        raise unittest.SkipTest(reason)
    return ids_and_scores(worker_answers("pytorch-baseline", requests, python))


def expected_outputs(folders, prompt=IDS[:100], new_tokens=48, scored=IDS):
    """For each of these model folders by name: the greedy ids after the prompt, and the log-probabilities of the scored ids."""
    requests = []
    for folder in folders.values():
        requests.append({"type": "load", "model": str(folder), "dtype": "f32", "threads": 1, "options": {"kv_cache": True}})
        requests.append({"type": "generate", "prompt_ids": prompt, "max_new_tokens": new_tokens, "ignore_eos": True})
        requests.append({"type": "score", "sequences": [scored]})
    return dict(zip(folders, zip(*baseline_answers(requests), strict=True), strict=True))


# Runs of the release build.


def status_of_planted_conversion(engine, convert, other=None):
    """The status of an engine's output in a short run, after a conversion of other weights took the place of the embedded model's.
    `convert(model)` returns the path of a conversion in f32, from the cache of conversions. `other` is a conversion of
    `with_reversed_rows(EMBEDDED)`, if it exists already."""
    home, out = scratch(), scratch()
    # The run uses a cache of conversions of its own, and the environments of the user.
    for entry in USER_HOME.iterdir() if USER_HOME.is_dir() else ():
        if entry.name not in ("conversions", "workers"):
            os.symlink(entry, home / entry.name)
    with mock.patch.dict(os.environ, ORCHESTRATE_HOME=str(home)):
        planted, other = convert(EMBEDDED), other or convert(with_reversed_rows(EMBEDDED))
        for target, source in [(planted, other)] if planted.is_file() else [(path, other / path.name) for path in planted.iterdir()]:
            shutil.copyfile(source, target)
        command = [
            RELEASE / "orchestrate", "-e", engine, "-m", EMBEDDED, "--dtype", "f32", "-s", "decode", "--depth", "0", "--new-tokens", "8",
            "--blocks", "1", "--iterations", "1", "--budget", "20m", "--no-setup", "--anyway", "--threads", "1",
            "--results", out / "results", "--json", out / "report.json",
        ]
        # The engine's tests run in its Python, which may not be that of the pinned environment.
        variable = f"ORCHESTRATE_PYTHON_{engine.upper().replace('-', '_')}"
        done = subprocess.run(command, env={**os.environ, variable: sys.executable}, cwd=ROOT, capture_output=True, text=True, timeout=1500)
    try:
        (output,) = json.loads((out / "report.json").read_text())["outputs"]
    except (OSError, ValueError) as error:
        raise AssertionError(f"{error}: {done.stdout}{done.stderr}") from None
    return output["status"]


# Tests that several engines have.


class RefusalTests(unittest.TestCase):
    """A base class with assertions about refusals."""

    def refusal(self, action):
        with self.assertRaises(Failed) as raised:
            action()
        return raised.exception

    def assert_refused(self, kind, part, action):
        failed = self.refusal(action)
        self.assertEqual(failed.kind, kind, failed.message)
        self.assertIn(part, failed.message)


class RequestTests:
    """Tests of requests to `model`, in a class that is also a `unittest.TestCase`. `capabilities` are those of the engine's hello.
    `ids` are 200 ids of the vocabulary."""

    ids = IDS

    def ragged(self):
        """A batch of prompts of different lengths."""
        return [self.ids[:20], self.ids[20:33], self.ids[40:70]]

    def layouts(self):
        """The fields of the requests that give one result in every layout of a batch, with and without a cache."""
        caches = (True, False) if self.capabilities.get("use_cache_toggle") else (True,)
        return [{"padding": padding, "use_cache": cache} for padding in self.capabilities["padding_sides"] for cache in caches]

    def test_a_sequence_gets_the_same_ids_in_a_batch_alone_and_without_a_cache(self):
        separate = [generate(self.model, [prompt], 8, ignore_eos=True)[0] for prompt in self.ragged()]
        for fields in self.layouts():
            self.assertEqual(generate(self.model, self.ragged(), 8, ignore_eos=True, **fields), separate, fields)

    def test_prompts_of_equal_length_get_the_same_ids_in_a_batch_and_alone(self):
        prompts = [self.ids[:12], self.ids[12:24], self.ids[50:62]]
        separate = [generate(self.model, [prompt], 8, ignore_eos=True)[0] for prompt in prompts]
        self.assertEqual(generate(self.model, prompts, 8, ignore_eos=True), separate)

    def test_each_sequence_of_a_batch_ends_at_its_own_eos_id_unless_eos_is_ignored(self):
        separate = [generate(self.model, [prompt], 8, ignore_eos=True)[0] for prompt in self.ragged()]
        # The third token of the first sequence ends every sequence that has it.
        eos_id = separate[0][2]
        ended = [ids[: ids.index(eos_id) + 1] if eos_id in ids else ids for ids in separate]
        self.assertLess(len(ended[0]), 8)
        for fields in self.layouts():
            self.assertEqual(generate(self.model, self.ragged(), 8, eos_ids=[eos_id], **fields), ended, fields)
            self.assertEqual(generate(self.model, self.ragged(), 8, eos_ids=[eos_id], ignore_eos=True, **fields), separate, fields)

    def test_a_request_does_not_change_the_next_answer(self):
        first = generate(self.model, [self.ids[:20]], 8, ignore_eos=True)
        generate(self.model, [self.ids], 30, ignore_eos=True)
        generate(self.model, self.ragged(), 4, ignore_eos=True)
        scores = self.model.score(self.ids) if self.capabilities.get("score") else None
        self.assertEqual(generate(self.model, [self.ids[:20]], 8, ignore_eos=True), first)
        if scores is not None:
            self.assertEqual(self.model.score(self.ids), scores)


class OutputTests:
    """Tests that converted models give the outputs of `pytorch-baseline`, in a class that is also a `unittest.TestCase`.

    `expected` has the result of `expected_outputs` for the shapes `tiny-*` and for `embedded`. `load_as(name, dtype)` loads one of
    them, and `max_drift` has a bound for each dtype."""

    # The largest difference of a log-probability in f32.
    max_difference = 1e-4

    def assert_equal_outputs(self, name, model, ids, scores):
        difference = max(abs(a - b) for a, b in zip(model.score(IDS), scores, strict=True))
        self.assertLess(difference, self.max_difference, name)
        self.assertEqual(generate(model, [IDS[:100]], len(ids), ignore_eos=True), [ids], name)

    def test_every_model_in_f32_gives_the_outputs_of_pytorch_baseline(self):
        for name, (ids, scores) in self.expected.items():
            self.assert_equal_outputs(name, self.load_as(name, "f32"), ids, scores)

    def test_each_dtype_drifts_within_its_bound_and_the_facts_report_it(self):
        _, scores = self.expected["embedded"]
        for dtype, bound in self.max_drift.items():
            model = self.load_as("embedded", dtype)
            found = drift(model.score(IDS), scores)
            print(f"{dtype}: drift {found:.2g}", file=sys.stderr)
            self.assertLess(found, bound, dtype)
            self.assertEqual(model.facts()["weights_dtype"], dtype)
