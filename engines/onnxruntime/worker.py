"""The engine `onnxruntime`: its hello and its load options. The worker imports the library during a load."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import checkpoint
import conversion
import engine_kit
from engine_kit import Failed, check_offered, choose_context, package_version, read_choice

# The architectures that the builder converts, and whose outputs the tests have compared with those of another engine.
ARCHITECTURES = ["gemma", "llama", "mistral", "phi3", "qwen2", "qwen3"]

# The builder's names of the dtypes. It also writes bf16 and f16, but ONNX Runtime has no kernels for such graphs on a CPU.
PRECISIONS = {"f32": "fp32", "int8": "int8", "int4": "int4"}

# The activations that the builder gets right. `gelu` in a config of Gemma means the tanh form, with which Gemma was trained.
ACTIVATIONS = {**dict.fromkeys(ARCHITECTURES, ["silu"]), "gemma": ["gelu_pytorch_tanh", "gelu"]}

# ONNX Runtime's attention computes only heads whose dimensions are a multiple of this number.
HEAD_MULTIPLE = 16

# The dtypes to which the products with quantized weights round the activations, with the builder's numbers of them.
ACCURACY_LEVELS = {"int8": 4, "f32": 1}

# A conversion by earlier rules of `build.py` is not used again.
RULES = 1


class OnnxRuntime(engine_kit.Engine):
    options = ("activations",)

    def hello(self):
        return {
            "engine": "onnxruntime",
            "version": library_version(),
            "deterministic": True,
            "capabilities": {
                "devices": ["cpu"],
                "dtypes": list(PRECISIONS),
                "formats": ["safetensors"],
                "architectures": ARCHITECTURES,
                "batch": 64,
                "use_cache_toggle": True,
                "padding_sides": ["right"],
                "ignore_eos": "exact",
                "sampling": True,
                "score": True,
            },
        }

    def load(self, request, phases):
        options = read_options(request.options, request.dtype)
        with phases.time("headers"):
            folder = checkpoint.open_checkpoint(request.model, ARCHITECTURES)
            refuse_unsupported(folder)
            folder.context_tokens = choose_context(request.context_tokens, folder.context_tokens, folder.name)
        path = convert(request.model, request.dtype, options.activations, phases)
        # The library sends no telemetry. Its telemetry would also start threads of its own, and the worker counts threads.
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        with phases.time("import"):
            import loading
        return loading.load(request, folder, path, phases)


def library_version():
    return package_version("onnxruntime", "onnxruntime-genai")


def read_options(options, dtype):
    activations = read_choice(options, "activations", list(ACCURACY_LEVELS))
    if options.get("activations") is not None and dtype == "f32":
        message = "option `activations`: products with f32 weights have f32 activations"
        raise Failed("unsupported", message, "--dtype int4")
    return SimpleNamespace(activations="f32" if dtype == "f32" else activations)


def convert(model, dtype, activations, phases):
    """The folder with the model as an ONNX graph, by the builder of the library."""
    converter = f"onnxruntime-genai {library_version()}, activations {activations}; rules {RULES}"
    script = Path(__file__).resolve().parent / "build.py"
    command = [sys.executable, "-s", script, model, PRECISIONS[dtype], ACCURACY_LEVELS[activations]]
    return conversion.convert(model, "onnx", dtype, converter, command, phases)


def refuse_unsupported(folder):
    """Refuses the models that the builder converts wrongly or not at all, and limits the context where the library ignores the
    sliding window. `tests/test_models.py` has models of each kind."""
    config, sizes = folder.config, folder.sizes
    checkpoint.refuse_other_networks(config, ACTIVATIONS[folder.architecture])
    if folder.architecture == "gemma" and config.get("hidden_activation") == "gelu":
        raise Failed("unsupported", "`hidden_activation` `gelu`: the builder writes the tanh form for gemma")
    check_offered("rope scaling", checkpoint.rope_kind(config), ["default", "llama3"])
    original = config.get("original_max_position_embeddings", sizes.context_tokens)
    if folder.architecture == "phi3" and original != sizes.context_tokens:
        message = "`original_max_position_embeddings` of phi3: the builder takes this model for one with scaled rotations"
        raise Failed("unsupported", message, "load a phi3 model whose `max_position_embeddings` is the same number")
    if sizes.head_dim % HEAD_MULTIPLE:
        raise Failed("unsupported", f"heads of {sizes.head_dim} dimensions: ONNX Runtime needs a multiple of {HEAD_MULTIPLE}")
    for name, tensor in folder.tensors.items():
        if len(tensor.shape) == 2 and tensor.shape[0] == sizes.vocabulary and ".layers." in f".{name}":
            rows = f"`{name}` has as many rows as the vocabulary ({sizes.vocabulary})"
            raise Failed("unsupported", f"{rows}, and the builder takes it for the output matrix", "load a model of another size")
    checkpoint.limit_context_to_window(folder)


if __name__ == "__main__":
    engine_kit.serve(OnnxRuntime())
