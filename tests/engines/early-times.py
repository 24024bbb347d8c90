#!/usr/bin/env python3
"""An engine whose times are too early in answers without a stream, and that otherwise answers as a correct engine does.

`scripts/accusation-rates` fills in the words between `@`, and counts how often runs find the false times.
"""
import json
import subprocess
import sys

CLAIM = "@CLAIM@"
# A request that takes less than this is short.
SHORT_NS = int("@SHORT_NS@")
# The number of tokens that get one timestamp.
GROUP_TOKENS = 4


def make_early(iteration):
    start_ns, end_ns = iteration["start_ns"], iteration["end_ns"]
    is_short = end_ns - start_ns < SHORT_NS
    for sequence in iteration["sequences"]:
        times = sequence["token_ns"]
        if CLAIM == "halved_short_times" and is_short:
            times[:] = [start_ns + (ns - start_ns) // 2 for ns in times]
            iteration["end_ns"] = start_ns + (end_ns - start_ns) // 2
        if CLAIM == "early_first_token" and is_short:
            times[0] = start_ns + (times[0] - start_ns) * 3 // 4
            if len(times) == 1:
                iteration["end_ns"] = start_ns + (end_ns - start_ns) * 3 // 4
        if CLAIM == "grouped_times":
            times[:] = [times[index - index % GROUP_TOKENS] for index in range(len(times))]


engine = subprocess.Popen(["@ENGINE@"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for line in sys.stdin.buffer:
    request = json.loads(line)
    engine.stdin.write(line)
    engine.stdin.flush()
    while line := engine.stdout.readline():
        answer = json.loads(line)
        if answer["type"] == "generated" and not request.get("stream"):
            for iteration in answer["iterations"]:
                make_early(iteration)
            line = json.dumps(answer).encode() + b"\n"
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        if answer["type"] not in ("progress", "token"):
            break
    if answer["type"] == "bye":
        break
engine.stdin.close()
sys.exit(engine.wait())
