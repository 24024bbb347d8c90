"""The engine `llama-cpp`: llama.cpp through its library, one token at a time."""

import importlib.metadata
import os
import sys

import engine_kit
from engine_kit import Failed
from options import DTYPES, OPTIONS, OWN_DTYPE, read_options


class LlamaCpp(engine_kit.Engine):
    options = OPTIONS

    def hello(self):
        try:
            version = importlib.metadata.version("llama-cpp-python")
        except importlib.metadata.PackageNotFoundError:
            hint = "orchestrate setup llama-cpp  # one that ORCHESTRATE_PYTHON names needs its own"
            message = f"no llama-cpp-python in the Python that this engine runs in (`{sys.executable}`)"
            raise Failed("unavailable", message, hint) from None
        return {
            "engine": "llama-cpp",
            "version": version,
            "deterministic": True,
            "capabilities": {
                "devices": ["cpu"],
                "dtypes": DTYPES,
                "formats": ["gguf"],
                "batch": 64,
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
            # The bindings read this variable at import.
            os.environ["LLAMA_CPP_LIB_PATH"] = str(options.library)
        with phases.time("import"):
            import loading
        return loading.load(request, options, phases)


if __name__ == "__main__":
    engine_kit.serve(LlamaCpp())
