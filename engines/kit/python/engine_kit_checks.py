"""The checks of a request, and the conversion of exceptions to failures. If the Rust kit makes a check of this
module too, its message has the same words; quoted values and hints may differ."""

import json
import math
import os
import sys
import traceback

from engine_kit_tokens import is_greedy
from engine_kit_wire import Failed

# The default capabilities. The kit provides the first four; the other values are the protocol's defaults.
CAPABILITIES = {
    "stream": True,
    "prompt": True,
    "prompt_ids": True,
    "facts": True,
    "devices": ["cpu"],
    "dtypes": [],
    "formats": [],
    "architectures": [],
    "batch": 1,
    "concurrency": 1,
    "use_cache_toggle": False,
    "prefix_cache_toggle": False,
    "padding_sides": [],
    "speculation": [],
    "ignore_eos": False,
    "sampling": False,
    "score": False,
}

# The load option that delays each token of a sequence except the first, to test the detection of slowdowns on any engine.
# The kit handles this option; engines do not see it.
PLANTED_DELAY_OPTION = "planted_delay_us"


def check_load(request, capabilities, engine):
    """Refuses an invalid load, and fills in the default device and dtype."""
    request.options, request.planted_delay_ns = _split_planted_delay(request.options)
    for name in request.options:
        if name not in engine.options:
            hint = f"the options are {quote(engine.options)}" if engine.options else "this engine has no options"
            raise Failed("bad_request", f"unknown option `{name[:80]}`", hint)
    check_offered("device", request.device, capabilities["devices"])
    check_offered("dtype", request.dtype, capabilities["dtypes"])
    if "\0" in request.model or not os.path.exists(request.model):
        raise Failed("model", f"no model at `{request.model[:500]}`", "give a model folder")
    request.device = request.device or next(iter(capabilities["devices"]), "cpu")
    if request.device == "cpu:0":
        # The engine gets the CPU as `cpu`, so that every numbered device is a GPU.
        request.device = "cpu"
    request.dtype = request.dtype or engine.default_dtype(request) or next(iter(capabilities["dtypes"]), None)


def _split_planted_delay(options):
    """The options without the planted delay, and the delay in nanoseconds."""
    if (us := options.get(PLANTED_DELAY_OPTION)) is None:
        return options, 0
    # A text that holds a number is accepted too.
    if isinstance(us, str) and us.isascii() and us.isdecimal():
        us = int(us)
    if type(us) is not int or not 0 <= us < 2**64:
        message = f"option `{PLANTED_DELAY_OPTION}`: expected a whole number, found `{json.dumps(us)[:80]}`"
        raise Failed("bad_request", message)
    return {name: value for name, value in options.items() if name != PLANTED_DELAY_OPTION}, us * 1000


def check_offered(field, requested, offered):
    """Refuses a value that the engine does not list. If the list is empty, the engine itself decides. A listed
    `cuda` covers every numbered GPU such as `cuda:1`; a listed `cpu` covers `cpu:0`, but no other number."""
    if requested is None or not offered or requested in offered:
        return
    family, _, index = requested.partition(":")
    if field == "device" and family in offered and (family != "cpu" or index == "0"):
        return
    raise Failed("unsupported", f"{field} `{requested[:80]}`: expected one of {quote(offered)}")


def read_choice(options, name, offered, default=...):
    """The value of an option, which must be one of `offered`. Without the option: `default`, or else the first offered."""
    value = options.get(name)
    if value is None:
        return offered[0] if default is ... else default
    if not isinstance(value, str):
        raise Failed("bad_request", f"option `{name}`: expected a text, found `{str(value)[:80]}`")
    check_offered(f"option `{name}`", value, offered)
    return value


def read_flag(options, name, default):
    """The value of an option that is true or false."""
    value = options.get(name, default)
    # A text that holds a bool is accepted too.
    value = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    if type(value) is not bool:
        raise Failed("bad_request", f"option `{name}`: expected true or false, found `{str(value)[:80]}`")
    return value


def choose_context(requested, limit, model_name, reason=""):
    """The longest context of a load: the requested one, or else `limit`, the longest of the model. Refuses a longer request.
    `reason` says why the limit is lower than the number in the model's config. Without a limit, every request is accepted."""
    if None not in (requested, limit) and requested > limit:
        raise Failed("context", f"`context_tokens`: {requested} is more than the {limit} of model `{model_name}`{reason}")
    return requested or limit


def package_version(engine, package):
    """The version of a package without which the engine cannot answer. If the package is missing, the failure says how to install
    it."""
    # Imported here: the import takes time, and only hello needs it.
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        message = f"no `{package}` in the Python that runs this engine (`{sys.executable}`)"
        hint = f"orchestrate setup {engine}  # or install it into the Python that ORCHESTRATE_PYTHON names"
        raise Failed("unavailable", message, hint) from None


