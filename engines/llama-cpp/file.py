"""The GGUF file for llama.cpp: the model's own, or a conversion by the program that started this worker. Does not use
llama.cpp's library.
"""

import os
import subprocess
from pathlib import Path

from engine_kit import Failed
from model_folder import read_json

PROGRAM = "ORCHESTRATE_ENGINE_PROGRAM"

# The first bytes of every GGUF file.
MAGIC = b"GGUF"


def is_gguf(path):
    return Path(path).suffix.lower() == ".gguf"


def gguf_in(path):
    """The GGUF file at a path: the file itself, or the only one in a folder without safetensors. None for other
    models."""
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1 or any(path.glob("*.safetensors")):
            return None
        path = files[0]
    elif not is_gguf(path):
        raise Failed("model", f"`{path}`: expected a `.gguf` file or a model folder")
    check_magic(path)
    return path


def check_magic(path):
    """Refuses files that are not GGUF: llama.cpp's own error gives no reason for them."""
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise Failed("model", f"`{path}`: {error.strerror or error}") from None
    if start != MAGIC:
        raise Failed("model", f"`{path}` is not a GGUF file: it begins with {start!r}", "fetch or copy this file again")


def convert(path, dtype, phases):
    """Converts a model to GGUF in `dtype` (None keeps its own). An earlier conversion of the same
    content from any folder is found again."""
    if Path(path).is_dir():
        # A folder that is not a model gets this engine's message.
        read_json(Path(path) / "config.json")
        if not (Path(path) / "tokenizer.json").is_file():
            raise Failed("model", f"`{path}`: no `tokenizer.json`, and llama.cpp loads no model without its vocabulary")
    program = os.environ.get(PROGRAM)
    if not program:
        hint = f"orchestrate model convert {path} --to gguf" + (f" --dtype {dtype}" if dtype else "")
        raise Failed("unavailable", f"`{path}` needs a conversion to GGUF, and `{PROGRAM}` names no program for it", hint)
    command = [program, "convert", str(path), *([dtype] if dtype else [])]
    line, errors, code = run(command, lambda fraction: phases.progress("conversion", fraction, dtype))
    if code != 0 or not line.startswith("/"):
        cause = errors.splitlines()[-1].removeprefix("error: ") if errors else f"`{program}` ended with {code}, and named no file"
        raise Failed("model", f"`{path}` cannot be converted to GGUF: {cause}")
    return Path(line)


def run(command, progress):
    """Runs a command, and returns the last line of its stdout, its stderr and its exit status."""
    pipe = subprocess.PIPE
    # Paths are bytes; surrogates preserve paths that are not UTF-8.
    encoding = {"encoding": "utf-8", "errors": "surrogateescape"}
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, **encoding)
    except OSError as error:
        raise Failed("unavailable", f"`{command[0]}` ({PROGRAM}) cannot be started: {error.strerror or error}") from None
    # stderr is read after the end, because it is short: one line, or a backtrace.
    with process:
        line = ""
        for line in process.stdout:
            line = line.rstrip("\n")
            fraction = parse_fraction(line)
            if fraction is not None:
                progress(fraction)
        errors = process.stderr.read().strip()
    return line, errors, process.returncode


def parse_fraction(line):
    """The progress in a line; None for other lines."""
    try:
        fraction = float(line)
    except ValueError:
        return None
    return fraction if 0 <= fraction <= 1 else None
