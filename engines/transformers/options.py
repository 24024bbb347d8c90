"""The load options of this engine: their values, their valid combinations, and the default dtype.

It imports no tensor library: an invalid option is refused before any heavy import.
"""

from types import SimpleNamespace

from engine_kit import Failed, read_choice, read_flag

# The decode paths.
PATHS = ["generate", "loop", "compile", "cuda-graph", "jit", "jit-cuda-graph", "fast"]
# Paths with a captured graph as decode step.
CAPTURED = ("cuda-graph", "jit-cuda-graph")
# Paths with a compiled decode step.
COMPILED = ("compile", "jit", "jit-cuda-graph")
# Paths with a static KV cache.
STATIC = (*CAPTURED, *COMPILED)

QUANTIZE = ["none", "int8", "int8-dynamic", "int4", "nf4"]
ATTENTION = ["sdpa", "eager", "flash"]
MODES = ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
# Modes of path `compile` that capture a step in CUDA graphs, on devices with graphs.
GRAPH_MODES = ("reduce-overhead", "max-autotune")
COMPILERS = ["torchscript", "inductor"]

OPTIONS = ("path", "quantize", "attention", "mode", "compiler", "fusion", "cache_tokens", "shard")

# The smallest static cache in tokens; larger ones are twice, four times, ... as large.
CACHE_TOKENS = 256

DTYPES = ["f32", "bf16", "f16"]


def read_options(options, device):
    """Every option with its value or default. `device` is that of the load: `cpu`, `cuda`, `cuda:1`."""
    try:
        return _read(options, device)
    except Failed as failed:
        if _hints_lead_back(options, device):
            raise Failed(failed.kind, failed.message) from None
        raise


def _hints_lead_back(options, device):
    """Whether following the hints leads back to the same options: two options that belong to different paths."""
    previous = []
    while options not in previous:
        previous.append(options)
        try:
            _read(options, device)
            return False
        except Failed as failed:
            if not (failed.hint or "").startswith("--set "):
                return False
            name, _, value = failed.hint.removeprefix("--set ").partition("=")
            options = {**options, name: value}
    return True


def _read(options, device):
    read = SimpleNamespace(
        path=read_choice(options, "path", PATHS),
        quantize=read_choice(options, "quantize", QUANTIZE),
        attention=read_choice(options, "attention", ATTENTION),
        mode=read_choice(options, "mode", MODES, None),
        compiler=read_choice(options, "compiler", COMPILERS, None),
        fusion=read_flag(options, "fusion", True),
        cache_tokens=_integer(options, "cache_tokens", CACHE_TOKENS, 16),
        shard=_integer(options, "shard", 1, 1),
    )
    on_cuda = device != "cpu"
    _only_with(options, read, "mode", read.path == "compile", "path=compile")
    _only_with(options, read, "compiler", read.path in ("jit", "jit-cuda-graph"), "path=jit")
    read.compiler = read.compiler or COMPILERS[0]
    _only_with(options, read, "fusion", by_inductor(read), "compiler=inductor" if read.path in COMPILED else "path=compile")
    _only_with(options, read, "cache_tokens", read.path in STATIC or read.path == "fast", "path=compile")
    if read.quantize == "int8" and read.path != "fast":
        message = f"quantize `int8` with path `{read.path}`: only path `fast` computes with it"
        raise Failed("unsupported", message, "--set path=fast")
    if read.quantize not in ("none", "int8") and read.path == "fast":
        message = f"quantize `{read.quantize}` with path `fast`: it computes with `int8` only"
        raise Failed("unsupported", message, "--set quantize=int8")
    for choice, chosen in [(f"path `{read.path}`", read.path in CAPTURED), ("quantize `nf4`", read.quantize == "nf4")]:
        if chosen and not on_cuda:
            raise Failed("unsupported", f"{choice} needs a CUDA device, and this load is for `{device}`", "--device cuda")
    if read.shard > 1:
        if not on_cuda:
            raise Failed("unsupported", f"`shard` {read.shard} needs CUDA devices, and this load is for `{device}`")
        if read.path not in ("generate", "loop"):
            raise Failed("unsupported", f"`shard` with path `{read.path}`: its step runs on one device", "--set path=loop")
        if read.quantize != "none":
            raise Failed("unsupported", f"`shard` with quantize `{read.quantize}`: it is quantised on one device")
    if read.attention == "flash" and read.path in STATIC:
        message = f"attention `flash` with path `{read.path}`: the flash kernel takes no mask, and a static cache needs one"
        raise Failed("unsupported", message, "--set attention=sdpa")
    if read.quantize != "none" and read.path in COMPILED and not by_inductor(read):
        message = f"quantize `{read.quantize}` with compiler `torchscript`: it traces plain tensors, not the wrappers of quantised ones"
        raise Failed("unsupported", message, "--set compiler=inductor")
    # The maintainers of both libraries recommend CUDA graphs.
    read.mode = read.mode or ("reduce-overhead" if on_cuda else "default")
    return read


def by_inductor(read):
    """Whether the decode step is compiled by Inductor."""
    return read.path == "compile" or (read.path in COMPILED and read.compiler == "inductor")


def default_dtype(options, device):
    """The default dtype: f32 on a CPU and bf16 on CUDA. On both it is bf16 for path `fast`, and for 4-bit weights,
    whose kernels need it."""
    is_half_precision = options.get("quantize") == "int4" or options.get("path") == "fast"
    return "bf16" if is_half_precision or device != "cpu" else "f32"


def _integer(options, name, default, smallest):
    value = options.get(name, default)
    value = int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value
    if type(value) is not int or not smallest <= value < 2**32:
        raise Failed("bad_request", f"option `{name}`: expected a whole number of at least {smallest}, found `{str(value)[:80]}`")
    return value


def _only_with(options, read, name, fits, remedy):
    """Refuses an option without effect. With path `fast` the hint does not suggest another path."""
    if options.get(name) is not None and not fits:
        hint = None if read.path == "fast" else f"--set {remedy}"
        raise Failed("unsupported", f"option `{name}` has no effect with path `{read.path}`", hint)
