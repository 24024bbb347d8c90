"""The engine `ctranslate2`: its hello and its loads. The worker imports the library during a load."""

import sys
from pathlib import Path

import checkpoint
import conversion
import engine_kit
from engine_kit import Failed, check_offered, choose_context, package_version

# The architectures that the converter reads, and whose outputs the tests have compared with those of another engine.
ARCHITECTURES = ["gemma", "gpt2", "llama", "mistral", "qwen2", "qwen3"]

# The library's names of the dtypes. Not every processor supports each of them.
COMPUTE_TYPES = {"f32": "float32", "bf16": "bfloat16", "int8": "int8_float32", "int16": "int16"}

# The converter's names of the dtypes in its file.
QUANTIZATIONS = {"f32": "float32", "bf16": "bfloat16", "int8": "int8", "int16": "int16"}

# The activations that the converter gets right. `gelu` in a config of Gemma means the tanh form, with which Gemma was trained.
ACTIVATIONS = {
    **dict.fromkeys(ARCHITECTURES, ["silu"]),
    "gemma": ["gelu_pytorch_tanh", "gelu"],
    "gpt2": ["gelu_new", "gelu_pytorch_tanh", "relu"],
}

# A conversion by earlier rules of `convert.py` is not used again.
RULES = 1


class CTranslate2(engine_kit.Engine):
    def hello(self):
        return {
            "engine": "ctranslate2",
            "version": library_version(),
            "deterministic": True,
            "capabilities": {
                "devices": ["cpu"],
                "dtypes": list(COMPUTE_TYPES),
                "formats": ["safetensors"],
                "architectures": ARCHITECTURES,
                "batch": 64,
                "use_cache_toggle": True,
                "padding_sides": ["packed", "left", "right"],
                "ignore_eos": "exact",
                "score": True,
            },
        }

    def load(self, request, phases):
        with phases.time("headers"):
            folder = checkpoint.open_checkpoint(request.model, ARCHITECTURES)
            refuse_unsupported(folder)
            folder.context_tokens = choose_context(request.context_tokens, folder.context_tokens, folder.name)
        with phases.time("import"):
            import loading
        loading.check_processor(request.dtype, folder)
        path = convert(request.model, request.dtype, phases)
        return loading.load(request, folder, path, phases)


def library_version():
    return package_version("ctranslate2", "ctranslate2")


def convert(model, dtype, phases):
    """The folder with the model in the library's own format."""
    converter = f"ctranslate2 {library_version()}; rules {RULES}"
    script = Path(__file__).resolve().parent / "convert.py"
    command = [sys.executable, "-s", script, model, QUANTIZATIONS[dtype]]
    return conversion.convert(model, "ctranslate2", dtype, converter, command, phases)


def refuse_unsupported(folder):
    """Refuses the models that the converter reads wrongly, and limits the context where the library has no keys beyond the
    sliding window. `tests/test_refusals.py` and the README list them."""
    config, sizes, name = folder.config, folder.sizes, folder.architecture
    checkpoint.refuse_other_networks(config, ACTIVATIONS[name])
    if name == "gemma" and config.get("hidden_activation") == "gelu":
        raise Failed("unsupported", "`hidden_activation` `gelu`: the converter reads the tanh form for gemma")
    if checkpoint.rope_kind(config) == "llama3":
        # The library reads neither `original_max_position_embeddings` nor the scaled frequencies as `transformers` does.
        message = f"rope scaling `llama3` of {name}: the library's log-probabilities differ from those of `transformers`"
        raise Failed("unsupported", message, "load a llama model without `rope_scaling`, or use another engine")
    check_offered("rope scaling", checkpoint.rope_kind(config), ["default", "linear"])
    if name == "gemma" and sizes.attention_bias:
        raise Failed("unsupported", "`attention_bias` of gemma: the converter ignores it")
    if name == "llama" and sizes.head_dim * sizes.heads != sizes.hidden:
        message = f"`head_dim` {sizes.head_dim} of llama: the converter takes the hidden size divided by the heads"
        raise Failed("unsupported", message, "load a llama model whose heads divide its hidden size")
    checkpoint.limit_context_to_window(folder)


if __name__ == "__main__":
    engine_kit.serve(CTranslate2())
