"""Loads of this engine's tests. The kit's `engine_tests` has what the tests of several engines share."""

import sys
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ENGINE), str(ENGINE.parent / "kit" / "python")]

import engine_tests
from checkout import EMBEDDED, use_program
from worker import CTranslate2

use_program("ctranslate2-engine")


def load_model(model=EMBEDDED, dtype="f32", **fields):
    return engine_tests.load(CTranslate2(), model, dtype=dtype, **fields)


def load_converted(model, path, dtype="f32", threads=1):
    """Loads a model whose conversion is in the folder `path`."""
    return engine_tests.load_converted(CTranslate2(), "worker.convert", model, path, dtype=dtype, threads=threads)
