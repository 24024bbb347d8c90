"""A model folder for this engine: the common reading of Python engines, restricted to one weight file or an index,
and the network's shape.
"""

import model_folder
from engine_kit import Failed
from model_folder import FORMATS, INDEX, SINGLE_FILE
from shape import read_shape

__all__ = ["FORMATS", "open_folder"]


def open_folder(path):
    """The result of `model_folder.open_folder`, with `shape` and `context_tokens`."""
    folder = model_folder.open_folder(path)
    if not folder.is_indexed:
        folder.weights = [_only(folder)]
    folder.shape = read_shape(folder.config)
    folder.architecture = folder.shape.architecture
    folder.context_tokens = folder.shape.context_tokens
    return folder


def _only(folder):
    single_file, files = folder.path / SINGLE_FILE, folder.weights
    if len(files) > 1 and single_file not in files:
        raise Failed("model", f"{len(files)} safetensors files and no `{INDEX}` in `{folder.path}`")
    return single_file if single_file in files else files[0]
