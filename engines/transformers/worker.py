"""The engine `transformers`: Hugging Face's model classes on PyTorch, with plain `generate` or optimised decode steps."""

import engine_kit
from engine_kit import choose_context, package_version
from environment import prepare_environment
from folder import FORMATS, open_folder
from options import CONCURRENCY, DTYPES, OPTIONS, default_dtype, read_options


class Transformers(engine_kit.Engine):
    options = OPTIONS

    def hello(self):
        package_version("transformers", "torch")
        return {
            "engine": "transformers",
            "version": package_version("transformers", "transformers"),
            "deterministic": True,
            "capabilities": {
                "devices": ["cpu", "cuda"],
                "dtypes": DTYPES,
                "formats": FORMATS,
                "batch": 64,
                "concurrency": CONCURRENCY,
                "use_cache_toggle": True,
                "padding_sides": ["left", "right"],
                "speculation": ["prompt_lookup"],
                "ignore_eos": "exact",
                "sampling": True,
                "score": True,
            },
        }

    def default_dtype(self, request):
        return default_dtype(request.options, request.device)

    def load(self, request, phases):
        options = read_options(request.options, request.device)
        with phases.time("config"):
            folder = open_folder(request.model)
            folder.context_tokens = choose_context(request.context_tokens, folder.context_tokens, folder.name)
        prepare_environment(request.threads)
        with phases.time("import"):
            if options.path == "fast":
                import fast as loader
            else:
                import loading as loader
        return loader.load(request, folder, options, phases)


if __name__ == "__main__":
    engine_kit.serve(Transformers())
