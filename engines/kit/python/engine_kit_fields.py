"""Converts the text of a line to fields and values, and reports errors with their position.

This module parses the outermost object itself, because Python's own decoder does not give the positions of fields.
"""

import json
import json.decoder
import math
import re
import unicodedata
from types import SimpleNamespace

REQUIRED = object()


class Invalid(Exception):
    """An error in a value, with the path of the value and its position in the line if they are known."""

    def __init__(self, message, position=None):
        super().__init__(message)
        self.message, self.position = message, position
        # `steps` is the path to the value: names and indices. `start` is the position of the value of the first name.
        self.steps, self.start = [], None

    def describe(self, text):
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps)
        path = "".join(steps).removeprefix(".")
        message = f"`{path}`: {self.message}" if path else self.message
        position = self.position if self.start is None else _nested_position(text, self.start, self.steps[1:])
        # Columns count bytes, as in the Rust kit.
        return message if position is None else f"column {len(text[:position].encode('utf-8'))}: {message}"


def read_field(name, fields, reader, default):
    """The value of a field as `reader` returns it, or `default` if the field is absent. `fields`: name -> (value, position of
    the value or None), as from `split_fields`."""
    if name not in fields:
        if default is REQUIRED:
            raise Invalid(f"missing field `{name}`")
        return default
    value, start = fields[name]
    try:
        return reader(value)
    except Invalid as error:
        error.steps.insert(0, name)
        error.start = start
        raise


