"""A load: converts the model, compiles it with OpenVINO GenAI, and reads back the configuration in effect. Imports OpenVINO."""

import ctypes
import importlib.metadata
import os
import platform
import re
import sys
import tempfile
from contextlib import contextmanager
from types import SimpleNamespace

import openvino
import openvino_genai

import checkpoint
import conversion
import convert
from engine_kit import Failed, package_version
from model import OpenVINOModel

# GenAI prints the properties of a compiled model at this level of its log, and has no function that returns them.
LOG_VARIABLE, LOG_LEVEL = "OPENVINO_LOG_LEVEL", "2"

# The line before the properties of the language model in GenAI's log.
PROPERTIES_HEADING = "Model: LLM with Paged Attention"

# A line of the description of constants in a converted model.
CONSTANT = re.compile(r'<data element_type="(\w+)"[^>]* size="(\d+)"')

# The names of OpenVINO's types for weights, in this project's words. f16 is the exporter's file format for `bf16`.
WEIGHT_DTYPES = {"f32": "f32", "f16": "bf16", "i8": "int8", "u8": "int8", "i4": "int4", "u4": "int4"}


def load(request, dtype, folder, options, phases):
    """Loads the model in `dtype`; with None OpenVINO chooses between bf16 and f32."""
    dtype = resolve_dtype(dtype)
    converted = convert_folder(folder, dtype, phases)
    with phases.time("compile"):
        pipeline, properties = compile_model(converted, dtype, options, request.threads)
    facts = read_facts(folder, converted, properties)
    check_in_effect(facts, dtype, options)
    return OpenVINOModel(folder, pipeline, facts)


def resolve_dtype(requested):
    """The dtype of the load. `bf16` needs instructions of the processor: without them OpenVINO would compute in f32."""
    has_bf16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if requested is None:
        return "bf16" if has_bf16 else "f32"
    if requested == "bf16" and not has_bf16:
        message = "dtype `bf16`: this processor has no bf16 instructions, and OpenVINO would compute in f32"
        raise Failed("unsupported", message, "--dtype f32")
    return requested


def convert_folder(folder, dtype, phases):
    """The folder of the model as OpenVINO's exporter writes it. It is converted once, and kept in the cache of conversions."""
    versions = " ".join(f"{name} {package_version('openvino', name)}" for name in convert.PACKAGES)
    command = [sys.executable, "-s", convert.__file__, folder.path.resolve(), dtype]
    return conversion.convert(folder.path, "openvino", dtype, f"{versions}; rules {convert.RULES}", command, phases)


def compile_model(converted, dtype, options, threads):
    """The pipeline, and the properties of its compiled model as OpenVINO reports them."""
    properties = {}
    if threads is not None:
        properties = {"INFERENCE_NUM_THREADS": threads, "sampler_num_threads": threads}
    precision = dtype if dtype in ("f32", "bf16") else options.precision
    if precision is not None:
        properties["INFERENCE_PRECISION_HINT"] = precision
    kv = options.kv or ("f32" if dtype == "f32" else None)
    if kv is not None:
        properties["KV_CACHE_PRECISION"] = kv
    with captured_log() as log:
        try:
            pipeline = openvino_genai.ContinuousBatchingPipeline(converted, scheduler(), "CPU", properties)
        except RuntimeError as error:
            raise load_failure(converted, options, error) from None
    return pipeline, parse_properties(log.text)


def scheduler():
    """The scheduler of `LLMPipeline`, GenAI's simplest interface, except that it keeps no prefix of earlier requests: a prompt is
    computed in one step, and the KV cache grows as needed."""
    config = openvino_genai.SchedulerConfig()
    config.max_num_batched_tokens = sys.maxsize
    config.enable_prefix_caching = False
    config.cache_size = 0
    return config


