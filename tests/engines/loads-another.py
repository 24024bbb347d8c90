#!/usr/bin/env python3
"""An engine that loads another model than the requested one and otherwise answers correctly."""
import json
import subprocess
import sys

engine = subprocess.Popen(["@ENGINE@"], stdin=subprocess.PIPE)  # The engine writes to this program's stdout.
for line in sys.stdin.buffer:
    request = json.loads(line)
    if request.get("type") == "load":
        request["model"] = "@MODEL@"
    engine.stdin.write(json.dumps(request).encode() + b"\n")
    engine.stdin.flush()
engine.stdin.close()
sys.exit(engine.wait())
