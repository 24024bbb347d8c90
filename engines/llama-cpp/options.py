"""The load options of this engine, their values and defaults. Imports nothing of llama.cpp."""

from pathlib import Path
from types import SimpleNamespace

from engine_kit import Failed, read_choice, read_flag

OPTIONS = ("library", "attention", "kv", "repack", "pin")

# llama.cpp's default (fused attention if it supports that), always fused attention, never.
ATTENTION = ["auto", "fused", "plain"]
KV = ["f16", "bf16", "f32", "q8_0"]

# The dtypes for conversions to GGUF; a file in another dtype is loaded unchanged.
DTYPES = ["bf16", "f16", "f32", "q8_0", "q4_0", "q4_k", "q6_k"]

# The default dtype.
OWN_DTYPE = "own"


def read_options(options):
    read = SimpleNamespace(
        library=_library(options.get("library")),
        attention=read_choice(options, "attention", ATTENTION),
        kv=read_choice(options, "kv", KV),
        repack=read_flag(options, "repack", True),
        pin=read_flag(options, "pin", False),
    )
    if read.kv == "q8_0" and read.attention == "plain":
        # For plain attention llama.cpp transposes the values in memory, which is impossible for blocks.
        raise Failed("unsupported", "kv `q8_0` with attention `plain`: llama.cpp needs fused attention for it", "--set kv=f16")
    return read


def _library(value):
    """The folder of the user's own `libllama.so`, given as the folder or the file."""
    if value is None:
        return None
    path = Path(value) if isinstance(value, str) and value else None
    if path is not None and path.is_file():
        path = path.parent
    if path is None or not (path / "libllama.so").is_file():
        message = f"option `library`: no `libllama.so` at `{str(value)[:200]}`"
        raise Failed("bad_request", message, "--set library=/folder/of/libllama.so")
    return path.resolve()
