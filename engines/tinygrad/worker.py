"""The engine `tinygrad`: its hello and its load options. The worker imports tinygrad during a load."""

from types import SimpleNamespace

import engine_kit
from engine_kit import Failed, package_version, read_flag

# The dtypes of conversions to GGUF. A GGUF file in another dtype that tinygrad reads can be loaded as it is.
DTYPES = ["bf16", "f16", "f32", "q8_0", "q4_0", "q4_k", "q6_k"]

# The dtype of a load that requests none: the model keeps its own.
OWN_DTYPE = "own"

# The largest width of tinygrad's search for fast kernels.
MAX_BEAM = 16


class Tinygrad(engine_kit.Engine):
    options = ("beam", "half", "unpack")

    def hello(self):
        import compiler

        version = package_version("tinygrad", "tinygrad")
        compiler.require_clang()
        return {
            "engine": "tinygrad",
            "version": version,
            "deterministic": True,
            "capabilities": {
                "devices": ["cpu"],
                "dtypes": DTYPES,
                "formats": ["gguf"],
                "use_cache_toggle": True,
                "ignore_eos": "exact",
                "score": True,
            },
        }

    def default_dtype(self, request):
        return OWN_DTYPE

    def load(self, request, phases):
        options = read_options(request.options)
        dtype = None if request.dtype == OWN_DTYPE else request.dtype
        import loading

        return loading.load(request, dtype, options, phases)


def read_options(options):
    half = read_flag(options, "half", False) if options.get("half") is not None else None
    return SimpleNamespace(beam=read_beam(options.get("beam")), half=half, unpack=read_flag(options, "unpack", False))


def read_beam(value):
    """The width of the search; 0 searches nothing."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        # A text that holds a number is accepted too.
        value = int(value)
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= MAX_BEAM:
        raise Failed("bad_request", f"option `beam`: expected a whole number from 0 to {MAX_BEAM}, found `{str(value)[:80]}`")
    return value


if __name__ == "__main__":
    engine_kit.serve(Tinygrad())
