"""A load: makes the library's model of a converted folder, and reads the configuration in effect. Imports the library."""

import importlib.metadata
import json
import os
import platform

import onnxruntime_genai as genai

from engine_kit import Failed
from graph import read_graph
from model import OnnxModel, Special
from model_folder import DIMENSIONS


def load(request, folder, path, phases):
    with phases.time("graph"):
        graph = read_graph(path)
    special = Special(pad=folder.vocabulary_size - 1, end=folder.vocabulary_size - 2)
    with phases.time("weights"):
        threads_before = count_threads()
        model = make_model(path, special, request.threads)
        # The library starts its threads with the model. The calling thread computes too.
        threads = count_threads() - threads_before + 1
    facts = {
        "device": model.device_type.lower(),
        "weights_dtype": graph.weights_dtype,
        "compute_dtype": graph.compute_dtype,
        "kv_dtype": graph.kv_dtype,
        "architecture": folder.architecture,
        "threads": threads,
        "context_tokens": folder.context_tokens,
        "use_cache": True,
        "prefix_cache": False,
        "weights_bytes": graph.weights_bytes,
        "parameters": folder.parameters,
        "vocabulary_size": folder.vocabulary_size,
        "hidden_size": folder.sizes.hidden,
        "intermediate_size": folder.sizes.inner,
        **{name: getattr(folder.sizes, name) for name in DIMENSIONS if hasattr(folder.sizes, name)},
        "eos_ids": folder.eos_ids,
        "libraries": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("onnxruntime-genai", "onnxruntime")},
        },
        "file": os.fspath(path / "model.onnx"),
    }
    if folder.bos_id is not None:
        facts["bos_id"] = folder.bos_id
    return OnnxModel(folder, model, special, facts)


def make_model(path, special, threads):
    """The library's model. Without a number of threads, the library has one for each core."""
    settings = {"model": {"eos_token_id": [special.end], "pad_token_id": special.pad}}
    if threads is not None:
        settings["model"]["decoder"] = {"session_options": {"intra_op_num_threads": threads}}
    try:
        config = genai.Config(os.fspath(path))
        config.overlay(json.dumps(settings))
        return genai.Model(config)
    except RuntimeError as error:
        raise Failed("model", f"`{path}`: {str(error)[:300]}") from None


def count_threads():
    """The threads of this process. The library has no function for the number of its threads."""
    return len(os.listdir("/proc/self/task"))
