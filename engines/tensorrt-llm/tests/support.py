"""The worker as a process, over the protocol, with the stand-in in place of the library."""

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

VOCABULARY, EOS, SECOND_EOS = 64, 3, 5

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": EOS,
}

PROMPT = [1, 17, 42, 9]

# The longest wait for a line; then the test fails.
TIMEOUT_S = 60


def write_folder(test, changes=None, quantised=None, dtype="BF16"):
    """A model folder that lives as long as the test. Its one tensor is never read."""
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    path = Path(folder.name)
    (path / "config.json").write_text(json.dumps({**CONFIG, **(changes or {})}))
    size = {"BF16": 2, "F32": 4, "F8_E4M3": 1}[dtype] * VOCABULARY * 32
    header = {"model.embed_tokens.weight": {"dtype": dtype, "shape": [VOCABULARY, 32], "data_offsets": [0, size]}}
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    if quantised is not None:
        (path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantised}))
    return path


def site(test, version="1.2.1"):
    """A folder of packages that states the installed version of the library; None: no library."""
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    if version is not None:
        metadata = Path(folder.name) / f"tensorrt_llm-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {version}\n")
    return folder.name


class Worker:
    """A worker process and its conversation. `settings` configures the stand-in."""

    def __init__(self, test, version="1.2.1", environment=None, stand_in=True, **settings):
        self.record = Path(site(test, None)) / "record"
        packages = [str(KIT), *([str(STAND_IN)] if stand_in else []), site(test, version)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(packages),
            "PYTHONDONTWRITEBYTECODE": "1",
            "STAND_IN": json.dumps({"record": str(self.record), **settings}),
            **(environment or {}),
        }
        environment.pop("CUDA_VISIBLE_DEVICES", None) if "CUDA_VISIBLE_DEVICES" not in (environment or {}) else None
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.process = subprocess.Popen([sys.executable, "-s", str(ENGINE / "worker.py")], env=environment, **pipes)
        self.lines, self.stderr = queue.Queue(), []
        takers = ((self.process.stdout, self._line), (self.process.stderr, self.stderr.append))
        self.drains = [threading.Thread(target=self._drain, args=taker, daemon=True) for taker in takers]
        for drain in self.drains:
            drain.start()
        test.addCleanup(self.end)

    def _drain(self, stream, take):
        for line in stream:
            take(line)

    def _line(self, line):
        self.lines.put(json.loads(line))

    def send(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self):
        """The next message except progress."""
        while (message := self.lines.get(timeout=TIMEOUT_S))["type"] == "progress":
            pass
        return message

    def receive_past(self, type):
        """The next message of another type."""
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
        """The stand-in's records of a name, in order."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
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
                # Ends all processes of a test, even if the engine failed to.
                try:
                    os.kill(pid, 9)
                except OSError:
                    pass
        for drain in self.drains:
            # The reader thread owns these streams; it ends when the other ends are closed.
            drain.join(TIMEOUT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()


def loaded(test, options=None, folder=None, **settings):
    """A worker with a loaded model."""
    worker = Worker(test, **settings)
    message = worker.load(folder or write_folder(test), options=options or {})
    test.assertEqual(message["type"], "loaded", message)
    return worker


def sequence(answer):
    (iteration,) = answer["iterations"]
    (sequence,) = iteration["sequences"]
    return sequence


def ids(answer):
    return sequence(answer)["output_ids"]


def expected_ids(prompt, count):
    """The greedy ids of the stand-in's model, computed here."""
    sys.path.append(str(STAND_IN))
    try:
        from tensorrt_llm.llmapi import row
    finally:
        sys.path.remove(str(STAND_IN))
    ids, new = list(prompt), []
    for _ in range(count):
        logits = row(ids, VOCABULARY)
        new.append(max(range(VOCABULARY), key=logits.__getitem__))
        ids.append(new[-1])
    return new
