"""Reads mistral.rs's log. It has the only statements of the library about the dtypes in effect. Some lines come only once in a
process, so the lines of all loads are kept."""

import os
import re
import sys
import threading
from contextlib import contextmanager

# The colours of the log.
COLOURS = re.compile(rb"\x1b\[[0-9;]*m")


# The lines of all loads of this process.
all_lines = []


@contextmanager
def captured(lines):
    """Appends to `lines`, and to `all_lines`, what the library writes to its stdout meanwhile. The lines go to stderr too."""
    reader, writer = os.pipe()
    stdout = os.dup(1)
    os.dup2(writer, 1)
    os.close(writer)
    thread = threading.Thread(target=_read, args=(reader, lines), daemon=True)
    thread.start()
    try:
        yield
    finally:
        # The last writer closes here, which ends the thread.
        os.dup2(stdout, 1)
        os.close(stdout)
        thread.join()
        all_lines.extend(lines)


def _read(reader, lines):
    with os.fdopen(reader, "rb") as pipe:
        for line in pipe:
            text = COLOURS.sub(b"", line).decode("utf-8", "replace")
            lines.append(text.rstrip("\n"))
            sys.stderr.write(text)
    sys.stderr.flush()


def find(lines, pattern):
    """The first group of the pattern in the first line that has it; None if no line has it."""
    return next((found[1] for line in lines if (found := re.search(pattern, line))), None)
