"""Functions that load a model and generate with the worker's own code. The tests import the library `mistralrs`."""

import json
import os
import shutil
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

from engine_kit import Failed, Job, Phases, Tokens
from worker import MistralRs

# The library reads these once in a process, so every load of these tests has the same ones.
THREADS, OPTIONS = 2, {"kv": "f32"}

# A worker's current folder is its own; a load writes into it.
_folder = tempfile.TemporaryDirectory(prefix="mistralrs-tests-")
os.chdir(_folder.name)


def load_model(model=EMBEDDED, dtype="f32", **fields):
    request = {"model": str(model), "dtype": dtype, "threads": THREADS, "context_tokens": None, "options": {}}
    if dtype == "f32":
        request["options"] = OPTIONS
    return MistralRs().load(SimpleNamespace(**{**request, **fields}), Phases())


def generate(model, prompts, new_tokens, **fields):
    """The new ids of each prompt."""
    job = Job(prompts, new_tokens, **fields)
    tokens = Tokens(job, model.facts()["eos_ids"], 0, 0)
    model.generate(job, tokens)
    return [tokens.ids(sequence) for sequence in range(len(prompts))]


def copy_of_embedded(name, **changes):
    """A copy of the embedded model in a new folder, with changes to its config. A change to `...` removes a field."""
    folder = Path(_folder.name) / name
    shutil.copytree(EMBEDDED, folder)
    config = json.loads((folder / "config.json").read_text())
    for field, value in changes.items():
        if value is ...:
            config.pop(field, None)
        else:
            config[field] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def change_weights(folder, change):
    """Replaces the bytes of all weights of a folder with one file."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    start = 8 + struct.unpack_from("<Q", content)[0]
    path.write_bytes(content[:start] + change(content[start:]))