def load_failure(converted, options, error):
    text = " ".join(str(error).split())[-400:]
    if options.kv is not None and "cache_type" in str(error):
        message = f"option `kv`: OpenVINO has no kernel for keys and values in `{options.kv}` with this precision of the arithmetic"
        return Failed("unsupported", message, "leave the option `kv` out")
    if "bad_alloc" in text or "allocate" in text:
        return Failed("out_of_memory", f"`{converted}`: {text}")
    return Failed("model", f"`{converted}`: {text}", "orchestrate model cache --clear    # if the conversion is incomplete")


@contextmanager
def captured_log():
    """Sets the level of GenAI's log, and collects what the process prints on stdout; afterwards `text` has it."""
    log, previous = SimpleNamespace(text=""), os.environ.get(LOG_VARIABLE)
    stdout = os.dup(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        os.environ[LOG_VARIABLE] = LOG_LEVEL
        try:
            yield log
        finally:
            ctypes.CDLL(None).fflush(None)
            os.dup2(stdout, 1)
            os.close(stdout)
            del os.environ[LOG_VARIABLE]
            if previous is not None:
                os.environ[LOG_VARIABLE] = previous
            file.seek(0)
            log.text = file.read().decode("utf-8", "replace")


def parse_properties(log):
    """The properties of the compiled language model in GenAI's log."""
    _, _, lines = log.partition(PROPERTIES_HEADING + "\n")
    properties = {}
    for line in lines.splitlines():
        name, separator, value = line.strip().partition(":")
        if not line.startswith("  ") or not separator:
            break
        properties[name] = value.strip()
    if "INFERENCE_PRECISION_HINT" not in properties:
        raise Failed("internal", "OpenVINO GenAI has not reported the properties of the compiled model")
    return properties


def read_facts(folder, converted, properties):
    weights_dtype, weights_bytes = weights_of(converted)
    facts = {
        "device": properties["EXECUTION_DEVICES"].lower(),
        "weights_dtype": weights_dtype,
        "compute_dtype": properties["INFERENCE_PRECISION_HINT"],
        "kv_dtype": kv_dtype(properties),
        "threads": int(properties["INFERENCE_NUM_THREADS"]),
        "use_cache": True,
        "prefix_cache": False,
        "weights_bytes": weights_bytes,
        **checkpoint.facts(folder),
        "libraries": library_versions(),
        "attention": "paged",
        "dynamic_quantization_group_size": int(properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"]),
        "pinned_threads": properties["ENABLE_CPU_PINNING"] == "YES",
        "instructions": properties.get("RUNTIME_REQUIREMENTS", "").rpartition("isa=")[2],
        "folder": str(converted),
    }
    return facts


def kv_dtype(properties):
    """The dtype of keys and of values, which OpenVINO reports separately."""
    keys, values = properties["KEY_CACHE_PRECISION"], properties["VALUE_CACHE_PRECISION"]
    return keys if keys == values else f"{keys}, {values}"


def check_in_effect(facts, dtype, options):
    """Refuses a load in another configuration than the requested one."""
    expected = {"weights_dtype": dtype, "kv_dtype": options.kv, "compute_dtype": options.precision}
    if dtype in ("f32", "bf16"):
        expected["compute_dtype"] = dtype
    for name, value in expected.items():
        if value is not None and facts[name] != value:
            raise Failed("unsupported", f"`{name}`: `{value}` was requested, and OpenVINO uses `{facts[name]}` on this processor")


def weights_of(converted):
    """The dtype of most bytes of the constants in the converted model, and the bytes of all."""
    totals = {}
    for element_type, size in CONSTANT.findall((converted / "openvino_model.xml").read_text("utf-8")):
        totals[element_type] = totals.get(element_type, 0) + int(size)
    main_type = max(totals, key=totals.__getitem__)
    return WEIGHT_DTYPES.get(main_type, main_type), sum(totals.values())


def library_versions():
    versions = {name: importlib.metadata.version(name) for name in ("openvino-genai", "openvino", *convert.PACKAGES)}
    return {"python": platform.python_version(), **versions}
