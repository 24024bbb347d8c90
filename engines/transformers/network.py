"""Hugging Face's model from a folder: the class that its config names, with weights only from the folder."""

import logging
import warnings

import torch
import transformers
from transformers import AutoConfig, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from devices import requested_bytes
from engine_kit import Failed

ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash": "sdpa"}

# These warn of deprecations in the libraries, and of choices that are deliberate here.
for category in (DeprecationWarning, FutureWarning, UserWarning):
    warnings.filterwarnings("ignore", category=category)
for name in ("torch", "torchao", "transformers"):
    logging.getLogger(name).setLevel(logging.ERROR)


def read_config(folder):
    """The config as `transformers` reads it, and the class of the network."""
    architecture = folder.architecture
    if architecture not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        fault = f"transformers {transformers.__version__} has no causal language model of that name"
        raise Failed("unsupported", f"architecture `{architecture[:80]}`: {fault}")
    try:
        config = AutoConfig.from_pretrained(folder.path, local_files_only=True, trust_remote_code=False)
        network = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except Exception as error:
        # The library checks a config only by computing with it, so any exception is possible.
        raise broken_config(folder, error) from None
    return config, network


def read_network(folder, config, network, dtype, options, **placement):
    """The network in evaluation mode, with every tensor from the folder."""
    try:
        loaded, report = network.from_pretrained(
            folder.path,
            config=config,
            dtype=dtype,
            attn_implementation=ATTENTION[options.attention],
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            # Without this the library lists them on stderr; here the message names the first.
            ignore_mismatched_sizes=True,
            **placement,
        )
    except Exception as error:
        if isinstance(error, MemoryError) or requested_bytes(error) is not None:
            raise
        if "attention" in str(error) and "support" in str(error):
            message = f"attention `{options.attention}` of architecture `{folder.architecture}`: {one_line(error)}"
            raise Failed("unsupported", message, "--set attention=eager") from None
        try:
            with torch.device("meta"):
                network(config)
        except Exception as fault:
            raise broken_config(folder, fault) from None
        raise Failed("model", f"model `{folder.name}`: {with_class(error)}") from None
    if report["mismatched_keys"]:
        raise Failed("model", shape_difference(folder, *min(report["mismatched_keys"])))
    # `transformers` would fill missing weights with random numbers.
    if missing := sorted(report["missing_keys"]):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Failed("model", f"model `{folder.name}` has no tensor `{missing[0]}`{more}")
    if report["error_msgs"]:
        raise Failed("model", f"model `{folder.name}`: {report['error_msgs'][0][:300]}")
    # The generation settings of the folder are dropped: a request states its own.
    loaded.generation_config = GenerationConfig()
    return loaded.eval().requires_grad_(False)


def shape_difference(folder, name, found, expected):
    """The config field that causes a mismatch, if known; else the tensor and both shapes."""
    rows = {tensor.shape[0] for name, tensor in folder.tensors.items() if "embed" in name or "wte" in name}
    if folder.vocabulary_size and rows and folder.vocabulary_size not in rows:
        return f"model `{folder.name}`: its `vocab_size` is {folder.vocabulary_size}, and its embedding has {max(rows)} rows"
    return f"tensor `{name}`: expected the shape {list(expected)}, found {list(found)}"


def broken_config(folder, error):
    return Failed("model", f"`{folder.path / 'config.json'}`: {with_class(error)}")


def with_class(error):
    """The message of an error with its class: that of a `KeyError` is only a key."""
    text = one_line(error)
    return text if text == type(error).__name__ else f"{type(error).__name__}: {text}"


def one_line(error):
    # Compilers append advice on debugging.
    text = " ".join(str(error).partition("Set TORCHDYNAMO_VERBOSE")[0].split())
    return (text or type(error).__name__)[:300]
