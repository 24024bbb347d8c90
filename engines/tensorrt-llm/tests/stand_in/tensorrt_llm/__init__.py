"""A stand-in for TensorRT-LLM in this engine's tests. It has the names, signatures and behaviour of release 1.2.1 that the
engine uses, and computes an invented model. No line is copied from the library.

The variable `STAND_IN` has the stand-in's settings as JSON: its faults, the file in which it records calls, and others.
"""

import json
import os

SETTINGS = json.loads(os.environ.get("STAND_IN", "{}"))
FAULTS = SETTINGS.get("faults", [])

if "import_error" in FAULTS:
    raise ImportError("libmpi.so.40: cannot open shared object file: No such file or directory")

from . import llmapi
from .llmapi import LLM, SamplingParams

# The values that these environment variables have when the library is imported.
llmapi.record_call(environment={name: os.environ.get(name) for name in SETTINGS.get("variables", [])})

if "no_generate_async" in FAULTS:
    del LLM.generate_async
if "other_arguments" in FAULTS:

    def generate_async(self, prompt, sampling_params=None, streaming=False, *, deadline):
        raise AssertionError("the engine called a method with an unexpected signature")

    LLM.generate_async = generate_async
if "renamed_fields" in FAULTS:
    llmapi.KvCacheConfig.model_fields = {"reuse_blocks": None, "max_tokens": None, "dtype": None}
    del llmapi.CudaGraphConfig
