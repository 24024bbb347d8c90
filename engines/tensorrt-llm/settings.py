"""Load options, parsed and checked: those of the presets, and the user's. Does not use the library."""

import json
from dataclasses import dataclass

from engine_kit import Failed

# The most concurrent sequences, in a batch or in overlapping requests. hello states it before a load, so it also bounds the
# option `max_batch`.
MAX_SEQUENCES = 64

BACKENDS = ("pytorch", "tensorrt")
FP8 = ("auto", "on", "off")


@dataclass(frozen=True)
class Settings:
    """The load options. The defaults are those of the preset `optimized`."""

    backend: str = "pytorch"
    cuda_graphs: bool = True
    overlap: bool = True
    fp8: str = "auto"
    tp: int = 1
    max_batch: int = MAX_SEQUENCES
    memory_fraction: float = 0.9
    pool_tokens: int | None = None
    context_logits: bool = False

    def graph_batch_sizes(self):
        """Powers of two up to the largest batch, and that batch: padding rounds every batch up to one of them."""
        sizes = [1]
        while sizes[-1] * 2 < self.max_batch:
            sizes.append(sizes[-1] * 2)
        return sizes if sizes[-1] == self.max_batch else [*sizes, self.max_batch]


def read_settings(options):
    settings = Settings(**{name: _READERS[name](name, value) for name, value in options.items()})
    if settings.backend == "tensorrt":
        # Fields of the PyTorch backend only: an explicit one must not be ignored.
        for name in ("cuda_graphs", "overlap"):
            if options.get(name) is not None and getattr(settings, name):
                message = f"option `{name}`: the backend `tensorrt` has no such setting"
                raise Failed("unsupported", message, f"leave out `{name}`, or use the preset `basic`")
        if settings.fp8 == "on":
            message = "option `fp8`: calibration for the backend `tensorrt` needs a data set from the network"
            raise Failed("unsupported", message, "load a model folder that is quantised to fp8")
    elif settings.context_logits:
        message = "option `context_logits`: the backend `pytorch` has context logits without a build"
        raise Failed("bad_request", message, "leave out `context_logits`")
    return settings


def _choice(values):
    def read(name, value):
        if value not in values:
            raise _invalid(name, "one of " + ", ".join(f"`{known}`" for known in values), value)
        return value

    return read


def _switch(name, value):
    # Text from a command line counts as the value that it spells.
    spelled = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    if type(spelled) is not bool:
        raise _invalid(name, "true or false", value)
    return spelled


def _fp8(name, value):
    spelled = {True: "on", False: "off", "true": "on", "false": "off"}
    known = spelled.get(value, value) if isinstance(value, (bool, str)) else value
    return _choice(FP8)(name, known)


def _integer(largest):
    def read(name, value):
        number = value
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 12:
            number = int(value)
        if type(number) is not int or not 1 <= number <= largest:
            raise _invalid(name, f"a whole number from 1 to {largest}", value)
        return number

    return read


def _fraction(name, value):
    try:
        fraction = float(value) if type(value) in (int, float, str) else None
    except (ValueError, OverflowError):
        fraction = None
    if fraction is None or not 0 < fraction <= 1:
        raise _invalid(name, "a number above 0, at most 1", value)
    return fraction


def _invalid(name, expected, found):
    return Failed("bad_request", f"option `{name}`: expected {expected}, found `{json.dumps(found)[:80]}`")


_READERS = {
    "backend": _choice(BACKENDS),
    "cuda_graphs": _switch,
    "overlap": _switch,
    "fp8": _fp8,
    "tp": _integer(1024),
    "max_batch": _integer(MAX_SEQUENCES),
    "memory_fraction": _fraction,
    "pool_tokens": _integer(10**9),
    "context_logits": _switch,
}
OPTIONS = tuple(_READERS)
