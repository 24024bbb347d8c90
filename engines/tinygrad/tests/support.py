"""Models for the tests, and functions that load a model and generate with the worker's own code."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

ENGINE = Path(__file__).resolve().parent.parent
ROOT = ENGINE.parents[1]
KIT = ENGINE.parent / "kit" / "python"
EMBEDDED = ROOT / "models" / "embedded"
sys.path[:0] = [str(ENGINE), str(KIT)]

# The programs, unless the environment names another program for conversions.
PROGRAMS = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release"
os.environ.setdefault("ORCHESTRATE_ENGINE_PROGRAM", str(PROGRAMS / "tinygrad-engine"))
# Conversions, compiled kernels and models go to a separate folder.
HOME = tempfile.TemporaryDirectory(prefix="tinygrad-tests-")
os.environ["ORCHESTRATE_HOME"] = HOME.name

from engine_kit import Job, Phases, Tokens
from gguf_model import convert
from worker import OWN_DTYPE, Tinygrad

_files = {}


def gguf_file(dtype, model=EMBEDDED):
    """The GGUF file of a model in a dtype: by default of the embedded model."""
    if (model, dtype) not in _files:
        _files[model, dtype] = convert(model, dtype, Phases())
    return _files[model, dtype]


def tiny_model(shape):
    """The folder of a model with random weights in one of the shapes `tiny-*`."""
    folder = Path(HOME.name) / shape
    if not folder.is_dir():
        command = [PROGRAMS / "orchestrate", "model", "synth", shape, "--out", folder]
        subprocess.run(command, check=True, capture_output=True)
    return folder


def load_model(model=None, options=None, **fields):
    """Loads a model as the worker does: by default the embedded model in f32, with 2 threads."""
    request = {"model": str(model or gguf_file("f32")), "dtype": OWN_DTYPE, "threads": 2, "context_tokens": None}
    return Tinygrad().load(SimpleNamespace(options=options or {}, **{**request, **fields}), Phases())


def generate(model, prompt, new_tokens, **fields):
    """The new ids of a prompt."""
    job = Job([prompt], new_tokens, **fields)
    tokens = Tokens(job, model.facts()["eos_ids"], 0, 0)
    model.generate(job, tokens)
    return tokens.ids(0)


class Header:
    """The parts of a GGUF header that a test changes in the bytes of a file."""

    def __init__(self, path):
        self.content = bytearray(Path(path).read_bytes())

    def rename(self, old, new):
        """Changes a name or a text of the header. Both have the same length, so that nothing moves."""
        assert len(old) == len(new) and self.content.count(old.encode()) >= 1, old
        self.content = self.content.replace(old.encode(), new.encode())
        return self

    def set_number(self, offset, data):
        self.content[offset : offset + len(data)] = data
        return self

    def write(self, folder):
        path = Path(folder) / "model.gguf"
        path.write_bytes(self.content)
        return path
