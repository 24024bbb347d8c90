"""Loads of this engine's tests. The kit's `engine_tests` has what the tests of several engines share."""

import os
import sys
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ENGINE), str(ENGINE.parent / "kit" / "python")]
# The library reads this variable at its import.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import engine_tests
from checkout import EMBEDDED, use_program
from worker import OnnxRuntime

use_program("onnxruntime-engine")


def load_model(model=EMBEDDED, dtype="f32", **fields):
    return engine_tests.load(OnnxRuntime(), model, dtype=dtype, **fields)


def load_converted(model, path, dtype="f32", threads=1):
    """Loads a model whose conversion is in the folder `path`."""
    return engine_tests.load_converted(OnnxRuntime(), "worker.convert", model, path, dtype=dtype, threads=threads)
