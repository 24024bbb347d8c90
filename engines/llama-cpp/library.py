"""llama.cpp's library and its bindings: its log messages, its build, and functions that the bindings lack.

This module imports the bindings, so the engine imports it only during a load.
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

# Log levels of ggml.h that the bindings lack.
WARNING, ERROR, CONTINUED = 3, 4, 5

# The folder of this process' library. Another library needs another process.
FOLDER = Path(os.environ.get("LLAMA_CPP_LIB_PATH") or Path(bindings.__file__).parent / "lib").resolve()

_messages = collections.deque(maxlen=32)
_level = 0


@bindings.llama_log_callback
def _log(level, text, _):
    """Keeps warnings and errors, and prints them on stderr; stdout belongs to the protocol."""
    global _level
    text = text.decode("utf-8", "replace")
    if level == CONTINUED:
        level = _level
        if level >= WARNING and _messages:
            _messages[-1] += text
    elif level >= WARNING:
        _messages.append(text)
    _level = level
    if level >= WARNING:
        sys.stderr.write(text)


bindings.llama_log_set(_log, None)
bindings.llama_backend_init()


def clear_messages():
    """Drops earlier messages."""
    _messages.clear()


def last_error(default):
    """The last specific message of the library, without the name of its function."""
    lines = [line.strip() for text in _messages for line in text.splitlines() if line.strip()]
    specific = [line for line in lines if not line.endswith(("failed to load model", "failed to load model from file"))]
    for line in reversed(specific or lines):
        name, _, message = line.partition(": ")
        return (message if message and name.isidentifier() else line).removeprefix("error loading model: ")
    return default


def check_folder(requested):
    if requested is not None and requested != FOLDER:
        raise Failed("unsupported", f"`library`: this process already uses the library in `{FOLDER}`", "start a new process")


def system_info():
    """The build and CPU features that the library reports: `AVX512_VNNI`, `AMX_INT8`, `OPENMP`, `REPACK`, ..."""
    text = bindings.llama_print_system_info().decode("utf-8", "replace")
    pieces = [piece.strip() for piece in text.replace("CPU :", "").split("|")]
    return [piece.removesuffix(" = 1") for piece in pieces if piece.endswith(" = 1")]


def versions():
    versions = {"python": platform.python_version(), "llama-cpp-python": importlib.metadata.version("llama-cpp-python")}
    for name, function in (("llama.cpp", "llama_version"), ("ggml", "ggml_version")):
        version = _decoded_text(function)
        if version:
            versions[name] = version
    return versions | {"llama.cpp-features": " ".join(system_info())}


def _decoded_text(function):
    """The text that a function without arguments returns, if the library has it."""
    function = getattr(bindings._lib, function, None)
    if function is None:
        return None
    function.restype, function.argtypes = ctypes.c_char_p, []
    return (function() or b"").decode("utf-8", "replace")
