"""The engines of this test as programs, llama.cpp's real server, and the expected outputs of `pytorch-baseline`."""

import functools
import json
import queue
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.request
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ENGINE.parent / "kit" / "python")]

from checkout import EMBEDDED, RELEASE, python_of
from engine_tests import worker_answers

# The longest time for an answer. It only ends a test that hangs.
ANSWER_SECONDS = 300


class Program:
    """The program of a release build of an engine. Answers come in any order, so a thread collects them."""

    def __init__(self, name):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([str(RELEASE / name)], text=True, **pipes)
        self.answers = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            answer = json.loads(line)
            if answer["type"] != "progress":
                self.answers.put(answer)

    def send(self, type, **fields):
        self.process.stdin.write(json.dumps({"type": type, **fields}) + "\n")
        self.process.stdin.flush()

    def answer(self):
        return self.answers.get(timeout=ANSWER_SECONDS)

    def request(self, type, **fields):
        self.send(type, **fields)
        return self.answer()

    def load(self, dtype=None, options=None, model=EMBEDDED):
        answer = self.request("load", model=str(model), dtype=dtype, threads=2, options=options or {})
        if answer["type"] != "loaded":
            raise AssertionError(answer)
        return answer

    def sequence(self, text, new_tokens):
        """The only sequence of the answer to a request."""
        return sequence_of(self.request("generate", **fields_of(text, new_tokens)))

    def children(self):
        """The ids of the processes that the engine has started."""
        done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True)
        return [int(pid) for pid in done.stdout.split()]

    def close(self):
        """Ends the engine, which ends its server."""
        self.process.stdin.close()
        status = self.process.wait(timeout=ANSWER_SECONDS)
        self.reader.join(timeout=ANSWER_SECONDS)
        self.process.stdout.close()
        return status


def fields_of(text, new_tokens):
    return {"prompt": text, "max_new_tokens": new_tokens, "ignore_eos": True}


def sequence_of(answer):
    if answer["type"] != "generated":
        raise AssertionError(answer)
    return answer["iterations"][0]["sequences"][0]


def text_of(sequence):
    return "".join(chunk["text"] for chunk in sequence["chunks"])


class RealServer:
    """llama.cpp's server, started without an engine, with its own defaults for caches."""

    def __init__(self, model):
        # The tests run in the Python of the environment, which has the server beside its packages.
        folder = Path(sys.prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [folder / "bin" / "llama-server", "--model", model, "--host", "127.0.0.1", "--port", port]
        command += ["--threads", 2, "--parallel", 4, "--ctx-size", 8192]
        self.url = f"http://127.0.0.1:{port}"
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([str(part) for part in command], **quiet)
        while self.process.poll() is None:
            try:
                return self.get("/health") and None
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"the server has ended with {self.process.returncode}")

    def get(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return json.loads(answer.read())

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=ANSWER_SECONDS)


@functools.cache
def expected(text, new_tokens):
    """The prompt's ids, the greedy ids and their text by `pytorch-baseline` in f32. A prompt in text makes it answer in text."""
    python, reason = python_of("pytorch-baseline")
    if python is None:
        raise unittest.SkipTest(reason)
    requests = [
        {"type": "load", "model": str(EMBEDDED), "dtype": "f32", "threads": 1, "options": {"kv_cache": True}},
        {"type": "generate", "prompt": text, "max_new_tokens": new_tokens, "ignore_eos": True},
    ]
    _, answer = worker_answers("pytorch-baseline", requests, python)
    return sequence_of(answer)


@functools.cache
def gguf():
    """The embedded model in f32 as a GGUF file, in the cache of conversions."""
    command = [RELEASE / "llama-cpp-engine", "convert", EMBEDDED, "f32"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    return Path(done.stdout.splitlines()[-1])

