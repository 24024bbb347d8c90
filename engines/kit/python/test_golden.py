"""Tests the golden files: the kit parses every request, refuses invalid lines with the same messages, and its messages
have the same fields."""

import json
import unittest
from pathlib import Path

from engine_kit_wire import Failed, parse_request
from test_conversation import InMemoryConversation
from toy_engine import FAILS

GOLDEN = Path(__file__).resolve().parents[3] / "protocol" / "golden"
# Under these paths, each engine has fields of its own.
UNCHECKED = ("summary.", "libraries.", "loaded.libraries.")

REQUESTS = [
    {"type": "hello", "protocol": 1},
    {"type": "load", "model": "."},
    {"type": "generate", "id": 8, "prompt": "Once", "iterations": 2, "warmup": 1, "stream": True},
    {"type": "generate", "id": 8, "prompt": "Once", "speculation": "prompt_lookup"},
    {"type": "score", "id": 9, "sequences": [[1, 17, 42, 9], [1, 5]]},
    {"type": "facts"},
    {"type": "generate", "id": 7, "prompt_ids": [FAILS]},
    {"type": "shutdown"},
]


def golden(direction):
    """The values of all golden files of a direction, `request` or `message`, by name."""
    values = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(GOLDEN.glob(f"{direction}-*.json"))}
    assert values, f"no golden files in {GOLDEN}"
    return values


def sent_messages():
    """Messages of all types, among them a `generated` with the field `loaded`."""
    return InMemoryConversation().run(*REQUESTS) + InMemoryConversation().run({"prompt": "Once", "warmup": 1})


class GoldenFiles(unittest.TestCase):
    def test_every_golden_request_is_parsed_field_by_field(self):
        for name, expected in golden("request").items():
            request = parse_request(json.dumps(expected).encode())
            self.assertEqual(request.type, expected.get("type", "generate"), name)
            for field, value in expected.items():
                parsed = getattr(request, field)
                if field == "sampling":
                    parsed = vars(parsed)
                self.assertEqual(parsed, value, f"{name}: {field}")

    def test_an_invalid_line_is_refused_with_the_message_of_the_golden_file(self):
        invalid = json.loads((GOLDEN / "refused.json").read_text("utf-8"))
        self.assertTrue(invalid)
        for line, message in invalid.items():
            with self.assertRaises(Failed, msg=line) as caught:
                parse_request(line.encode())
            self.assertEqual((caught.exception.kind, caught.exception.message), ("bad_request", message), line)

    def test_every_type_of_request_has_a_golden_file(self):
        types = {value.get("type", "generate") for value in golden("request").values()}
        self.assertEqual(types, {"hello", "load", "generate", "score", "facts", "cancel", "shutdown"})

    def test_the_kits_messages_have_every_field_of_the_golden_message_of_their_type(self):
        sent = {}
        for message in sent_messages():
            sent.setdefault(message["type"], {}).update(message)
        expected = golden("message")
        self.assertEqual(set(sent), {value["type"] for value in expected.values()})
        for type, message in sent.items():
            self.assertEqual(missing(expected[f"message-{type}"], message), [], type)

    def test_the_kits_messages_have_only_the_fields_of_the_golden_messages(self):
        known = {}
        for value in golden("message").values():
            known.setdefault(value["type"], set()).update(paths(value))
        # Facts of a model may also be in `loaded`, and warm-up iterations have the fields of `iterations`.
        facts = known["facts"] | known["loaded"]
        for message in sent_messages():
            allowed = known[message["type"]] | facts | {f"loaded.{path}" for path in facts}
            present = {path.replace("warmup_iterations.", "iterations.") for path in paths(message)}
            unknown = [path for path in present - allowed if not path.startswith(UNCHECKED)]
            self.assertEqual(unknown, [], message["type"])


def paths(value, prefix=""):
    """The path of every field. Paths have no indices, so the items of a list share one path."""
    if isinstance(value, dict):
        for name, item in value.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path
            yield from paths(item, path)
    elif isinstance(value, list):
        for item in value:
            yield from paths(item, prefix)


def missing(expected, message):
    """The paths of `expected` that the message lacks."""
    present = set(paths(message))
    return sorted(path for path in set(paths(expected)) - present if not path.startswith(UNCHECKED))
