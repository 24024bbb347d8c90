"""Starts the engine as a process and speaks the protocol with it. `stand_in` replaces the library and the driver."""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent
KIT = ENGINE.parent / "kit" / "python"
STAND_IN = ENGINE / "tests" / "stand_in"
sys.path[:0] = [str(ENGINE), str(KIT)]

VOCABULARY, HIDDEN, EOS, SECOND_EOS = 64, 32, 3, 5

# The engine needs no `num_hidden_layers`, so this config has none.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": EOS,
}

PROMPT = [1, 17, 42, 9]

# A test fails if a message or the end of a process takes longer.
TIMEOUT_S = 60


def temporary_folder(test):
    """Makes a folder that lives as long as the test."""
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    return Path(folder.name)


def write_folder(test, changes=None, quantization=None, dtype="BF16"):
    """Writes a model folder; `changes` are config fields. It has one tensor, whose numbers are never read."""
    path = temporary_folder(test)
    (path / "config.json").write_text(json.dumps({**CONFIG, **(changes or {})}))
    size = {"BF16": 2, "F32": 4, "F8_E4M3": 1}[dtype] * VOCABULARY * HIDDEN
    header = {"model.embed_tokens.weight": {"dtype": dtype, "shape": [VOCABULARY, HIDDEN], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    if quantization is not None:
        (path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    return path


def packages_folder(test, version="1.2.1"):
    """Makes a folder with the metadata of an installed library of this version; without a version an empty folder."""
    folder = temporary_folder(test)
    if version is not None:
        metadata = folder / f"tensorrt_llm-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {version}\n")
    return str(folder)


class EngineProcess:
    """An engine process. `settings` are those of the stand-in; `gpus` are pairs of a name and a compute capability. Without
    `stand_in` neither the library nor the driver's library can be imported."""

    def __init__(self, test, version="1.2.1", environment=None, stand_in=True, **settings):
        self.record_file = temporary_folder(test) / "record"
        packages = [str(KIT), *([str(STAND_IN)] if stand_in else []), packages_folder(test, version)]
        environment = {
            **{name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
            "PYTHONPATH": os.pathsep.join(packages),
            "PYTHONDONTWRITEBYTECODE": "1",
            "STAND_IN": json.dumps({"record": str(self.record_file), **settings}),
            **(environment or {}),
        }
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.process = subprocess.Popen([sys.executable, "-s", str(ENGINE / "worker.py")], env=environment, **pipes)
        self.messages, self.stderr = queue.Queue(), []
        readers = ((self.process.stdout, self._take_message), (self.process.stderr, self.stderr.append))
        self.threads = [threading.Thread(target=self._read_lines, args=reader, daemon=True) for reader in readers]
        for thread in self.threads:
            thread.start()
        test.addCleanup(self.end)

    def _read_lines(self, stream, take):
        for line in stream:
            take(line)

    def _take_message(self, line):
        self.messages.put(json.loads(line))

    def send(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self):
        """Waits for the next message that reports no progress."""
        while (message := self.messages.get(timeout=TIMEOUT_S))["type"] == "progress":
            pass
        return message

    def receive_except(self, type):
        """Waits for the next message of another type, apart from progress."""
        while (message := self.receive())["type"] == type:
            pass
        return message

    def request(self, **request):
        self.send(**request)
        return self.receive()

    def load(self, folder, **fields):
        return self.request(type="load", model=str(folder), **fields)

    def generate(self, prompt=PROMPT, **fields):
        return self.request(type="generate", prompt_ids=prompt, **fields)

    def records(self, name):
        """The stand-in's records that have a field of this name, in order."""
        lines = self.record_file.read_text().splitlines() if self.record_file.exists() else []
        return [record for record in map(json.loads, lines) if name in record]

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for record in self.records("workers"):
            for pid in record["workers"]:
                # A failed test may leave worker processes.
                try:
                    os.kill(pid, 9)
                except OSError:
                    pass
        for thread in self.threads:
            # A thread ends when the engine has closed the pipe that the thread reads.
            thread.join(TIMEOUT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()


def loaded_engine(test, options=None, folder=None, **settings):
    """Starts an engine, and loads a model."""
    engine = EngineProcess(test, **settings)
    message = engine.load(folder or write_folder(test), options=options or {})
    test.assertEqual(message["type"], "loaded", message)
    return engine


def single_sequence(answer):
    (iteration,) = answer["iterations"]
    (sequence,) = iteration["sequences"]
    return sequence


def ids(answer):
    return single_sequence(answer)["output_ids"]


def expected_ids(prompt, count):
    """The greedy ids of the stand-in's model after a prompt."""
    sys.path.append(str(STAND_IN))
    try:
        from tensorrt_llm.llmapi import logits_after
    finally:
        sys.path.remove(str(STAND_IN))
    ids, new_ids = list(prompt), []
    for _ in range(count):
        logits = logits_after(ids, VOCABULARY)
        new_ids.append(max(range(VOCABULARY), key=logits.__getitem__))
        ids.append(new_ids[-1])
    return new_ids
