"""Compares the installed library with the interface that this engine uses.

Releases of the library rename fields and move arguments. With a wrong name a load would fail after minutes, or the
library would silently use a default. So this file lists every name that `library.py` requires. Each name must exist in
the installed library before a model is read.
"""

import dataclasses
import importlib
import inspect

# The release that this file describes. Another release runs too if it has the same names.
EXPECTED_VERSION = "1.2.1"

# The modules and names of the class `LLM` and of the class of its arguments, by backend.
LLM_CLASSES = {"pytorch": ("tensorrt_llm", "LLM"), "tensorrt": ("tensorrt_llm._tensorrt_engine", "LLM")}
ARGUMENT_CLASSES = {
    "pytorch": ("tensorrt_llm.llmapi", "TorchLlmArgs"),
    "tensorrt": ("tensorrt_llm.llmapi", "TrtLlmArgs"),
}

# The parameters of `LLM` itself. All other arguments are fields of the class of arguments.
LLM_PARAMETERS = ("model", "skip_tokenizer_init", "trust_remote_code", "tensor_parallel_size", "dtype")
COMMON_ARGUMENTS = ("kv_cache_config", "max_batch_size", "max_seq_len", "max_num_tokens", "enable_chunked_prefill")
ARGUMENTS = {
    "pytorch": (*COMMON_ARGUMENTS, "cuda_graph_config", "disable_overlap_scheduler", "stream_interval"),
    "tensorrt": (*COMMON_ARGUMENTS, "build_config"),
}

# The methods of `LLM`, and the parameters that this engine passes.
METHODS = {"generate_async": ("inputs", "sampling_params", "streaming"), "shutdown": ()}

# The fields that this engine sets or reads, by module and class. The classes are data classes or models of pydantic.
FIELDS = {
    ("tensorrt_llm", "SamplingParams"): (
        "end_id",
        "pad_id",
        "max_tokens",
        "stop_token_ids",
        "include_stop_str_in_output",
        "top_k",
        "top_p",
        "temperature",
        "seed",
        "ignore_eos",
        "detokenize",
        "return_context_logits",
    ),
    ("tensorrt_llm.llmapi", "KvCacheConfig"): ("enable_block_reuse", "free_gpu_memory_fraction", "max_tokens", "dtype"),
    ("tensorrt_llm.llmapi", "CompletionOutput"): ("token_ids", "finish_reason", "stop_reason"),
}
# More fields that this engine sets or reads, by backend.
BACKEND_FIELDS = {
    "pytorch": {("tensorrt_llm.llmapi", "CudaGraphConfig"): ("batch_sizes", "enable_padding")},
    "tensorrt": {
        ("tensorrt_llm.llmapi", "BuildConfig"): ("max_batch_size", "max_seq_len", "max_num_tokens", "gather_context_logits")
    },
}

# The methods and properties that this engine uses, by module and class.
ATTRIBUTES = {
    ("tensorrt_llm.llmapi", "CompletionOutput"): ("token_ids_diff",),
    ("tensorrt_llm.llmapi", "RequestOutput"): (
        "outputs", "finished", "context_logits", "abort", "aresult", "__aiter__", "__anext__"
    ),
}


def interface_differences(backend):
    """One line for each missing or changed name; empty if the installed library has the expected interface."""
    lines = []
    module, name = LLM_CLASSES[backend]
    llm = _class(module, name, lines)
    if llm is not None:
        lines += _call_differences(f"{name}.__init__", llm.__init__, LLM_PARAMETERS)
        for method, parameters in METHODS.items():
            lines += _call_differences(f"{name}.{method}", getattr(llm, method, None), parameters)
    fields = {**FIELDS, **BACKEND_FIELDS[backend], ARGUMENT_CLASSES[backend]: ARGUMENTS[backend]}
    for (module, name), expected in fields.items():
        lines += _field_differences(name, _class(module, name, lines), expected)
    for (module, name), expected in ATTRIBUTES.items():
        result_class = _class(module, name, lines)
        if result_class is not None:
            lines += [f"`{name}.{attribute}` is missing" for attribute in expected if not hasattr(result_class, attribute)]
    return lines


def _class(module, name, lines):
    """The class. If it is missing: None, and a new line in `lines`."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        line = f"`{module}.{name}` is missing"
        if line not in lines:
            lines.append(line)
        return None


def _call_differences(name, function, arguments):
    if function is None:
        return [f"`{name}` is missing"]
    parameters = dict(inspect.signature(function).parameters)
    parameters.pop("self", None)
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    lines = []
    for argument in arguments:
        parameter = parameters.get(argument)
        if parameter is None and not accepts_any or parameter is not None and parameter.kind is parameter.POSITIONAL_ONLY:
            lines.append(f"`{name}` takes no `{argument}`: it takes {_listed(parameters)}")
    for parameter in parameters.values():
        is_optional = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if parameter.default is parameter.empty and not is_optional and parameter.name not in arguments:
            lines.append(f"`{name}` needs `{parameter.name}`, which this engine does not pass")
    return lines


def _field_differences(name, data_class, expected):
    if data_class is None:
        return []
    fields = _field_names(data_class)
    return [f"`{name}` has no field `{field}`: it has {_listed(fields)}" for field in expected if field not in fields]


def _field_names(data_class):
    """The field names of a data class or a pydantic model."""
    if dataclasses.is_dataclass(data_class):
        return [field.name for field in dataclasses.fields(data_class)]
    return list(getattr(data_class, "model_fields", {}))


def _listed(names):
    """The first twelve names as text, and the number of the others."""
    names = [name for name in names if not name.startswith("_")]
    shown = ", ".join(f"`{name}`" for name in names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "") if shown else "none"
