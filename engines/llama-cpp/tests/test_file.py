"""Tests the worker's handling of the conversion program and its output."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from support import EMBEDDED, Phases, file

from engine_kit import Failed
from file import PROGRAM, converted


class Conversions(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def told(self, script):
        """The file and the reported progress, with this shell script as the program."""
        program = Path(self.folder.name) / "program"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        said = []
        with mock.patch.dict(os.environ, {PROGRAM: str(program)}):
            return converted(EMBEDDED, "f32", Phases(said.append)), [progress["fraction"] for progress in said]

    def assert_failed(self, kind, words, call):
        with self.assertRaises(Failed) as raised:
            call()
        self.assertEqual(raised.exception.kind, kind)
        self.assertIn(words, raised.exception.message)

    def test_lines_that_are_no_fraction_are_passed_over(self):
        path, fractions = self.told("printf '0.25\\nwarning: hot\\n\\nnan\\n1e9\\n\\377\\n1.000\\n/made.gguf\\n'")
        self.assertEqual((path, fractions), (Path("/made.gguf"), [0.25, 1.0]))

    def test_a_program_that_names_no_file_or_fails_is_told_of(self):
        self.assert_failed("model", "ended with 0, and named no file", lambda: self.told("echo 0.5"))
        self.assert_failed("model", "ended with 3, and named no file", lambda: self.told("exit 3"))
        self.assert_failed("model", "to GGUF: no more room", lambda: self.told("echo error: no more room >&2; exit 1"))

    def test_a_program_that_cannot_be_started_is_told_of(self):
        for nothing in ("/no/such/program", "/etc/passwd"):
            with mock.patch.dict(os.environ, {PROGRAM: nothing}):
                self.assert_failed("unavailable", nothing, lambda: converted(EMBEDDED, "f32", Phases()))
        with mock.patch.dict(os.environ, {PROGRAM: ""}):
            self.assert_failed("unavailable", PROGRAM, lambda: converted(EMBEDDED, "f32", Phases()))

    def test_a_conversion_is_found_again_by_its_content_from_another_folder(self):
        again = Path(self.folder.name) / "again"
        again.mkdir()
        for path in EMBEDDED.iterdir():
            if path.is_file():
                (again / path.name).write_bytes(path.read_bytes())
        first = file("f32")
        made = first.stat()
        self.assertEqual(converted(again, "f32", Phases()), first)
        self.assertEqual(first.stat().st_ino, made.st_ino)
        # Other weights give another file.
        weights = bytearray((again / "model.safetensors").read_bytes())
        weights[-100] ^= 1
        (again / "model.safetensors").write_bytes(weights)
        self.assertNotEqual(converted(again, "f32", Phases()), first)


if __name__ == "__main__":
    unittest.main()
