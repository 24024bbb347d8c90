"""Loads of this engine's tests. The kit's `engine_tests` has what the tests of several engines share."""

import os
import sys
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ENGINE), str(ENGINE.parent / "kit" / "python")]

import engine_tests
from checkout import EMBEDDED
from worker import MistralRs

# The library reads these once in a process, so every load of these tests has the same ones.
THREADS, OPTIONS = 2, {"kv": "f32"}

# A worker's current folder is its own; a load writes into it.
os.chdir(engine_tests.scratch())


def load_model(model=EMBEDDED, dtype="f32", options=OPTIONS, threads=THREADS, **fields):
    return engine_tests.load(MistralRs(), model, options, dtype=dtype, threads=threads, **fields)
