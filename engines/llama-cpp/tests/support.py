"""The embedded model as GGUF files, made by the engine's own program, and the worker's own functions to load and
generate."""

import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

ENGINE = Path(__file__).resolve().parent.parent
ROOT = ENGINE.parents[1]
KIT = ENGINE.parent / "kit" / "python"
EMBEDDED = ROOT / "models" / "embedded"
sys.path[:0] = [str(ENGINE), str(KIT)]

# The program for conversions, unless the environment names another one.
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release" / "llama-cpp-engine"
os.environ.setdefault("ORCHESTRATE_ENGINE_PROGRAM", str(PROGRAM))
# Conversions go to a separate folder.
HOME = tempfile.TemporaryDirectory(prefix="llama-cpp-tests-")
os.environ["ORCHESTRATE_HOME"] = HOME.name

from engine_kit import Job, Phases, Tokens
from file import convert

# f32 throughout: llama.cpp's fused attention rounds keys and values to 16 bits in every cache dtype.
EXACT = {"kv": "f32", "attention": "plain"}

_files = {}


def file(dtype):
    """The embedded model in a dtype."""
    if dtype not in _files:
        _files[dtype] = convert(EMBEDDED, dtype, Phases())
    return _files[dtype]


def load(model=None, options=None, **fields):
    """Loads like the worker, in f32 by default."""
    import loading
    from options import OWN_DTYPE, read_options

    request = {"model": str(model or file("f32")), "dtype": OWN_DTYPE, "threads": 2, "context_tokens": None, **fields}
    return loading.load(SimpleNamespace(**request), read_options(options or {}), Phases())


def run(model, prompts, new_tokens, **fields):
    eos = model.facts()["eos_ids"]
    job = Job(prompts, new_tokens, **fields)
    tokens = Tokens(job, eos, 0, 0)
    model.generate(job, tokens)
    return tokens


def generate(model, prompts, new_tokens, **fields):
    """The new ids of each prompt."""
    tokens = run(model, prompts, new_tokens, **fields)
    return [tokens.ids(sequence) for sequence in range(len(prompts))]
