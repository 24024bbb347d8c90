#!/usr/bin/env python3
"""The smallest engine: no kit, no model. It answers `generate`, and refuses every other request as unsupported."""
import json
import sys
import time


def answer(request, zero_ns):
    if request.get("type", "generate") != "generate":
        return {"type": "failed", "kind": "unsupported", "message": "this engine supports only `generate`"}
    prompt = request["prompt_ids"] if "prompt_ids" in request else list(request["prompt"].encode())
    iterations = []
    for _ in range(request.get("iterations", 1)):
        start_ns, ids, token_ns = time.perf_counter_ns() - zero_ns, [], []
        for _ in range(request.get("max_new_tokens", 32)):
            ids.append((sum(prompt) + sum(ids)) % 251)  # An engine runs its model here.
            token_ns.append(time.perf_counter_ns() - zero_ns)
        sequence = {"prompt_tokens": len(prompt), "output_ids": ids, "token_ns": token_ns, "finish": "length"}
        iterations.append({"start_ns": start_ns, "end_ns": time.perf_counter_ns() - zero_ns, "sequences": [sequence]})
    return {"type": "generated", "id": request.get("id"), "iterations": iterations}


for line in sys.stdin.buffer:
    zero_ns = time.perf_counter_ns()  # The whole line has been read: all times count from here.
    try:
        message = answer(json.loads(line), zero_ns)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = {"type": "failed", "kind": "bad_request", "message": f"invalid request: {error!r}"}
    print(json.dumps(message), flush=True)
