#!/usr/bin/env python3
"""An engine that may compute in other dtypes than it reports. One process scores in `SCORES`, a second one generates in
`GENERATES`, and a third one, in `REPORTS`, answers `load`."""
import json
import subprocess
import sys

ENGINE, OPTIONS = "@ENGINE@", json.loads('@OPTIONS@')
SCORES, GENERATES, REPORTS = "@SCORES@", "@GENERATES@", "@REPORTS@"


class Process:
    def __init__(self):
        self.child = subprocess.Popen([ENGINE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def answer(self, request):
        """Sends a request, and returns all lines up to its answer."""
        self.child.stdin.write(json.dumps(request).encode() + b"\n")
        self.child.stdin.flush()
        lines = []
        while line := self.child.stdout.readline():
            lines.append(line)
            if json.loads(line)["type"] not in ("progress", "token"):
                break
        return lines

    def load(self, request, dtype):
        return self.answer({**request, "dtype": dtype, "options": OPTIONS})


scores, generates, reports = Process(), Process(), Process()
for line in sys.stdin.buffer:
    request = json.loads(line)
    kind = request.get("type")
    if kind == "load":
        scores.load(request, SCORES)
        generates.load(request, GENERATES)
        lines = reports.load(request, REPORTS)
    elif kind == "generate":
        lines = generates.answer(request)
    elif kind == "shutdown":
        generates.answer(request)
        reports.answer(request)
        lines = scores.answer(request)
    else:
        lines = scores.answer(request)
    for line in lines:
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
