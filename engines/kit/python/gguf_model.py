"""For workers that read only GGUF: finds the GGUF file of a model, and requests conversions and tokenizers from the program
that started the worker, which is written in Rust (`engine_kit::gguf`)."""

import os
from pathlib import Path

from conversion import PROGRAM_VARIABLE, convert_by_program, parse_errors, run
from engine_kit_wire import Failed
from model_folder import read_json

# The first bytes of every GGUF file.
MAGIC = b"GGUF"


def find_gguf(path):
    """The GGUF file at a path: the file itself, or the only one in a folder without safetensors. None for any other
    folder."""
    path = Path(path)
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1 or any(path.glob("*.safetensors")):
            return None
        path = files[0]
    elif path.suffix.lower() != ".gguf":
        raise Failed("model", f"`{path}`: expected a `.gguf` file or a model folder")
    check_magic(path)
    return path


def check_magic(path):
    """Refuses files that are not GGUF: the errors of libraries often give no reason for them."""
    try:
        if path.exists() and not path.is_file():
            # Reading a pipe might never end.
            raise Failed("model", f"`{path}` is not a file")
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise Failed("model", f"`{path}`: {error.strerror or error}") from None
    if start != MAGIC:
        raise Failed("model", f"`{path}` is not a GGUF file: it begins with {start!r}", "fetch or copy this file again")


def convert(path, dtype, phases):
    """Converts a model to GGUF in `dtype` (None keeps the model's own), and returns the file. The program reuses
    an earlier conversion of the same content."""
    if Path(path).is_dir():
        # Checked first, so that the message names the missing file.
        read_json(Path(path) / "config.json")
        if not (Path(path) / "tokenizer.json").is_file():
            raise Failed("model", f"`{path}`: no `tokenizer.json`, and this engine loads no model without its vocabulary")
    hint = f"orchestrate model convert {path} --to gguf" + (f" --dtype {dtype}" if dtype else "")
    arguments = ["convert", str(path), *([dtype] if dtype else [])]
    return convert_by_program(path, "GGUF", arguments, hint, phases, dtype)


def tokenizer_json(path):
    """The tokenizer of a model as the text of a `tokenizer.json`."""
    program, hint = os.environ.get(PROGRAM_VARIABLE), "send `prompt_ids`"
    if not program:
        raise Failed("unavailable", f"`{PROGRAM_VARIABLE}` names no program that reads the tokenizer of `{path}`", hint)
    line, errors, code = run([program, "tokenizer", str(path)], lambda fraction: None)
    if code != 0:
        raise Failed("model", f"`{path}` has no tokenizer for texts: {parse_errors(errors)[0]}", hint)
    return line
