"""The load options of this engine: their values, their valid combinations, and the default dtype.

This module imports no tensor library, so that an invalid option is refused before any heavy import.
"""

from types import SimpleNamespace

from engine_kit import Failed, read_choice, read_flag

# The values of the option `path`: each is a way to run the model.
PATHS = ["generate", "loop", "compile", "cuda-graph", "jit", "jit-cuda-graph", "fast"]
# With these paths, this engine always captures the decode step of the library's network as a CUDA graph. It also captures the steps of
# path `compile` without fusion, and of path `fast`.
CAPTURED_PATHS = ("cuda-graph", "jit-cuda-graph")
# Paths with the library's network, and a decode step that is compiled or traced.
COMPILED_PATHS = ("compile", "jit", "jit-cuda-graph")
# Paths with a static KV cache and the library's network.
STATIC_CACHE_PATHS = (*CAPTURED_PATHS, *COMPILED_PATHS)

QUANTIZE = ["none", "int8", "int8-dynamic", "int4", "nf4"]
ATTENTION = ["sdpa", "eager", "flash"]
MODES = ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
# Modes of path `compile` that use CUDA graphs on a CUDA device.
GRAPH_MODES = ("reduce-overhead", "max-autotune")
COMPILERS = ["torchscript", "inductor"]

# The most requests that overlap.
CONCURRENCY = 8

OPTIONS = ("path", "quantize", "attention", "mode", "compiler", "fusion", "cache_tokens", "shard")

# The default of `cache_tokens`, the size of the smallest static cache in tokens. Each larger size is twice the one before.
DEFAULT_CACHE_TOKENS = 256

DTYPES = ["f32", "bf16", "f16"]


def read_options(options, device):
    """Reads every option, or its default. `device` is the device of the load: `cpu`, `cuda`, `cuda:1`. A refusal has no hint
    if following the hints would lead back to the same options."""
    try:
        return _read_and_check(options, device)
    except Failed as failed:
        if _hints_form_cycle(options, device):
            raise Failed(failed.kind, failed.message) from None
        raise


def _hints_form_cycle(options, device):
    """Whether a user who follows each hint returns to the same options. This happens with two options that belong to
    different paths."""
    previous = []
    while options not in previous:
        previous.append(options)
        try:
            _read_and_check(options, device)
            return False
        except Failed as failed:
            if not (failed.hint or "").startswith("--set "):
                return False
            name, _, value = failed.hint.removeprefix("--set ").partition("=")
            options = {**options, name: value}
    return True


def _read_and_check(options, device):
    parsed = SimpleNamespace(
        path=read_choice(options, "path", PATHS),
        quantize=read_choice(options, "quantize", QUANTIZE),
        attention=read_choice(options, "attention", ATTENTION),
        mode=read_choice(options, "mode", MODES, None),
        compiler=read_choice(options, "compiler", COMPILERS, None),
        fusion=read_flag(options, "fusion", True),
        cache_tokens=_read_integer(options, "cache_tokens", DEFAULT_CACHE_TOKENS, smallest=16),
        shard=_read_integer(options, "shard", 1, smallest=1),
    )
    on_cuda = device != "cpu"
    _refuse_unless(parsed.path == "compile", options, parsed, "mode", "path=compile")
    if options.get("mode") is not None and not parsed.fusion and not on_cuda:
        message = "option `mode` has no effect with `fusion` false on a CPU: it is for Inductor and for CUDA graphs"
        raise Failed("unsupported", message, "--set fusion=true")
    _refuse_unless(parsed.path in ("jit", "jit-cuda-graph"), options, parsed, "compiler", "path=jit")
    parsed.compiler = parsed.compiler or COMPILERS[0]
    remedy = "compiler=inductor" if parsed.path in COMPILED_PATHS else "path=compile"
    _refuse_unless(uses_torch_compile(parsed), options, parsed, "fusion", remedy)
    _refuse_unless(parsed.path in (*STATIC_CACHE_PATHS, "fast"), options, parsed, "cache_tokens", "path=compile")
    if parsed.quantize == "int8" and parsed.path != "fast":
        message = f"quantize `int8` with path `{parsed.path}`: only path `fast` supports `int8`"
        raise Failed("unsupported", message, "--set path=fast")
    if parsed.quantize not in ("none", "int8") and parsed.path == "fast":
        message = f"quantize `{parsed.quantize}` with path `fast`: this path supports only `int8`"
        raise Failed("unsupported", message, "--set quantize=int8")
    for option, value, cuda_values in [("path", parsed.path, CAPTURED_PATHS), ("quantize", parsed.quantize, ("nf4",))]:
        if value in cuda_values and not on_cuda:
            message = f"{option} `{value}` needs a CUDA device, and this load is for `{device}`"
            raise Failed("unsupported", message, "--device cuda")
    if parsed.shard > 1:
        if not on_cuda:
            raise Failed("unsupported", f"`shard` {parsed.shard} needs CUDA devices, and this load is for `{device}`")
        if parsed.path not in ("generate", "loop"):
            raise Failed("unsupported", f"`shard` with path `{parsed.path}`: its step runs on one device", "--set path=loop")
        if parsed.quantize != "none":
            raise Failed("unsupported", f"`shard` with quantize `{parsed.quantize}`: the weights are quantized on one device")
    if parsed.attention == "flash" and parsed.path in STATIC_CACHE_PATHS:
        message = f"attention `flash` with path `{parsed.path}`: the flash kernel takes no mask, and a static cache needs one"
        raise Failed("unsupported", message, "--set attention=sdpa")
    if parsed.quantize != "none" and parsed.path in COMPILED_PATHS and not uses_torch_compile(parsed):
        message = f"quantize `{parsed.quantize}` with compiler `torchscript`: TorchScript traces only plain tensors"
        raise Failed("unsupported", message, "--set compiler=inductor")
    # On CUDA the default mode uses CUDA graphs, as the maintainers of PyTorch and `transformers` recommend.
    parsed.mode = parsed.mode or ("reduce-overhead" if on_cuda else "default")
    return parsed


def uses_torch_compile(options):
    """Whether `torch.compile` compiles a step of the library's network: by Inductor, unless `fusion` is false."""
    return options.path == "compile" or (options.path in COMPILED_PATHS and options.compiler == "inductor")


def default_dtype(options, device):
    """The default dtype: f32 on a CPU and bf16 on CUDA. For path `fast`, and for 4-bit weights with any path, it is always bf16."""
    is_always_bf16 = options.get("quantize") == "int4" or options.get("path") == "fast"
    return "bf16" if is_always_bf16 or device != "cpu" else "f32"


def _read_integer(options, name, default, smallest):
    value = options.get(name, default)
    value = int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value
    if type(value) is not int or not smallest <= value < 2**32:
        raise Failed("bad_request", f"option `{name}`: expected a whole number of at least {smallest}, found `{str(value)[:80]}`")
    return value


def _refuse_unless(has_effect, options, parsed, name, remedy):
    """Refuses an option that was set and has no effect. With path `fast` there is no hint, because every remedy selects another
    path."""
    if options.get(name) is not None and not has_effect:
        hint = None if parsed.path == "fast" else f"--set {remedy}"
        raise Failed("unsupported", f"option `{name}` has no effect with path `{parsed.path}`", hint)
