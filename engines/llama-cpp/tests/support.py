"""The embedded model as GGUF files, and functions that load a model and generate with the worker's own code."""

import os
import struct
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

ENGINE = Path(__file__).resolve().parent.parent
ROOT = ENGINE.parents[1]
KIT = ENGINE.parent / "kit" / "python"
EMBEDDED = ROOT / "models" / "embedded"
sys.path[:0] = [str(ENGINE), str(KIT)]

# The program for conversions, unless the environment names another program.
PROGRAM = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release" / "llama-cpp-engine"
os.environ.setdefault("ORCHESTRATE_ENGINE_PROGRAM", str(PROGRAM))
# Conversions go to a separate folder.
HOME = tempfile.TemporaryDirectory(prefix="llama-cpp-tests-")
os.environ["ORCHESTRATE_HOME"] = HOME.name

from engine_kit import Job, Phases, Tokens
from gguf_model import convert
from worker import OWN_DTYPE, LlamaCpp

# With these options and f32 weights, all computation is in f32. Fused attention would round keys and values to 16 bits.
EXACT_OPTIONS = {"kv": "f32", "attention": "plain"}

_files = {}


def gguf_file(dtype):
    """The GGUF file of the embedded model in a dtype."""
    if dtype not in _files:
        _files[dtype] = convert(EMBEDDED, dtype, Phases())
    return _files[dtype]


def with_metadata(content, numbers):
    """The bytes of a GGUF file with additional whole numbers in its metadata."""
    entries = [(key, struct.pack("<II", 4, number)) for key, number in numbers.items()]
    # Tensors begin at multiples of 32 bytes, so the added bytes must be a multiple of 32. The entry `general.fill` takes 32 bytes
    # without its text, and the text supplies the missing bytes.
    length = sum(8 + len(key) + len(value) for key, value in entries)
    filler = bytes(-length % 32)
    entries.append(("general.fill", struct.pack("<IQ", 8, len(filler)) + filler.replace(b"\0", b" ")))
    added = b"".join(struct.pack("<Q", len(key)) + key.encode() + value for key, value in entries)
    count = struct.unpack_from("<Q", content, 16)[0] + len(entries)
    return content[:16] + struct.pack("<Q", count) + added + content[24:]


def embedded_copy(folder):
    """A copy of the embedded model in a new folder."""
    copy = Path(folder) / "copy"
    copy.mkdir()
    for path in EMBEDDED.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    return copy


def load_model(model=None, options=None, **fields):
    """Loads a model as the worker does: by default the embedded model in f32, with 2 threads."""
    request = {"model": str(model or gguf_file("f32")), "dtype": OWN_DTYPE, "threads": 2, "context_tokens": None}
    return LlamaCpp().load(SimpleNamespace(options=options or {}, **{**request, **fields}), Phases())


def generate(model, prompts, new_tokens, **fields):
    """The new ids of each prompt."""
    job = Job(prompts, new_tokens, **fields)
    tokens = Tokens(job, model.facts()["eos_ids"], 0, 0)
    model.generate(job, tokens)
    return [tokens.ids(sequence) for sequence in range(len(prompts))]
