"""The engine `llama-cpp`: its hello and its load options. The worker imports llama.cpp's library during a load."""

import os
from pathlib import Path
from types import SimpleNamespace

import engine_kit
from engine_kit import Failed, package_version, read_choice, read_flag
from slots import CONCURRENCY

# The dtypes of conversions to GGUF. A GGUF file in another dtype can be loaded as it is.
DTYPES = ["bf16", "f16", "f32", "q8_0", "q4_0", "q4_k", "q6_k"]

# The dtype of a load that requests none: the model keeps its own.
OWN_DTYPE = "own"

# With `auto` llama.cpp chooses: fused attention where possible.
ATTENTION = ["auto", "fused", "plain"]
KV_DTYPES = ["f16", "bf16", "f32", "q8_0"]


class LlamaCpp(engine_kit.Engine):
    options = ("library", "attention", "kv", "repack", "pin")

    def hello(self):
        return {
            "engine": "llama-cpp",
            "version": package_version("llama-cpp", "llama-cpp-python"),
            "deterministic": True,
            "capabilities": {
                "devices": ["cpu"],
                "dtypes": DTYPES,
                "formats": ["gguf"],
                "batch": 64,
                "concurrency": CONCURRENCY,
                "use_cache_toggle": True,
                "padding_sides": ["packed", "left", "right"],
                "ignore_eos": "exact",
                "sampling": True,
                "score": True,
            },
        }

    def default_dtype(self, request):
        return OWN_DTYPE

    def load(self, request, phases):
        options = read_options(request.options)
        if options.library is not None:
            # The bindings read this variable at their import.
            os.environ["LLAMA_CPP_LIB_PATH"] = str(options.library)
        dtype = None if request.dtype == OWN_DTYPE else request.dtype
        with phases.time("import"):
            import loading
        return loading.load(request, dtype, options, phases)


def read_options(options):
    parsed = SimpleNamespace(
        library=library_folder(options.get("library")),
        attention=read_choice(options, "attention", ATTENTION),
        kv=read_choice(options, "kv", KV_DTYPES),
        repack=read_flag(options, "repack", True),
        pin=read_flag(options, "pin", False),
    )
    if parsed.kv == "q8_0" and parsed.attention == "plain":
        # Plain attention stores the values transposed, which is impossible for quantized blocks.
        raise Failed("unsupported", "kv `q8_0`: llama.cpp supports it only with fused attention", "--set kv=f16")
    return parsed


def library_folder(value):
    """The folder of the user's own `libllama.so`. The option names the folder or the file."""
    if value is None:
        return None
    path = Path(value) if isinstance(value, str) and value else None
    if path is not None and path.is_file():
        path = path.parent
    if path is None or not (path / "libllama.so").is_file():
        message = f"option `library`: no `libllama.so` at `{str(value)[:200]}`"
        raise Failed("bad_request", message, "--set library=/folder/of/libllama.so")
    return path.resolve()


if __name__ == "__main__":
    engine_kit.serve(LlamaCpp())
