"""Parses and checks the load options. Does not use the library."""

import json
from dataclasses import dataclass

from engine_kit import Failed

# The most concurrent sequences, in a batch or in overlapping requests. `hello` reports this number before a load knows
# `max_batch`, so the option cannot be larger.
MAX_SEQUENCES = 64

BACKENDS = ("pytorch", "tensorrt")
FP8_MODES = ("auto", "on", "off")


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
        """Powers of two up to `max_batch`, and `max_batch`. Padding rounds every batch up to the next of these sizes."""
        sizes = [1]
        while sizes[-1] * 2 < self.max_batch:
            sizes.append(sizes[-1] * 2)
        return sizes if sizes[-1] == self.max_batch else [*sizes, self.max_batch]


def parse_settings(options):
    settings = Settings(**{name: _PARSERS[name](name, value) for name, value in options.items()})
    if settings.backend == "tensorrt":
        # Only the backend `pytorch` has these options. An explicit option must not be ignored.
        for name in ("cuda_graphs", "overlap"):
            if options.get(name) is not None and getattr(settings, name):
                message = f"option `{name}`: only the backend `pytorch` has this option"
                raise Failed("unsupported", message, f"leave out `{name}`, or use the preset `basic`")
        if settings.fp8 == "on":
            message = "option `fp8`: calibration for the backend `tensorrt` needs a data set from the network"
            raise Failed("unsupported", message, "load a model folder that is quantized to fp8")
    elif settings.context_logits:
        message = "option `context_logits`: only the backend `tensorrt` has this option"
        raise Failed("bad_request", message, "leave out `context_logits`")
    return settings


def _choice_parser(values):
    def parse(name, value):
        if value not in values:
            raise _invalid(name, "one of " + ", ".join(f"`{choice}`" for choice in values), value)
        return value

    return parse


def _parse_switch(name, value):
    # A text that holds a bool is accepted too.
    parsed = {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value
    if type(parsed) is not bool:
        raise _invalid(name, "true or false", value)
    return parsed


def _parse_fp8(name, value):
    modes = {True: "on", False: "off", "true": "on", "false": "off"}
    mode = modes.get(value, value) if isinstance(value, (bool, str)) else value
    return _choice_parser(FP8_MODES)(name, mode)


def _integer_parser(largest):
    def parse(name, value):
        number = value
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 12:
            number = int(value)
        if type(number) is not int or not 1 <= number <= largest:
            raise _invalid(name, f"a whole number from 1 to {largest}", value)
        return number

    return parse


def _parse_fraction(name, value):
    try:
        fraction = float(value) if type(value) in (int, float, str) else None
    except (ValueError, OverflowError):
        fraction = None
    if fraction is None or not 0 < fraction <= 1:
        raise _invalid(name, "a number above 0, at most 1", value)
    return fraction


def _invalid(name, expected, value):
    return Failed("bad_request", f"option `{name}`: expected {expected}, found `{json.dumps(value)[:80]}`")


_PARSERS = {
    "backend": _choice_parser(BACKENDS),
    "cuda_graphs": _parse_switch,
    "overlap": _parse_switch,
    "fp8": _parse_fp8,
    "tp": _integer_parser(1024),
    "max_batch": _integer_parser(MAX_SEQUENCES),
    "memory_fraction": _parse_fraction,
    "pool_tokens": _integer_parser(10**9),
    "context_logits": _parse_switch,
}
OPTIONS = tuple(_PARSERS)
