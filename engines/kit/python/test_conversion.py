"""Tests conversions as a worker requests them, with a shell script as the program."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from conversion import PROGRAM_VARIABLE, convert
from engine_kit_tokens import Phases
from engine_kit_wire import Failed


class Conversions(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def convert_with(self, script):
        """Converts with this shell script as the program. Returns the path and the reported fractions."""
        program = Path(self.folder.name) / "program"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        progress = []
        with mock.patch.dict(os.environ, {PROGRAM_VARIABLE: str(program)}):
            path = convert("/m", "onnx", "f32", "tool 1", ["tool", Path("/x")], Phases(progress.append))
        return path, [message["fraction"] for message in progress if "fraction" in message]

    def assert_refused(self, kind, part, action):
        with self.assertRaises(Failed) as raised:
            action()
        self.assertEqual(raised.exception.kind, kind)
        self.assertIn(part, raised.exception.message)

    def test_the_program_gets_the_model_the_name_of_the_result_and_the_command(self):
        path, _ = self.convert_with('echo "/$*"')
        self.assertEqual(str(path), "/convert-with /m onnx f32 tool 1 tool /x")

    def test_only_lines_with_a_fraction_count_as_progress(self):
        path, fractions = self.convert_with("printf '0.25\\nwarning: hot\\n\\nnan\\n1e9\\n\\377\\n1.000\\n/made\\n'")
        self.assertEqual((path, fractions), (Path("/made"), [0.25, 1.0]))

    def test_a_conversion_without_a_result_fails_with_the_reason(self):
        self.assert_refused("model", "ended with 0, and named no file", lambda: self.convert_with("echo 0.5"))
        self.assert_refused("model", "ended with 3, and named no file", lambda: self.convert_with("exit 3"))
        lines = "echo warning: hot >&2; echo 'error: disk full' >&2; echo 'hint: rm x' >&2; exit 1"
        with self.assertRaises(Failed) as raised:
            self.convert_with(lines)
        expected = ("`/m` cannot be converted to onnx: disk full", "rm x")
        self.assertEqual((raised.exception.message, raised.exception.hint), expected)

    def test_a_program_that_cannot_be_started_is_reported(self):
        for program in ("/no/such/program", "/etc/passwd"):
            with mock.patch.dict(os.environ, {PROGRAM_VARIABLE: program}):
                self.assert_refused("unavailable", program, lambda: convert("/m", "onnx", "f32", "", [], Phases()))
        with mock.patch.dict(os.environ, {PROGRAM_VARIABLE: ""}):
            self.assert_refused("unavailable", PROGRAM_VARIABLE, lambda: convert("/m", "onnx", "f32", "", [], Phases()))


if __name__ == "__main__":
    unittest.main()
