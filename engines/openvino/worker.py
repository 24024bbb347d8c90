"""The engine `openvino`: its hello and its load options. The worker imports OpenVINO during a load."""

from types import SimpleNamespace

import checkpoint
import engine_kit
from engine_kit import Failed, check_offered, choose_context, package_version, read_choice

# The architectures whose conversions are compared with the reference in the tests. The exporter reads more, but it refuses `gemma`
# with this version of transformers.
ARCHITECTURES = ["llama", "mistral", "qwen2", "qwen3", "phi3", "gpt2"]

# The rope scalings that a conversion can express. The others depend on the length of a sequence, and the exporter records the
# computation of one length.
ROPE_SCALINGS = ["default", "linear", "llama3", "yarn"]

# `bf16` needs a processor with bf16 instructions. In `int8` and `int4` the weights have this dtype, and OpenVINO chooses the dtype of
# the computation.
DTYPES = ["f32", "bf16", "int8", "int4"]

# The dtype of a load that requests none: bf16, or f32 on a processor without bf16 instructions, as OpenVINO itself chooses.
DEFAULT_DTYPE = "default"

# The dtypes of keys and values. Without the option, OpenVINO and its exporter choose, except that `f32` keeps them in f32.
KV_DTYPES = ["u8", "bf16", "f16", "f32"]


class OpenVINO(engine_kit.Engine):
    options = ("kv", "precision")

    def hello(self):
        return {
            "engine": "openvino",
            "version": package_version("openvino", "openvino-genai"),
            "deterministic": True,
            "capabilities": {
                "devices": ["cpu"],
                "dtypes": DTYPES,
                "formats": ["safetensors"],
                "architectures": ARCHITECTURES,
                "batch": 64,
                "use_cache_toggle": True,
                "padding_sides": ["packed", "left", "right"],
                "ignore_eos": "exact",
                "sampling": True,
                "score": True,
            },
        }

    def default_dtype(self, request):
        return DEFAULT_DTYPE

    def load(self, request, phases):
        with phases.time("headers"):
            dtype = None if request.dtype == DEFAULT_DTYPE else request.dtype
            options = read_options(request.options, dtype)
            folder = checkpoint.open_checkpoint(request.model, ARCHITECTURES)
            check_offered("rope scaling", checkpoint.rope_kind(folder.config), ROPE_SCALINGS)
            folder.context_tokens = choose_context(request.context_tokens, folder.context_tokens, folder.name)
        with phases.time("import"):
            import loading
        return loading.load(request, dtype, folder, options, phases)


def read_options(options, dtype):
    """The options of a load; None where OpenVINO chooses."""
    precision = read_choice(options, "precision", ["f32", "bf16"], None)
    if dtype in ("f32", "bf16") and precision not in (None, dtype):
        raise Failed("unsupported", f"option `precision`: `{precision}` with dtype `{dtype}`", f"--dtype {precision}")
    return SimpleNamespace(kv=read_choice(options, "kv", KV_DTYPES, None), precision=precision)


if __name__ == "__main__":
    engine_kit.serve(OpenVINO())
