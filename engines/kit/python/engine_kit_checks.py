"""What is refused before any work, and what an exception becomes. The wording is the Rust kit's."""

import json
import math
import os
import sys
import traceback

from engine_kit_tokens import is_greedy
from engine_kit_wire import Failed

# What hello says where an engine says nothing. The first three come with the kit; the rest is the protocol's default.
CAPABILITIES = {
    "stream": True,
    "prompt_ids": True,
    "facts": True,
    "devices": ["cpu"],
    "dtypes": [],
    "formats": [],
    "architectures": [],
    "batch": 1,
    "concurrency": 1,
    "use_cache_toggle": False,
    "padding_sides": [],
    "ignore_eos": False,
    "sampling": False,
    "score": False,
}


# An option of every engine, which no engine sees: time that passes before each token of a sequence but the first, so that
# what detects slowdowns can be tried on any real engine.
PLANTED_DELAY = "planted_delay_us"


def check_load(request, can, engine):
    """Refuses a load that makes no sense, and fills in the device and the dtype where the request names none."""
    options = engine.options
    check_offered("device", request.device, can["devices"])
    check_offered("dtype", request.dtype, can["dtypes"])
    for name in ("threads", "context_tokens"):
        if getattr(request, name) == 0:
            raise Failed("bad_request", f"`{name}`: expected at least 1, found 0")
    request.options, request.planted_ns = _take_planted(request.options)
    for name in request.options:
        if name not in options:
            hint = f"the options are {quote(options)}" if options else "this engine has no options"
            raise Failed("bad_request", f"unknown option `{name[:80]}`", hint)
    if "\0" in request.model or not os.path.exists(request.model):
        raise Failed("model", f"no model at `{request.model[:500]}`", "give a model folder")
    request.device = request.device or next(iter(can["devices"]), "cpu")
    if request.device == "cpu:0":
        # There is one; what is not `cpu` is a GPU to an engine.
        request.device = "cpu"
    request.dtype = request.dtype or engine.default_dtype(request) or next(iter(can["dtypes"]), None)


def _take_planted(options):
    """The options without it, and the nanoseconds that it plants."""
    if (us := options.get(PLANTED_DELAY)) is None:
        return options, 0
    # Words that came from a command line count as what they spell.
    whole = us if type(us) is int else int(us) if isinstance(us, str) and us.isascii() and us.isdecimal() else -1
    if not 0 <= whole < 2**64:
        message = f"option `{PLANTED_DELAY}`: expected a whole number, found `{json.dumps(us)[:80]}`"
        raise Failed("bad_request", message)
    return {name: value for name, value in options.items() if name != PLANTED_DELAY}, whole * 1000


def check_offered(what, asked, offered):
    """An engine that lists nothing is asked and may refuse by itself. `cuda:1` is offered by `cuda`, and of CPUs there is one."""
    if asked is None or not offered or asked in offered:
        return
    family, _, number = asked.partition(":")
    if what == "device" and family in offered and (family != "cpu" or number == "0"):
        return
    raise Failed("unsupported", f"{what} `{asked[:80]}`: offered are {quote(offered)}")


def check_generate(request, can, facts):
    """Is everything that is asked for something that the engine can do?"""
    count = len(request.prompts or request.prompts_ids or [None])
    if count > can["batch"]:
        raise Failed("unsupported", f"a batch of {count}: the largest is {can['batch']}")
    if (request.prompt_ids is not None or request.prompts_ids is not None) and not can["prompt_ids"]:
        raise Failed("unsupported", "`prompt_ids`: this engine takes text")
    if request.stream and not can["stream"]:
        raise Failed("unsupported", "`stream`: this engine does not stream")
    if request.ignore_eos and not can["ignore_eos"]:
        raise Failed("unsupported", "`ignore_eos`: this engine stops at the end of sequence")
    if not is_greedy(request.sampling) and not can["sampling"]:
        raise Failed("unsupported", "`sampling`: this engine is greedy")
    # An engine that never has a cache does what `use_cache: false` asks.
    if not request.use_cache and not can["use_cache_toggle"] and facts.get("use_cache") is not False:
        raise Failed("unsupported", "`use_cache`: this engine cannot do without its cache")


def check_prompts(prompts, request, can, facts):
    """Ids of the model's, that fit the context, of lengths that the engine can put into one batch."""
    context, new_tokens = facts.get("context_tokens"), request.max_new_tokens
    for sequence, ids in enumerate(prompts):
        place = "prompt_ids" if len(prompts) == 1 else f"prompts_ids[{sequence}]"
        check_vocabulary(ids, facts, place)
        if not ids:
            raise Failed("bad_request", f"`{place}`: no tokens")
        if context is not None and len(ids) + new_tokens > context:
            whose = "" if len(prompts) == 1 else f"sequence {sequence}: "
            message = f"{whose}prompt of {len(ids)} tokens and {new_tokens} new ones exceed the context of {context}"
            raise Failed("context", message)
    ragged = any(len(ids) != len(prompts[0]) for ids in prompts)
    if ragged and request.padding not in can["padding_sides"]:
        if not can["padding_sides"]:
            raise Failed("unsupported", "prompts of different lengths in one batch: this engine does not pad")
        raise Failed("unsupported", f"padding `{request.padding}`: offered are {quote(can['padding_sides'])}")


def check_vocabulary(ids, facts, place):
    size = facts.get("vocabulary_size")
    if size is not None and ids and max(ids) >= size:
        index, id = next((index, id) for index, id in enumerate(ids) if id >= size)
        raise Failed("bad_request", f"`{place}[{index}]`: id {id} is outside the vocabulary of {size}")


def logprobs(values, ids, sequence):
    """As many values as there must be, minus infinity as null, anything else that is no number refused."""
    if len(values) + 1 != len(ids):
        gave = f"{len(values)} log-probabilities for {len(ids)} ids"
        raise Failed("internal", f"sequence {sequence}: the engine gave {gave}")
    for value in values:
        if math.isnan(value) or value == math.inf:
            raise Failed("internal", f"sequence {sequence}: the engine gave a log-probability of {value}")
    return [None if value == -math.inf else float(value) for value in values]


def failure(error):
    """What an exception becomes on the wire. What nobody foresaw is told on stderr too, with where it happened."""
    if isinstance(error, Failed):
        return error
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    names = {base.__name__ for base in type(error).__mro__}
    if names & {"MemoryError", "OutOfMemoryError"} or "can't allocate memory" in first_line:
        return Failed("out_of_memory", first_line)
    sys.stderr.write("".join(traceback.format_exception(error)[-6:]))
    sys.stderr.flush()
    return Failed("internal", f"the engine raised {type(error).__name__}: {first_line}")


def quote(words):
    return ", ".join(f"`{word}`" for word in words)
