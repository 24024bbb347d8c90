"""Opens a model folder with the kit's `model_folder`, and refuses folders that the exporter would read in another way than their
config states. Imports no heavy library, so that a broken folder is reported before any conversion."""

import re

import model_folder
from engine_kit import Failed, check_offered
from model_folder import FORMATS, INDEX, SINGLE_FILE, dimensions, first_integer, read_tensors, refuse_second_output_matrix

__all__ = ["ARCHITECTURES", "FORMATS", "open_folder"]

# The architectures whose conversions are compared with the reference in the tests. The exporter reads more, but it refuses `gemma`
# with this version of transformers.
ARCHITECTURES = ["llama", "mistral", "qwen2", "qwen3", "phi3", "gpt2"]

# Each tuple has the names that architectures give to one field of the config.
CONTEXT_FIELDS = ("max_position_embeddings", "n_positions")
HIDDEN_SIZE_FIELDS = ("hidden_size", "n_embd")
LAYER_COUNT_FIELDS = ("num_hidden_layers", "n_layer")

# Matches the number of a layer in the name of a tensor.
LAYER_NUMBER = re.compile(r"(?:model\.|transformer\.)?(?:layers|h)\.(\d+)\.")


def open_folder(path):
    """The result of `model_folder.open_folder`, with `tensors`, `dimensions`, `is_tied`, `context_tokens`,
    `vocabulary_size` and `hidden_size`."""
    folder = model_folder.open_folder(path)
    if folder.architecture is None:
        raise Failed("model", f"`{folder.path / 'config.json'}`: `model_type` is missing")
    check_offered("architecture", folder.architecture, ARCHITECTURES)
    _refuse_quantized(folder.config)
    if not folder.is_indexed:
        folder.weights = [_single_file(folder)]
    folder.tensors = read_tensors(folder.weights)
    folder.context_tokens = _required(folder.config, CONTEXT_FIELDS)
    folder.vocabulary_size = _required(folder.config, ("vocab_size",))
    folder.hidden_size = _required(folder.config, HIDDEN_SIZE_FIELDS)
    folder.dimensions = dimensions(folder.config)
    _check_layers(folder)
    folder.is_tied = _is_tied(folder)
    if folder.is_tied:
        refuse_second_output_matrix(folder)
    return folder


def _is_tied(folder):
    # GPT-2's output matrix is the embedding unless its config states otherwise.
    tied = folder.config.get("tie_word_embeddings", folder.architecture == "gpt2")
    return tied is not False


def _refuse_quantized(config):
    if (quantization := config.get("quantization_config")) is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        message = f"`config.json`: the weights are already quantized (`{str(method)[:80]}`), and this engine converts only unquantized weights"
        raise Failed("unsupported", message, "load the folder of the original weights, with `--dtype int4`")


def _check_layers(folder):
    """Refuses tensors of more layers than the config has: the exporter would ignore the additional layers silently."""
    layers = _required(folder.config, LAYER_COUNT_FIELDS)
    field = next(name for name in LAYER_COUNT_FIELDS if folder.config.get(name) is not None)
    for number in sorted({int(match[1]) for name in folder.tensors if (match := LAYER_NUMBER.match(name))}):
        if number >= layers:
            raise Failed("model", f"model `{folder.name}` has tensors of layer {number}, and `{field}` is {layers}")


def _required(config, names):
    value = first_integer(config, names)
    if value is None:
        raise Failed("model", f"`config.json`: `{names[0]}` is missing")
    return value


def _single_file(folder):
    """The weight file of a folder without an index. The exporter opens no file of another name."""
    if folder.path / SINGLE_FILE not in folder.weights:
        name = folder.weights[0].name
        raise Failed("model", f"`{folder.path}` has `{name}`, but neither `{SINGLE_FILE}` nor `{INDEX}`")
    return folder.path / SINGLE_FILE
