"""The engine `mistralrs`: its hello and its load options. The worker imports mistral.rs during a load."""

import engine_kit
from engine_kit import Failed, package_version, read_choice
from id_folder import ARCHITECTURES

# The dtypes of mistral.rs's own arithmetic.
COMPUTE_DTYPES = ["f32", "bf16", "f16"]

# The dtypes to which mistral.rs rounds the weights during the load, with its own names for them.
ROUNDED_DTYPES = {"q8_0": "q8_0", "q4_0": "q4_0", "q4_k": "q4k", "q5_k": "q5k", "q6_k": "q6k"}

# The dtype of the keys and values of a load that computes in f32. mistral.rs's default is f16.
KV_DTYPES = ["f16", "f32"]

# The most sequences that mistral.rs computes at once, which is its own default.
MAX_SEQUENCES = 32


class MistralRs(engine_kit.Engine):
    options = ("kv",)

    def hello(self):
        return {
            "engine": "mistralrs",
            "version": package_version("mistralrs", "mistralrs"),
            "deterministic": True,
            "capabilities": {
                "devices": ["cpu"],
                "dtypes": [*COMPUTE_DTYPES, *ROUNDED_DTYPES],
                "formats": ["safetensors"],
                "architectures": list(ARCHITECTURES),
                "batch": MAX_SEQUENCES,
                # The three layouts are the same work, because mistral.rs pads no sequence.
                "padding_sides": ["packed", "left", "right"],
                "ignore_eos": "exact",
            },
        }

    def load(self, request, phases):
        kv = read_choice(request.options, "kv", KV_DTYPES)
        if "kv" in request.options and request.dtype in ("bf16", "f16") and kv != request.dtype:
            message = f"kv `{kv}`: with dtype `{request.dtype}`, mistral.rs keeps keys and values in `{request.dtype}`"
            raise Failed("unsupported", message)
        with phases.time("headers"):
            import loading

            folder = loading.open_folder(request)
        loading.set_environment(request.threads, kv)
        with phases.time("import"):
            import mistralrs  # noqa: F401, loading uses it
        return loading.load(request, folder, ROUNDED_DTYPES, MAX_SEQUENCES, phases)


if __name__ == "__main__":
    engine_kit.serve(MistralRs())
