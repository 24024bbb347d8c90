"""Opens a model folder with the kit's `model_folder`, and reads tensor headers and the sizes that limit requests.

This module reads only the config fields that its checks need, under the names that model families give them.
"""

import re

import model_folder
from engine_kit import Failed
from model_folder import FORMATS, INDEX, SINGLE_FILE, dimensions, first_integer, read_tensors

__all__ = ["FORMATS", "open_folder"]

# Each tuple has the names that model families give to one field of the config.
CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
HIDDEN_SIZE_FIELDS = ("hidden_size", "n_embd", "d_model")
LAYER_COUNT_FIELDS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")

# Matches the tensors of layers of the text model, not of an image or audio encoder.
LAYER_NUMBER = re.compile(r"(?:model\.|language_model\.|transformer\.|decoder\.|gpt_neox\.)*(?:layers|h)\.(\d+)\.")


def open_folder(path):
    """The result of `model_folder.open_folder`, with `tensors` and `dimensions`, and with `context_tokens`, `vocabulary_size` and
    `hidden_size`, each None if the config has none."""
    folder = model_folder.open_folder(path)
    if folder.architecture is None:
        raise Failed("model", f"`{folder.path / 'config.json'}`: `model_type` is missing")
    text_config = folder.config.get("text_config")
    text_config = text_config if isinstance(text_config, dict) else folder.config
    _refuse_quantized(folder.config, text_config)
    if not folder.is_indexed:
        folder.weights = [_single_file(folder)]
    folder.tensors = read_tensors(folder.weights)
    folder.context_tokens = first_integer(text_config, CONTEXT_FIELDS)
    folder.vocabulary_size = first_integer(text_config, ("vocab_size",))
    folder.hidden_size = first_integer(text_config, HIDDEN_SIZE_FIELDS)
    folder.dimensions = dimensions(text_config)
    _check_layers(folder, text_config)
    _check_ids(folder)
    return folder


def _refuse_quantized(*configs):
    """Refuses quantized weights: `transformers` would load them with a library that the facts of the load do not name."""
    for config in configs:
        if (quantization := config.get("quantization_config")) is not None:
            method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
            message = f"`config.json`: the weights are already quantized (`{str(method)[:80]}`), and this engine loads only unquantized weights"
            raise Failed("unsupported", message, "load the folder of the original weights, with `--set quantize=int4`")


def _check_layers(folder, text_config):
    """Refuses tensors of more layers than the config has: `transformers` would ignore the additional layers silently."""
    layers = first_integer(text_config, LAYER_COUNT_FIELDS)
    # Models with encoder and decoder count their layers separately.
    if layers is None or "decoder_layers" in text_config:
        return
    field = next(name for name in LAYER_COUNT_FIELDS if text_config.get(name) is not None)
    # Layers for multi-token prediction follow the others, and plain decoding does not use them.
    prediction_layers = text_config.get("num_nextn_predict_layers")
    max_layers = layers + (prediction_layers if type(prediction_layers) is int else 0)
    for number in sorted({int(match[1]) for name in folder.tensors if (match := LAYER_NUMBER.match(name))}):
        if number >= max_layers:
            raise Failed("model", f"model `{folder.name}` has tensors of layer {number}, and `{field}` is {layers}")


def _check_ids(folder):
    """Checks BOS and EOS ids: an EOS beyond the vocabulary never occurs, and a BOS beyond it has no embedding."""
    size = folder.vocabulary_size
    for field, ids in (("bos_token_id", [folder.bos_id]), ("eos_token_id", folder.eos_ids)):
        for id in ids:
            if None not in (size, id) and id >= size:
                raise Failed("model", f"model `{folder.name}`: `{field}` {id} is outside its vocabulary of {size} tokens")


def _single_file(folder):
    """The weight file of a folder without an index. `transformers` opens no file of another name."""
    if folder.path / SINGLE_FILE not in folder.weights:
        name = folder.weights[0].name
        raise Failed("model", f"`{folder.path}` has `{name}`, but neither `{SINGLE_FILE}` nor `{INDEX}`")
    return folder.path / SINGLE_FILE
