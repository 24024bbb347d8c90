"""Converts lines to requests: framing, parsing, and the refusals of invalid lines. Converts messages to lines.

This is the Python counterpart of the crate `protocol`. For the lines in `protocol/golden/refused.json`, both have the same
messages. An invalid line raises a `Failed`. Its message has a position if the syntax is wrong or a value cannot be read.
"""

import json
from types import SimpleNamespace

from engine_kit_fields import REQUIRED, Invalid, any_map, boolean, escape_control, list_of, one_of, optional, optional_id
from engine_kit_fields import read_field, required_id, sampling, shorten, split_fields, string, u32

PROTOCOL = 1
MAX_LINE_BYTES = 16 * 1024 * 1024
# One answer holds all iterations, so their number is limited.
MAX_ITERATIONS = 1_000_000
KINDS = ("bad_request", "unsupported", "unavailable", "model", "context", "out_of_memory", "device", "internal")


class Failed(Exception):
    """The failure of a request, which an engine can raise anywhere. `hint` says what to do, if possible as a command or setting.
    Without a `hint`, the lines of `message` that begin with `hint: ` become the hint."""

    def __init__(self, kind, message, hint=None, id=None):
        super().__init__(message)
        if kind not in KINDS:
            raise ValueError(f"`{kind}` is not a kind of failure: use one of {', '.join(KINDS)}")
        lines = message.splitlines()
        hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
        if hints:
            message = "\n".join(line for line in lines if not line.startswith("hint: "))
        self.kind, self.message, self.hint, self.id = kind, message, hint or "\n".join(hints) or None, id


def parse_request(line):
    """The request in a line: a namespace with `type`, `has_type` (whether the line names its type) and the fields."""
    text, id = _decode_line(line), None
    try:
        fields = split_fields(text)
        # The id is read first, so that a failure for another field has the id.
        id = read_field("id", fields, optional_id, None)
        type = read_field("type", fields, optional(string), None)
        request = _parse_fields(type or "generate", fields)
    except Invalid as error:
        raise Failed("bad_request", error.describe(text), id=id) from None
    request.id, request.has_type = id, type is not None
    return request


def encode(message):
    """The line of a message. Raises `ValueError` for NaN, because JSON has no NaN."""
    return json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


class TooLong:
    """A line of more bytes than `MAX_LINE_BYTES`; its bytes are dropped."""

    def __init__(self, size):
        self.size = size


class Framer:
    """Splits bytes into lines, and never stores more than `max_line_bytes`."""

    def __init__(self, max_line_bytes=MAX_LINE_BYTES):
        self._max_line_bytes, self._line, self._skipped_bytes = max_line_bytes, bytearray(), 0

    def push(self, chunk):
        """Returns the lines that end in this chunk: bytes without their newline, or `TooLong`."""
        *line_ends, remainder = chunk.split(b"\n")
        frames = []
        for line_end in line_ends:
            self._extend(line_end)
            frames.append(self._take())
        self._extend(remainder)
        return frames

    def finish(self):
        """Returns the last line if the stream ended without a newline."""
        return [self._take()] if self._line or self._skipped_bytes else []

    def _extend(self, part):
        if self._skipped_bytes or len(self._line) + len(part) > self._max_line_bytes:
            self._skipped_bytes += len(self._line) + len(part)
            self._line.clear()
        else:
            self._line += part

    def _take(self):
        if self._skipped_bytes:
            size, self._skipped_bytes = self._skipped_bytes, 0
            return TooLong(size)
        line = bytes(self._line)
        self._line.clear()
        return line[:-1] if line.endswith(b"\r") else line


