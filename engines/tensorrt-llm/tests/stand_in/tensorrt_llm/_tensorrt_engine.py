"""The stand-in for the backend `tensorrt`, which builds a TensorRT engine."""

from types import SimpleNamespace

from . import SETTINGS, llmapi
from .llmapi import TrtLlmArgs


class LLM(llmapi.LLM):
    args_class = TrtLlmArgs

    def __init__(self, model, **kwargs):
        super().__init__(model, **kwargs)
        # The steps of a build, in seconds.
        steps = SETTINGS.get("build_steps", [["Loading HF model", 0.0001], ["Building TRT-LLM engine", 0.0002]])
        self.llm_build_stats = SimpleNamespace(build_steps_info=[tuple(step) for step in steps])
