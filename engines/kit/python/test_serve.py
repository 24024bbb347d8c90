"""Tests the kit as a process: its stdin, its stdout, and its end."""

import json
import os
import select
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from engine_kit_wire import MAX_LINE_BYTES
from toy_engine import HANGS, PRINTS

TOY = Path(__file__).resolve().with_name("toy_engine.py")
ENVIRONMENT = {**os.environ, "ORCHESTRATE_MODEL": str(TOY.parent)}


def start(**options):
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return subprocess.Popen([sys.executable, str(TOY)], env=ENVIRONMENT, **{**pipes, **options})


def run_engine(data):
    """Runs the engine with `data` on its stdin. Returns its messages, its stderr and its exit code."""
    engine = start()
    stdout, stderr = engine.communicate(data, timeout=60)
    return [json.loads(line) for line in stdout.splitlines()], stderr.decode(), engine.returncode


class EngineProcess(unittest.TestCase):
    def test_an_unreadable_stdin_ends_the_engine(self):
        folder = os.open(TOY.parent, os.O_RDONLY)
        self.addCleanup(os.close, folder)
        engine = start(stdin=folder)
        self.addCleanup(engine.kill)
        self.assertEqual(engine.communicate(timeout=60)[0], b"")

    def start_with(self, request):
        """An engine that has received a request. The test closes the engine's stdout."""
        engine = start()
        self.addCleanup(engine.stderr.close)
        self.addCleanup(engine.stdin.close)
        engine.stdin.write(request)
        engine.stdin.flush()
        return engine

    def test_a_request_gets_one_line_and_a_summary_on_stderr(self):
        (answer,), stderr, code = run_engine(b'{"prompt":"Hello","iterations":50}\n')
        self.assertEqual((answer["type"], len(answer["iterations"]), code), ("generated", 50, 0))
        self.assertIn("50 iterations, 1600 tokens; first token ", stderr)
        self.assertIn("load_ns", answer["loaded"])

    def test_a_last_line_without_a_newline_is_answered(self):
        (answer,), _, code = run_engine(b'{"prompt":"Hello"}')
        self.assertEqual((answer["type"], code), ("generated", 0))

    def test_output_printed_by_the_engine_goes_to_stderr(self):
        messages, stderr, _ = run_engine(b'{"prompt_ids":[%d]}\n' % PRINTS)
        self.assertEqual([message["type"] for message in messages], ["generated"])
        self.assertIn("output before the first request", stderr)
        self.assertIn("library output\n", stderr)

    def test_invalid_lines_are_answered_once_each_and_the_engine_continues(self):
        too_long, not_utf8 = b"a" * (MAX_LINE_BYTES + 1), bytes(range(128, 256))
        lines = [b'<"prompt":"Hello","iterations":50}', b"", too_long, not_utf8, b'{"iterations":-1}']
        messages, _, code = run_engine(b"\n".join([*lines, b'{"type":"shutdown"}', b'{"prompt":"never"}']) + b"\n")
        self.assertEqual([message["type"] for message in messages], ["failed"] * 5 + ["bye"])
        self.assertEqual(messages[0]["message"], "column 1: expected `{`, found `<`")
        self.assertEqual(code, 0)

    def test_an_engine_without_input_ends_without_an_answer(self):
        messages, _, code = run_engine(b"")
        self.assertEqual((messages, code), ([], 0))

    def test_an_answer_without_a_reader_ends_the_engine(self):
        engine = start()
        engine.stdout.close()
        _, stderr = engine.communicate(b'{"type":"facts"}\n', timeout=60)
        self.assertEqual(engine.returncode, 1)
        self.assertIn(b"cannot write answers", stderr)

    def test_a_running_request_ends_when_the_reader_closes_the_pipe(self):
        engine = self.start_with(b'{"prompt_ids":[%d]}\n' % HANGS)
        for line in engine.stderr:
            if line == b"hanging\n":
                break
        engine.stdout.close()
        self.assertEqual(engine.wait(timeout=60), 1)
        self.assertEqual(engine.stderr.read(), b"error: cannot write answers: Broken pipe\n")

    def test_a_pipe_closed_after_the_answer_is_no_error(self):
        engine = self.start_with(b'{"prompt_ids":[5]}\n')
        self.assertIn(b'"generated"', engine.stdout.readline())
        engine.stdout.close()
        engine.stdin.close()
        self.assertEqual(engine.wait(timeout=60), 0)
        self.assertNotIn(b"cannot write", engine.stderr.read())

    @unittest.skipUnless(sys.platform == "linux", "parent death signals are Linux's")
    def test_an_engine_ends_with_the_process_that_started_it(self):
        # The engine's stdin stays open, so that only the end of its parent can end the engine.
        reader, writer = os.pipe()
        self.addCleanup(os.close, writer)
        script = (
            "import os, signal, subprocess, sys\n"
            f"streams = dict(stdin={reader}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)\n"
            f"engine = subprocess.Popen([sys.executable, {str(TOY)!r}], **streams)\n"
            "engine.stdout.readline()\n"
            "print(engine.pid, flush=True)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        os.write(writer, b'{"type":"facts"}\n')
        parent = subprocess.run(
            [sys.executable, "-c", script], env=ENVIRONMENT, stdout=subprocess.PIPE, timeout=60, pass_fds=[reader]
        )
        os.close(reader)
        self.assertEqual(parent.returncode, -signal.SIGKILL)
        wait_for_end(int(parent.stdout))


def wait_for_end(pid):
    """Returns when the process has ended, and fails after a minute."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([process], [], [], 60)
        if not ended:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"process {pid} still runs")
    finally:
        os.close(process)
