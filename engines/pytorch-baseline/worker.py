"""The engine `pytorch-baseline`: the model in eager PyTorch, one request at a time, the whole sequence for every token."""

import importlib.metadata
import sys

import engine_kit
from engine_kit import Failed
from folder import FORMATS, open_folder
from shape import ARCHITECTURES


class PyTorchBaseline(engine_kit.Engine):
    def hello(self):
        try:
            version = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            hint = "orchestrate setup pytorch-baseline  # one that ORCHESTRATE_PYTHON names needs its own"
            message = f"no PyTorch in the Python that this engine runs in (`{sys.executable}`)"
            raise Failed("unavailable", message, hint) from None
        return {
            "engine": "pytorch-baseline",
            "version": version,
            "deterministic": True,
            "capabilities": {
                "devices": ["cpu", "cuda"],
                "dtypes": ["f32"],
                "formats": FORMATS,
                "architectures": ARCHITECTURES,
                "ignore_eos": "exact",
                "sampling": True,
                "score": True,
            },
        }

    def load(self, request, phases):
        with phases.time("headers"):
            folder = open_folder(request.model)
            check_context(request, folder)
        with phases.time("import"):
            import baseline
        return baseline.load(request, folder, phases)


def check_context(request, folder):
    if request.context_tokens is not None and request.context_tokens > folder.context_tokens:
        limit = f"the {folder.context_tokens} of model `{folder.name}`"
        raise Failed("context", f"`context_tokens`: {request.context_tokens} is more than {limit}")


if __name__ == "__main__":
    engine_kit.serve(PyTorchBaseline())