def check_capabilities(request, capabilities):
    """Checks that the engine supports the request, before any load. `use_cache` and the padding are checked after the load."""
    count = len(request.prompts or request.prompts_ids or [None])
    if count > capabilities["batch"]:
        raise Failed("unsupported", f"a batch of {count}: the largest is {capabilities['batch']}")
    field = prompt_field(request)
    if field.endswith("_ids") and not capabilities["prompt_ids"]:
        raise Failed("unsupported", f"`{field}`: this engine takes text")
    if not field.endswith("_ids") and not capabilities["prompt"]:
        raise Failed("unsupported", f"`{field}`: this engine takes ids")
    if request.stream and not capabilities["stream"]:
        raise Failed("unsupported", "`stream`: this engine does not stream")
    if request.ignore_eos and not capabilities["ignore_eos"]:
        raise Failed("unsupported", "`ignore_eos`: this engine stops at the end of sequence")
    if not is_greedy(request.sampling) and not capabilities["sampling"]:
        raise Failed("unsupported", "`sampling`: this engine is greedy")
    if request.speculation != "off" and request.speculation not in capabilities["speculation"]:
        raise Failed("unsupported", "`speculation`: this engine does not draft tokens in this way")


def check_use_cache(request, capabilities, facts):
    # An engine without a cache supports `use_cache: false`. Only the facts of the model state that there is no cache.
    if not request.use_cache and not capabilities["use_cache_toggle"] and facts.get("use_cache") is not False:
        raise Failed("unsupported", "`use_cache`: this engine always uses its cache")


def prompt_field(request, index=None):
    """The field of the request that has the prompts, or of one prompt: `prompt`, or `prompts_ids[2]` in a batch."""
    names = ("prompt", "prompt_ids", "prompts", "prompts_ids")
    field = next(name for name in names if getattr(request, name) is not None)
    return f"{field}[{index}]" if index is not None and field.startswith("prompts") else field


def check_prompts(prompts, request, capabilities, facts):
    """Checks that ids have lengths that the engine can batch, are in the vocabulary, and fit the context, in this order."""
    has_different_lengths = any(len(ids) != len(prompts[0]) for ids in prompts)
    if has_different_lengths and request.padding not in capabilities["padding_sides"]:
        if not capabilities["padding_sides"]:
            raise Failed("unsupported", "prompts of different lengths in one batch: this engine does not pad")
        raise Failed("unsupported", f"padding `{request.padding}`: expected one of {quote(capabilities['padding_sides'])}")
    for index, ids in enumerate(prompts):
        check_vocabulary(ids, facts, prompt_field(request, index))
    context, new_tokens = facts.get("context_tokens"), request.max_new_tokens
    for sequence, ids in enumerate(prompts):
        if context is not None and len(ids) + new_tokens > context:
            prefix = "" if len(prompts) == 1 else f"sequence {sequence}: "
            message = f"{prefix}prompt of {len(ids)} tokens and {new_tokens} new ones exceed the context of {context}"
            raise Failed("context", message)


def check_vocabulary(ids, facts, field):
    size = facts.get("vocabulary_size")
    if size is not None and ids and max(ids) >= size:
        index, id = next((index, id) for index, id in enumerate(ids) if id >= size)
        raise Failed("bad_request", f"`{field}[{index}]`: id {id} is outside the vocabulary of {size}")


def check_logprobs(values, ids, sequence):
    """Checks the number of values, and converts minus infinity to null. Refuses NaN and plus infinity."""
    if len(values) + 1 != len(ids):
        counts = f"{len(values)} log-probabilities for {len(ids)} ids"
        raise Failed("internal", f"sequence {sequence}: the engine returned {counts}")
    for value in values:
        if math.isnan(value) or value == math.inf:
            raise Failed("internal", f"sequence {sequence}: the engine returned a log-probability of {value}")
    return [None if value == -math.inf else float(value) for value in values]


def check_logit(largest, model_name):
    """Refuses the largest of a token's logits if it is NaN or infinite: an id that is chosen from such logits means nothing.
    In numpy and PyTorch, the largest of several numbers is NaN if one of them is NaN."""
    if not math.isfinite(largest):
        raise Failed("model", f"model `{model_name}`: its weights lead to logits that are NaN or infinite")


def failure(error):
    """Converts an exception to a failure. An unexpected exception is also printed on stderr with the end of its
    traceback."""
    if isinstance(error, Failed):
        return error
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    class_names = {base.__name__ for base in type(error).__mro__}
    if class_names & {"MemoryError", "OutOfMemoryError"} or "can't allocate memory" in first_line:
        return Failed("out_of_memory", first_line)
    sys.stderr.write("".join(traceback.format_exception(error)[-6:]))
    sys.stderr.flush()
    return Failed("internal", f"the engine raised {type(error).__name__}: {first_line}")


def quote(words):
    return ", ".join(f"`{word}`" for word in words)
