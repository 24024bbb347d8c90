"""Tests the splitting of bytes into lines, and the refusals of invalid lines."""

import unittest

from engine_kit_wire import Failed, Framer, TooLong, encode, parse_request


def split(framer, *chunks):
    frames = [frame for chunk in chunks for frame in framer.push(chunk)] + framer.finish()
    return [("too long", frame.size) if isinstance(frame, TooLong) else frame for frame in frames]


class Framing(unittest.TestCase):
    def test_lines_do_not_depend_on_how_the_bytes_are_split(self):
        text = '{"a":1}\n\n{"b":"ü"}\r\nlast'.encode()
        lines = split(Framer(), text)
        self.assertEqual(lines, [b'{"a":1}', b"", '{"b":"ü"}'.encode(), b"last"])
        for cut in range(len(text) + 1):
            self.assertEqual(split(Framer(), text[:cut], text[cut:]), lines, f"cut at {cut}")
        self.assertEqual(split(Framer(), *(bytes([byte]) for byte in text)), lines)

    def test_a_line_of_maximum_length_is_accepted_and_a_longer_one_is_skipped(self):
        self.assertEqual(split(Framer(4), b"abcd\nabcde\nxy\n"), [b"abcd", ("too long", 5), b"xy"])

    def test_a_very_long_line_is_reported_once(self):
        framer = Framer(1024)
        for _ in range(1000):
            self.assertEqual(framer.push(b"a" * 1000), [])
        self.assertEqual(split(framer, b"\n{}\n"), [("too long", 1_000_000), b"{}"])

    def test_an_encoded_message_is_one_line_for_any_text(self):
        line = encode({"text": "a\nb\r\u2028\ud800"})
        self.assertEqual(line.count(b"\n"), 1)
        self.assertTrue(line.endswith(b"}\n"))
        line.decode("utf-8")


class Hints(unittest.TestCase):
    def test_the_hint_of_a_message_is_a_field_of_its_own(self):
        failed = Failed("model", "cannot open `m`\nhint: chmod u+x m\ntwice")
        self.assertEqual((failed.message, failed.hint), ("cannot open `m`\ntwice", "chmod u+x m"))
        self.assertEqual(Failed("model", "a\nhint: b", "c").hint, "c")


class Parsing(unittest.TestCase):
    def failure(self, line):
        with self.assertRaises(Failed) as caught:
            parse_request(line if isinstance(line, bytes) else line.encode())
        self.assertEqual(caught.exception.kind, "bad_request")
        return caught.exception

    def test_a_line_without_a_type_is_a_generate_with_the_documented_defaults(self):
        request = parse_request(b'{"prompt":"Hello","iterations":50}')
        self.assertEqual((request.type, request.has_type, request.id), ("generate", False, None))
        self.assertEqual((request.iterations, request.max_new_tokens, request.warmup), (50, 32, 0))
        self.assertEqual((request.use_cache, request.ignore_eos, request.stream), (True, False, False))
        self.assertEqual((request.sampling, request.padding), (None, "left"))

    def test_an_invalid_line_is_refused_with_the_error_and_the_position_of_a_syntax_error(self):
        for line, message in {
            "": "empty line: expected one JSON object",
            " \t ": "empty line: expected one JSON object",
            '{"prompt":"Hel': "column 14: `prompt`: EOF while parsing a string",
            '{"prompt":': "column 10: `prompt`: EOF while parsing a value",
            '{"prompt" "Hello"}': "column 11: expected `:`, found `\"`",
            '{"prompt":"a",}': "column 15: expected a field's name in double quotes, found `}`",
            '{"prompt":"a" "b":1}': "column 15: expected `,` or `}`, found `\"`",
            '{"prompt":"a","prompt":"b"}': "column 26: duplicate field `prompt`",
            '{"prompt":"\\ud800"}': "column 18: `prompt`: lone surrogate in a string",
            '{"type":"load"}': "missing field `model`",
            '{"type":"score","sequences":[[1]]}': "`sequences[0]`: needs at least two ids",
        }.items():
            self.assertEqual(self.failure(line).message, message)
        self.assertEqual(self.failure(b'{"prompt":"\xff"}').message, "byte 12: not UTF-8")

    def test_columns_count_bytes(self):
        message = self.failure('{"prompt":"ü","padding":"up"}').message
        self.assertEqual(message[:22], "column 29: `padding`: ")

    def test_a_number_out_of_range_is_refused_with_its_field(self):
        for line, message in {
            '{"prompt":"a","iterations":-1}': "column 29: `iterations`: invalid value: integer `-1`, expected u32",
            '{"prompt":"a","iterations":1.5}': "column 30: `iterations`: invalid type: floating point `1.5`, expected u32",
            '{"prompt":"a","iterations":"9"}': 'column 30: `iterations`: invalid type: string "9", expected u32',
            '{"prompt":"a","iterations":true}': "column 31: `iterations`: invalid type: boolean `true`, expected u32",
            '{"prompt":"a","iterations":0}': "`iterations`: expected 1 to 1000000, found 0",
            '{"prompt":"a","iterations":4000000000}': "`iterations`: expected 1 to 1000000, found 4000000000",
            '{"prompt":"a","max_new_tokens":0}': "`max_new_tokens`: expected at least 1, found 0",
        }.items():
            self.assertEqual(self.failure(line).message, message)
        for number in ("1e400", "NaN", "-Infinity", "9" * 5000, "99999999999"):
            self.assertIn("`iterations`: ", self.failure(f'{{"prompt":"a","iterations":{number}}}').message)
            self.assertIn("`sampling", self.failure(f'{{"prompt":"a","sampling":{{"seed":-{number}}}}}').message)
        self.assertIn("`sampling.top_p`", self.failure('{"prompt":"a","sampling":{"top_p":2}}').message)

    def test_deep_nesting_is_refused(self):
        # The depth limit differs between versions of Python.
        depth = 1_000_000
        for line in ('{"prompt":"a","x":%s}', '{"type":"load","model":"m","options":%s}', "%s"):
            self.assertTrue(self.failure(line % ("[" * depth + "]" * depth)).message)
        deep = self.failure('{"prompt":"a","x":%s}' % ("[" * depth))
        self.assertEqual(deep.message, "column 19: `x`: recursion limit exceeded: nested too deep")

    def test_a_refusal_has_the_id_of_its_request(self):
        self.assertEqual(self.failure('{"id":7,"prompt":"a","iterations":0}').id, 7)
        failed = self.failure('{"type":"dance","id":"x"}')
        self.assertEqual((failed.id, failed.message), ("x", "unknown request type `dance`"))
        self.assertIsNone(self.failure('{"id":1.5,"prompt":"a"}').id)

    def test_text_of_a_request_is_shortened_in_the_failure(self):
        self.assertLess(len(self.failure('{"type":"%s"}' % ("x" * 10_000)).message), 200)
        self.assertLess(len(self.failure('{"prompt":"a","iterations":"%s"}' % ("x" * 10_000)).message), 250)

    def test_unknown_fields_are_ignored(self):
        self.assertEqual(parse_request(b'{"prompt":"a","mood":["good",{}]}').prompt, "a")

    def test_a_generate_needs_exactly_one_kind_of_prompt(self):
        self.assertTrue(self.failure("{}").message.startswith("no prompt"))
        self.assertTrue(self.failure('{"prompt":"a","prompt_ids":[1]}').message.startswith("more than one"))
        self.assertEqual(self.failure('{"prompts":[]}').message, "`prompts`: empty batch")
        self.assertEqual(self.failure('{"prompts_ids":[]}').message, "`prompts_ids`: empty batch")
