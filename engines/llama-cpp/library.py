"""llama.cpp's library behind its bindings: what it says while it works, how it was built, and what the bindings leave out.

Importing this imports the bindings, so it falls into a load.
"""

import collections
import ctypes
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

import llama_cpp.llama_cpp as bindings

from engine_kit import Failed

# Of ggml.h; the bindings have no words for them.
WARNING, ERROR, CONTINUED = 3, 4, 5

# The folder that the library of this process came from. Another one needs another process.
FOLDER = Path(os.environ.get("LLAMA_CPP_LIB_PATH") or Path(bindings.__file__).parent / "lib").resolve()

_said = collections.deque(maxlen=32)
_level = 0


@bindings.llama_log_callback
def _hear(level, text, _):
    """Keeps warnings and errors, and shows them on stderr; stdout is the protocol's."""
    global _level
    words = text.decode("utf-8", "replace")
    if level == CONTINUED:
        level = _level
        if level >= WARNING and _said:
            _said[-1] += words
    elif level >= WARNING:
        _said.append(words)
    _level = level
    if level >= WARNING:
        sys.stderr.write(words)


bindings.llama_log_set(_hear, None)
bindings.llama_backend_init()


def forget():
    """What was said before is nobody's business any more."""
    _said.clear()


def why(otherwise):
    """What it said last that says something, without the name of the function that said it."""
    lines = [line.strip() for words in _said for line in words.splitlines() if line.strip()]
    telling = [line for line in lines if not line.endswith(("failed to load model", "failed to load model from file"))]
    for line in reversed(telling or lines):
        name, _, rest = line.partition(": ")
        return (rest if rest and name.isidentifier() else line).removeprefix("error loading model: ")
    return otherwise


def check_folder(wanted):
    if wanted is not None and wanted != FOLDER:
        raise Failed("unsupported", f"`library`: this process has the one in `{FOLDER}` already", "begin a new process")


def system_info():
    """How it was built and what it found, as it says itself: `AVX512_VNNI`, `AMX_INT8`, `OPENMP`, `REPACK`, ..."""
    text = bindings.llama_print_system_info().decode("utf-8", "replace")
    pieces = [piece.strip() for piece in text.replace("CPU :", "").split("|")]
    return [piece.removesuffix(" = 1") for piece in pieces if piece.endswith(" = 1")]


def versions():
    called = {"python": platform.python_version(), "llama-cpp-python": importlib.metadata.version("llama-cpp-python")}
    for name, function in (("llama.cpp", "llama_version"), ("ggml", "ggml_version")):
        said = _text_of(function)
        if said:
            called[name] = said
    return called | {"llama.cpp-features": " ".join(system_info())}


def _text_of(function):
    """What a function without arguments says, where the library has it."""
    function = getattr(bindings._lib, function, None)
    if function is None:
        return None
    function.restype, function.argtypes = ctypes.c_char_p, []
    return (function() or b"").decode("utf-8", "replace")
