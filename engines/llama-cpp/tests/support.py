"""The embedded model as GGUF files, and loads. The kit's `engine_tests` has what the tests of several engines share."""

import functools
import struct
import sys
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ENGINE), str(ENGINE.parent / "kit" / "python")]

import engine_tests
from checkout import EMBEDDED, use_program
from engine_kit import Phases
from gguf_model import convert
from worker import LlamaCpp

use_program("llama-cpp-engine")
# Conversions go to a separate folder.
engine_tests.use_own_home()

# With these options and f32 weights, all computation is in f32. Fused attention would round keys and values to 16 bits.
EXACT_OPTIONS = {"kv": "f32", "attention": "plain"}


@functools.cache
def gguf_file(dtype):
    """The GGUF file of the embedded model in a dtype."""
    return convert(EMBEDDED, dtype, Phases())


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


def load_model(model=None, options=None, **fields):
    return engine_tests.load(LlamaCpp(), model or gguf_file("f32"), options, **fields)
