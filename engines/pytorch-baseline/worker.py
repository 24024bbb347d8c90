"""The engine `pytorch-baseline`: hello, the reading of the model folder, and the load.

The model runs in eager PyTorch: one request at a time, and by default the whole sequence again for every token.
"""

import engine_kit
import model_folder
from engine_kit import Failed, choose_context, package_version, read_flag
from model_folder import FORMATS, INDEX, SINGLE_FILE
from shape import ARCHITECTURES, read_shape


class PyTorchBaseline(engine_kit.Engine):
    options = ("kv_cache",)

    def hello(self):
        return {
            "engine": "pytorch-baseline",
            "version": package_version("pytorch-baseline", "torch"),
            "deterministic": True,
            "capabilities": {
                "devices": ["cpu", "cuda"],
                "dtypes": ["f32", "bf16", "f16"],
                "formats": FORMATS,
                "architectures": ARCHITECTURES,
                "batch": 64,
                "use_cache_toggle": True,
                "padding_sides": ["left", "right", "packed"],
                "ignore_eos": "exact",
                "sampling": True,
                "score": True,
            },
        }

    def load(self, request, phases):
        with phases.time("headers"):
            keeps_cache = read_flag(request.options, "kv_cache", False)
            folder = open_folder(request.model)
            folder.context_tokens = choose_context(request.context_tokens, folder.context_tokens, folder.name)
            if folder.shape.tied_embeddings:
                model_folder.refuse_second_output_matrix(folder)
        with phases.time("import"):
            import baseline
        return baseline.load(request, folder, keeps_cache, phases)


def open_folder(path):
    """Opens a model folder, and adds `shape`, `architecture` and `context_tokens`. Without an index, it keeps one file."""
    folder = model_folder.open_folder(path)
    if not folder.is_indexed:
        folder.weights = [_choose_file(folder)]
    folder.shape = read_shape(folder.config)
    folder.architecture = folder.shape.architecture
    folder.context_tokens = folder.shape.context_tokens
    return folder


def _choose_file(folder):
    single_file, files = folder.path / SINGLE_FILE, folder.weights
    if len(files) > 1 and single_file not in files:
        raise Failed("model", f"{len(files)} safetensors files and no `{INDEX}` in `{folder.path}`")
    return single_file if single_file in files else files[0]


if __name__ == "__main__":
    engine_kit.serve(PyTorchBaseline())
