"""GGUF files and loads of this engine's tests. The kit's `engine_tests` has what the tests of several engines share."""

import functools
import sys
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ENGINE), str(ENGINE.parent / "kit" / "python")]

import engine_tests
from checkout import EMBEDDED, use_program
from engine_kit import Phases
from gguf_model import convert
from worker import Tinygrad

# Loads of one context share compiled kernels, and a token takes longer in a longer context.
CONTEXT = 256

use_program("tinygrad-engine")
# Conversions, compiled kernels and models go to a separate folder.
engine_tests.use_own_home()


@functools.cache
def gguf_file(dtype, model=EMBEDDED):
    """The GGUF file of a model in a dtype: by default of the embedded model."""
    return convert(model, dtype, Phases())


def load_model(model=None, options=None, context_tokens=CONTEXT, **fields):
    return engine_tests.load(Tinygrad(), model or gguf_file("f32"), options, context_tokens=context_tokens, **fields)


def generate(model, prompt, new_tokens, **fields):
    """The new ids of a prompt."""
    (ids,) = engine_tests.generate(model, [prompt], new_tokens, **fields)
    return ids


class Header:
    """The parts of a GGUF header that a test changes in the bytes of a file."""

    def __init__(self, path):
        self.content = bytearray(Path(path).read_bytes())

    def rename(self, old, new):
        """Changes a name or a text of the header. Both have the same length, so that nothing moves."""
        assert len(old) == len(new) and self.content.count(old.encode()) >= 1, old
        self.content = self.content.replace(old.encode(), new.encode())
        return self

    def set_number(self, offset, data):
        self.content[offset : offset + len(data)] = data
        return self

    def write(self, folder):
        path = Path(folder) / "model.gguf"
        path.write_bytes(self.content)
        return path
