"""A stand-in for TensorRT-LLM in this engine's tests: the names, signatures and behaviour of release 1.2.1 that the
engine uses, over a made-up model. No line comes from the library.

`STAND_IN` configures its faults and the file of its calls, as JSON.
"""

import json
import os

SETTINGS = json.loads(os.environ.get("STAND_IN", "{}"))
FAULTS = SETTINGS.get("faults", [])

if "does_not_import" in FAULTS:
    raise ImportError("libmpi.so.40: cannot open shared object file: No such file or directory")

from . import llmapi
from .llmapi import LLM, SamplingParams

# The environment that every module of the process reads at its import.
llmapi.record_call(environment={name: os.environ.get(name) for name in SETTINGS.get("variables", [])})

if "no_generate_async" in FAULTS:
    del LLM.generate_async
if "another_argument" in FAULTS:

    def generate_async(self, prompt, sampling_params=None, streaming=False, *, deadline):
        raise AssertionError("a signature that differs is never called")

    LLM.generate_async = generate_async
if "fields_renamed" in FAULTS:
    llmapi.KvCacheConfig.model_fields = {"reuse_blocks": None, "max_tokens": None, "dtype": None}
    del llmapi.CudaGraphConfig
