"""Tests the worker's handling of the conversion program and its output."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from support import EMBEDDED, Phases, file

from engine_kit import Failed
from file import PROGRAM, convert


class Conversions(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def convert_with(self, script):
        """The file and the reported progress, with this shell script as the program."""
        program = Path(self.folder.name) / "program"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        progress = []
        with mock.patch.dict(os.environ, {PROGRAM: str(program)}):
            return convert(EMBEDDED, "f32", Phases(progress.append)), [message["fraction"] for message in progress]

    def assert_failed(self, kind, text, call):
        with self.assertRaises(Failed) as raised:
            call()
        self.assertEqual(raised.exception.kind, kind)
        self.assertIn(text, raised.exception.message)

    def test_lines_without_a_fraction_are_ignored(self):
        path, fractions = self.convert_with("printf '0.25\\nwarning: hot\\n\\nnan\\n1e9\\n\\377\\n1.000\\n/made.gguf\\n'")
        self.assertEqual((path, fractions), (Path("/made.gguf"), [0.25, 1.0]))

    def test_a_program_that_names_no_file_or_fails_is_reported(self):
        self.assert_failed("model", "ended with 0, and named no file", lambda: self.convert_with("echo 0.5"))
        self.assert_failed("model", "ended with 3, and named no file", lambda: self.convert_with("exit 3"))
        self.assert_failed("model", "to GGUF: disk full", lambda: self.convert_with("echo error: disk full >&2; exit 1"))

    def test_a_program_that_cannot_be_started_is_reported(self):
        for program in ("/no/such/program", "/etc/passwd"):
            with mock.patch.dict(os.environ, {PROGRAM: program}):
                self.assert_failed("unavailable", program, lambda: convert(EMBEDDED, "f32", Phases()))
        with mock.patch.dict(os.environ, {PROGRAM: ""}):
            self.assert_failed("unavailable", PROGRAM, lambda: convert(EMBEDDED, "f32", Phases()))

    def test_a_conversion_of_the_same_content_in_another_folder_is_found_again(self):
        copy = Path(self.folder.name) / "again"
        copy.mkdir()
        for path in EMBEDDED.iterdir():
            if path.is_file():
                (copy / path.name).write_bytes(path.read_bytes())
        first = file("f32")
        made = first.stat()
        self.assertEqual(convert(copy, "f32", Phases()), first)
        self.assertEqual(first.stat().st_ino, made.st_ino)
        # Other weights give another file.
        weights = bytearray((copy / "model.safetensors").read_bytes())
        weights[-100] ^= 1
        (copy / "model.safetensors").write_bytes(weights)
        self.assertNotEqual(convert(copy, "f32", Phases()), first)


if __name__ == "__main__":
    unittest.main()