def string(value):
    if not isinstance(value, str):
        raise _mismatch(value, "a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise Invalid("lone surrogate in a string") from None
    return value


def boolean(value):
    if not isinstance(value, bool):
        raise _mismatch(value, "a boolean")
    return value


def _unsigned(largest, name):
    def check(value):
        if type(value) is not int:
            raise _mismatch(value, name)
        if not 0 <= value <= largest:
            raise Invalid(f"invalid value: integer `{shorten(str(value))}`, expected {name}")
        return value

    return check


u32 = _unsigned(2**32 - 1, "u32")
_u64 = _unsigned(2**64 - 1, "u64")

# The largest seed, and the largest request id that is a number: JavaScript may round larger integers.
MAX_INTEGER = 2**53 - 1


def integer_without_rounding(value):
    if _u64(value) > MAX_INTEGER:
        raise Invalid(f"invalid value: integer `{value}`, expected at most {MAX_INTEGER}")
    return value


def number(value):
    if type(value) not in (int, float):
        raise _mismatch(value, "f64")
    try:
        return float(value)
    except OverflowError:
        raise Invalid("number out of range") from None


def optional_id(value):
    if value is None or isinstance(value, str):
        return value
    if type(value) is not int:
        raise _mismatch(value, "a number or a string")
    return integer_without_rounding(value)


def required_id(value):
    if value is None:
        raise _mismatch(value, "a number or a string")
    return optional_id(value)


def any_map(value):
    if not isinstance(value, dict):
        raise _mismatch(value, "a map")
    return value


def optional(reader):
    return lambda value: None if value is None else reader(value)


def list_of(reader):
    def check(value):
        if not isinstance(value, list):
            raise _mismatch(value, "a sequence")
        for index, item in enumerate(value):
            try:
                reader(item)
            except Invalid as error:
                error.steps.insert(0, index)
                raise
        return value

    return check


def one_of(*words):
    quoted = [f"`{word}`" for word in words]
    expected = " or ".join(quoted) if len(words) == 2 else f"one of {', '.join(quoted)}"

    def check(value):
        if string(value) not in words:
            raise Invalid(f"unknown variant `{shorten(value)}`, expected {expected}")
        return value

    return check


def sampling(value):
    rules = {
        "temperature": (number, 0.0),
        "top_k": (u32, 0),
        "top_p": (optional(number), None),
        "seed": (integer_without_rounding, 0),
    }
    fields = {name: (item, None) for name, item in any_map(value).items()}  # the outer `read_field` sets the position
    return SimpleNamespace(**{name: read_field(name, fields, *rule) for name, rule in rules.items()})


def _mismatch(value, expected):
    if value is None:
        found = "null"
    elif isinstance(value, bool):
        found = f"boolean `{str(value).lower()}`"
    elif isinstance(value, (int, float)):
        found = f"{'integer' if isinstance(value, int) else 'floating point'} `{shorten(str(value))}`"
    elif isinstance(value, str):
        found = f"string {shorten(json.dumps(value))}"
    else:
        found = "sequence" if isinstance(value, list) else "map"
    return Invalid(f"invalid type: {found}, expected {expected}")


def escape_control(character):
    """Escapes a control character, and returns every other character unchanged."""
    return f"\\u{{{ord(character):x}}}" if unicodedata.category(character) == "Cc" else character


def shorten(text):
    """Limits text from a request to 120 characters in an error message."""
    return text if len(text) <= 120 else f"{text[:120]}..."


_WHITESPACE = re.compile(r"[ \t\n\r]*")


def split_fields(text):
    """The fields of an object: name -> (value, position of the value)."""
    fields = {}
    position = _skip_whitespace(text, _skip_whitespace(text, 0) + 1)
    if text[position : position + 1] == "}":
        return _expect_end(text, position + 1, fields)
    while True:
        _expect(text, position, '"', "a field's name in double quotes")
        name, position = _decode(text, lambda position=position: json.decoder.scanstring(text, position + 1, True))
        position = _skip_whitespace(text, position)
        _expect(text, position, ":", "`:`")
        position = start = _skip_whitespace(text, position + 1)
        try:
            value, position = _decode(text, lambda position=position: _DECODER.raw_decode(text, position))
        except Invalid as error:
            error.steps, error.position = [shorten(name)], error.position or position + 1
            raise
        if name in fields:
            raise Invalid(f"duplicate field `{shorten(name)}`", position)
        fields[name] = (value, start)
        position = _skip_whitespace(text, position)
        if text[position : position + 1] == "}":
            return _expect_end(text, position + 1, fields)
        _expect(text, position, ",", "`,` or `}`")
        position = _skip_whitespace(text, position + 1)


def _nested_position(text, position, steps):
    """The position that an error states for a value: its start if it is a list or an object, else its end. `steps` is the
    path to the value in an outer value, which begins at `position`."""
    for step in steps:
        position, index, value_position = _skip_whitespace(text, position + 1), 0, None
        while text[position] not in "]}":
            key = index
            if isinstance(step, str):
                key, position = json.decoder.scanstring(text, position + 1, True)
                position = _skip_whitespace(text, _skip_whitespace(text, position) + 1)
            if key == step:
                # If a name occurs twice, the decoder keeps the last value.
                value_position = position
            _, position = _DECODER.raw_decode(text, position)
            position = _skip_whitespace(text, position)
            if text[position] == ",":
                position = _skip_whitespace(text, position + 1)
            index += 1
        position = value_position
    return position if text[position] in "[{" else _DECODER.raw_decode(text, position)[1]


def _decode(text, decode):
    try:
        return decode()
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string"):
            raise Invalid("EOF while parsing a string", len(text)) from None
        if error.pos >= len(text.rstrip()):
            raise Invalid("EOF while parsing a value", len(text)) from None
        message = _MESSAGES.get(error.msg, error.msg[:1].lower() + error.msg[1:])
        raise Invalid(message, error.pos + 1) from None
    except ValueError:  # An integer with more digits than Python converts.
        raise Invalid("number out of range") from None
    except RecursionError:
        raise Invalid("recursion limit exceeded: nested too deep") from None


# The messages of Python's decoder -> messages in the style of the Rust parser.
_MESSAGES = {
    "Expecting value": "expected a value",
    "Expecting ',' delimiter": "expected `,`",
    "Expecting ':' delimiter": "expected `:`",
    "Expecting property name enclosed in double quotes": "expected a field's name in double quotes",
    "Invalid control character at": "control character in a string",
    "Invalid \\escape": "invalid escape",
    "Invalid \\uXXXX escape": "invalid escape",
}


def _float(text):
    value = float(text)
    if math.isinf(value):
        raise Invalid("number out of range")
    return value


def _constant(name):
    raise Invalid(f"expected a value, found `{name}`")


_DECODER = json.JSONDecoder(parse_float=_float, parse_constant=_constant)


def _skip_whitespace(text, position):
    return _WHITESPACE.match(text, position).end()


def _expect(text, position, character, expected):
    if position >= len(text):
        raise Invalid("EOF while parsing an object", len(text))
    if text[position] != character:
        raise Invalid(f"expected {expected}, found `{escape_control(text[position])}`", position + 1)


def _expect_end(text, position, fields):
    position = _skip_whitespace(text, position)
    if position < len(text):
        raise Invalid("more text after the JSON object", position + 1)
    return fields
