"""Runs the engine's worker and times its calls of llama.cpp's `llama_decode`. At its end it writes, to the file that the first
argument names, a JSON list with the tokens and the nanoseconds of each call."""

import json
import os
import runpy
import sys
import time
from pathlib import Path

import llama_cpp.llama_cpp as bindings

WORKER = Path(__file__).resolve().parents[2] / "engines/llama-cpp/worker.py"

decode, exit_at_once, calls = bindings.llama_decode, os._exit, []


def timed_decode(context, batch):
    began = time.perf_counter_ns()
    code = decode(context, batch)
    calls.append((batch.n_tokens, time.perf_counter_ns() - began))
    return code


def exit_with_calls(code):
    Path(sys.argv[1]).write_text(json.dumps(calls))
    exit_at_once(code)


bindings.llama_decode = timed_decode
# The engine kit ends the worker in this way, without the exit hooks of Python.
os._exit = exit_with_calls
sys.path.insert(0, str(WORKER.parent))
runpy.run_path(str(WORKER), run_name="__main__")
