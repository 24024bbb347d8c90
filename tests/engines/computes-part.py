#!/usr/bin/env python3
"""An engine that computes only a part of some prompts, and otherwise answers as a correct engine does."""
import json
import subprocess
import sys

PARTS = {
    "half": lambda ids: ids[len(ids) // 2 :],
    "start-and-half": lambda ids: ids[:4] + ids[len(ids) // 2 :],
    "last-200": lambda ids: ids[-200:],
    "last-64": lambda ids: ids[-64:],
}
KINDS = {
    "all": lambda ids: True,
    "text": lambda ids: not repeats_an_id(ids),
    "patterns": lambda ids: repeats_an_id(ids),
}


def repeats_an_id(ids):
    """Whether one id is repeated after the middle. Text has no such repetition."""
    middle = len(ids) * 9 // 16
    return len(ids) >= 32 and len(set(ids[middle : middle + 3])) == 1


part, is_partial = PARTS["@PART@"], KINDS["@KIND@"]
engine = subprocess.Popen(["@ENGINE@"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for line in sys.stdin.buffer:
    request = json.loads(line)
    ids = request.get("prompt_ids")
    if request.get("type") == "generate" and ids and is_partial(ids):
        request["prompt_ids"] = part(ids)
    engine.stdin.write(json.dumps(request).encode() + b"\n")
    engine.stdin.flush()
    while line := engine.stdout.readline():
        answer = json.loads(line)
        for iteration in answer.get("iterations", []):
            for sequence in iteration["sequences"]:
                sequence["prompt_tokens"] = len(ids)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        if answer["type"] not in ("progress", "token"):
            break
    if answer["type"] == "bye":
        break
engine.stdin.close()
sys.exit(engine.wait())
