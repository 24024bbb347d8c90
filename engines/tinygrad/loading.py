"""A load: finds or converts the GGUF file, checks it, and lets tinygrad load it and compile its kernels."""

from compiler import SETTINGS
from engine_kit import choose_context
from gguf_file import GgufFile
from gguf_model import convert, find_gguf

# The context of a load that requests none, as in tinygrad's own program (`--max_context`).
DEFAULT_CONTEXT = 4096


def load(request, dtype, options, phases):
    """Loads the model in `dtype`; None keeps the model's own dtype."""
    file = find_gguf(request.model)
    gguf = GgufFile(file or convert(request.model, dtype, phases))
    if dtype is not None and gguf.main_dtype() != dtype:
        if file is None:
            raise gguf.unsupported(f"its conversion to `{dtype}` has most weights in {gguf.main_dtype()}")
        gguf = GgufFile(convert(file, dtype, phases))
    gguf.refuse_unsupported()
    context_tokens = check_context(request.context_tokens, gguf)
    stored_dtype = gguf.main_dtype()
    rounds_to_f16 = stored_dtype != "f32" if options.half is None else options.half
    if options.unpack and stored_dtype not in ("f32", "f16", "bf16"):
        raise gguf.unsupported(f"`unpack` with weights in {stored_dtype}: they would no longer be in {stored_dtype}")
    with phases.time("check"):
        gguf.refuse_numbers(rounds_to_f16, lambda fraction: phases.progress("check", fraction))
    with phases.time("import"):
        SETTINGS.configure(request.threads, options.beam, rounds_to_f16)
        from model import TinygradModel, read_network
    with phases.time("weights"):
        network = read_network(gguf, context_tokens, options.unpack)
    model = TinygradModel(gguf, network, context_tokens, options)
    with phases.time("compile"):
        model.compile(lambda fraction, note=None: phases.progress("compile", fraction, note))
    return model


def check_context(requested, gguf):
    """The longest context of the load. Refuses a request for a longer one."""
    limit, reason = gguf.context_limit()
    chosen = choose_context(requested, limit, gguf.path.name, reason)
    return min(chosen, requested or DEFAULT_CONTEXT)
