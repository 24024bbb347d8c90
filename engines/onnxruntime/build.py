"""Converts a model folder to an ONNX graph, by the builder of ONNX Runtime GenAI: build.py MODEL PRECISION ACCURACY_LEVEL OUT

This script is a process of its own, because the builder imports PyTorch and `transformers`, which the worker does not need.
"""

import os
import runpy
import sys
import tempfile
from pathlib import Path

# The folder has everything, so that the builder needs no network.
os.environ["HF_HUB_OFFLINE"] = "1"

import transformers


class NoTokenizer:
    """Takes the place of the tokenizer. The engine uses the tokenizer of the original folder, so a model without a tokenizer, or
    with a broken one, still answers requests in ids."""

    def get_vocab(self):
        return {}

    def save_pretrained(self, folder):
        pass


def main(model, precision, accuracy_level, out):
    transformers.AutoTokenizer.from_pretrained = lambda *_, **__: NoTokenizer()
    with tempfile.TemporaryDirectory(dir=Path(out).parent) as temporary:
        options = ["hf_token=false"] + ([] if precision == "fp32" else [f"accuracy_level={accuracy_level}"])
        arguments = ["-i", model, "-o", out, "-p", precision, "-e", "cpu", "-c", temporary, "--extra_options", *options]
        sys.argv = ["builder", *arguments]
        runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
