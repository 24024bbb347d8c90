"""A model folder as this engine needs it: beside what every Python engine reads of one, the tensors in its files, and the
sizes that requests are checked against. What an architecture is, `transformers` knows; here only those words of a config
are read that every architecture has.
"""

import model_folder
from engine_kit import Failed
from model_folder import FORMATS, INDEX, WHOLE, first_whole, read_tensors

__all__ = ["FORMATS", "open_folder"]

# What the same thing is called in configs of different families.
CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
HIDDEN = ("hidden_size", "n_embd", "d_model")


def open_folder(path):
    """What `model_folder.open_folder` gives, and `tensors`, `context_tokens` (None where the config does not say),
    `vocabulary_size`, `hidden_size`."""
    folder = model_folder.open_folder(path)
    if folder.architecture is None:
        raise Failed("model", f"`{folder.path / 'config.json'}`: `model_type` is missing")
    if not folder.is_indexed:
        folder.weights = [_whole(folder)]
    text = folder.config.get("text_config")
    text = text if isinstance(text, dict) else folder.config
    folder.tensors = read_tensors(folder.weights)
    folder.context_tokens = first_whole(text, CONTEXT)
    folder.vocabulary_size = first_whole(text, ("vocab_size",))
    folder.hidden_size = first_whole(text, HIDDEN)
    return folder


def _whole(folder):
    """`transformers` opens a file of this name, or an index, and nothing else."""
    if folder.path / WHOLE not in folder.weights:
        found = folder.weights[0].name
        raise Failed("model", f"`{folder.path}` has `{found}`, and neither `{WHOLE}` nor `{INDEX}`")
    return folder.path / WHOLE
