"""Small models, and functions that load a model and generate with the worker's own code."""

import json
import os
import struct
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

RELEASE = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release"
# The program for conversions, unless the environment names another program.
os.environ.setdefault("ORCHESTRATE_ENGINE_PROGRAM", str(RELEASE / "ctranslate2-engine"))
# Tests with the library convert models, so they run only on request.
FULL_TESTS = os.environ.get("ORCHESTRATE_FULL_TESTS") == "1"

from engine_kit import Job, Phases, Tokens
from worker import CTranslate2

_folders = []


def scratch():
    """A new folder, which exists until the tests end."""
    _folders.append(tempfile.TemporaryDirectory(prefix="ctranslate2-tests-"))
    return Path(_folders[-1].name)


def tiny_model(shape, dtype="f32", seed=1):
    """A folder with a model of a shape `tiny-*` of `orchestrate model synth`."""
    out = scratch() / shape
    command = [RELEASE / "orchestrate", "model", "synth", shape, "--dtype", dtype, "--seed", str(seed), "--out", out, "-q"]
    subprocess.run(command, check=True, capture_output=True)
    return out


def changed_config(folder, **fields):
    """A folder with the weights of another folder, and with other fields of the config. None removes a field."""
    out = scratch() / "changed"
    out.mkdir()
    for path in folder.iterdir():
        if path.name != "config.json":
            os.symlink(path, out / path.name)
    config = {**json.loads((folder / "config.json").read_text()), **fields}
    (out / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    return out


def write_model(config, tensors):
    """A folder with this config and with tensors of zeros in f32: `tensors` has the shape of each."""
    out = scratch() / "written"
    out.mkdir()
    header, size = {}, 0
    for name, shape in tensors.items():
        count = 4
        for length in shape:
            count *= length
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [size, size + count]}
        size += count
    encoded = json.dumps(header).encode()
    (out / "model.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(size))
    (out / "config.json").write_text(json.dumps(config))
    return out


def load_model(model=EMBEDDED, options=None, **fields):
    """Loads a model as the worker does: by default the embedded model in f32, with 2 threads."""
    request = {"model": str(model), "dtype": "f32", "threads": 2, "context_tokens": None, "device": "cpu"}
    return CTranslate2().load(SimpleNamespace(options=options or {}, **{**request, **fields}), Phases())


def generate(model, prompts, new_tokens, **fields):
    """The new ids of each prompt."""
    job = Job(prompts, new_tokens, **fields)
    tokens = Tokens(job, model.facts()["eos_ids"], 0, 0)
    model.generate(job, tokens)
    return [tokens.ids(sequence) for sequence in range(len(prompts))]


def run_worker(command, requests):
    """The answers of an engine's program to these requests, without progress."""
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=600)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [answer for answer in answers if answer["type"] != "progress"]


def convert_together(conversions):
    """Runs `convert.py` for several models in one process, because its imports take longer than a small model. Each conversion has
    the arguments of `convert.main`."""
    code = "import json, sys, convert\nfor arguments in json.loads(sys.argv[1]): convert.main(*arguments)"
    arguments = json.dumps([[str(argument) for argument in arguments] for arguments in conversions])
    done = subprocess.run([sys.executable, "-s", "-c", code, arguments], cwd=ENGINE, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr[-2000:])


def load_converted(model, path, dtype="f32", threads=1):
    """Loads a model whose conversion is in the folder `path`."""
    import checkpoint
    import loading
    from worker import ARCHITECTURES, refuse_unsupported

    folder = checkpoint.open_checkpoint(model, ARCHITECTURES)
    refuse_unsupported(folder)
    return loading.load(SimpleNamespace(dtype=dtype, threads=threads, context_tokens=None), folder, Path(path), Phases())