# The fields of each request: field -> (reader, default). A field without a default is required.
_FIELDS_BY_TYPE = {
    "hello": {"protocol": (u32, REQUIRED)},
    "load": {
        "model": (string, REQUIRED),
        "device": (optional(string), None),
        "dtype": (optional(string), None),
        "threads": (optional(u32), None),
        "context_tokens": (optional(u32), None),
        "options": (any_map, {}),
    },
    "generate": {
        "prompt": (optional(string), None),
        "prompt_ids": (optional(list_of(u32)), None),
        "prompts": (optional(list_of(string)), None),
        "prompts_ids": (optional(list_of(list_of(u32))), None),
        "max_new_tokens": (u32, 32),
        "iterations": (u32, 1),
        "warmup": (u32, 0),
        "ignore_eos": (boolean, False),
        "sampling": (optional(sampling), None),
        "use_cache": (boolean, True),
        "prefix_cache": (boolean, False),
        "padding": (one_of("left", "right", "packed"), "left"),
        "speculation": (one_of("off", "prompt_lookup"), "off"),
        "stream": (boolean, False),
    },
    "score": {"sequences": (list_of(list_of(u32)), REQUIRED), "most_likely": (boolean, False)},
    "facts": {},
    "cancel": {"id": (required_id, REQUIRED)},
    "shutdown": {},
}


def _parse_fields(type, fields):
    rules = _FIELDS_BY_TYPE.get(type)
    if rules is None:
        raise Invalid(f"unknown request type `{shorten(type)}`")
    request = SimpleNamespace(type=type, **{name: read_field(name, fields, *rule) for name, rule in rules.items()})
    if type == "generate":
        _check_generate(request)
    if type == "load":
        _check_load(request)
    if type == "score":
        for index, ids in enumerate(request.sequences):
            if len(ids) < 2:
                raise Invalid(f"`sequences[{index}]`: needs at least two ids")
    return request


def _check_load(request):
    if not request.model:
        raise Invalid("`model`: empty")
    for name in ("threads", "context_tokens"):
        if getattr(request, name) == 0:
            raise Invalid(f"`{name}`: expected at least 1, found 0")


def _check_generate(request):
    names = ("prompt", "prompt_ids", "prompts", "prompts_ids")
    prompts = [name for name in names if getattr(request, name) is not None]
    if not prompts:
        raise Invalid("no prompt: one of `prompt`, `prompt_ids`, `prompts`, `prompts_ids` is needed")
    if len(prompts) > 1:
        raise Invalid("more than one of `prompt`, `prompt_ids`, `prompts`, `prompts_ids`")
    for name in ("prompts", "prompts_ids"):
        if getattr(request, name) == []:
            raise Invalid(f"`{name}`: empty batch")
    if request.prompt_ids == []:
        raise Invalid("`prompt_ids`: no ids")
    if [] in (request.prompts_ids or []):
        raise Invalid(f"`prompts_ids[{request.prompts_ids.index([])}]`: no ids")
    if request.max_new_tokens == 0:
        raise Invalid("`max_new_tokens`: expected at least 1, found 0")
    if not 1 <= request.iterations <= MAX_ITERATIONS:
        raise Invalid(f"`iterations`: expected 1 to {MAX_ITERATIONS}, found {request.iterations}")
    if request.warmup > MAX_ITERATIONS:
        raise Invalid(f"`warmup`: expected 0 to {MAX_ITERATIONS}, found {request.warmup}")
    if request.sampling is None:
        return
    if request.sampling.temperature < 0:
        raise Invalid(f"`sampling.temperature`: expected 0 or more, found {request.sampling.temperature}")
    if request.sampling.top_p is not None and not 0 < request.sampling.top_p <= 1:
        raise Invalid(f"`sampling.top_p`: expected more than 0 and at most 1, found {request.sampling.top_p}")


def _decode_line(line):
    if not line.strip(b" \t\n\r\x0c"):
        raise Failed("bad_request", "empty line: expected one JSON object")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Failed("bad_request", f"byte {error.start + 1}: not UTF-8") from None
    start = len(text) - len(text.lstrip(" \t\n\r"))
    if text[start] != "{":
        raise Failed("bad_request", f"column {start + 1}: expected `{{`, found `{escape_control(text[start])}`")
    return text
