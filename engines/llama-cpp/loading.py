"""A load, phase by phase: the file, its weights, a context for requests. Imports llama.cpp's library."""

import llama_cpp.llama_cpp as bindings

import library
from engine_kit import Failed
from file import converted, gguf_in
from model import LlamaModel
from options import OWN
from processors import physical_cores
from room import Rooms
from text import Text

# llama.cpp's messages for a complete file that it does not support.
NOT_OFFERED = ("unknown model architecture", "unsupported", "not supported", "unknown pre-tokenizer")
NO_MEMORY = ("unable to allocate", "failed to allocate", "out of memory")


def load(request, options, phases):
    library.check_folder(options.library)
    wanted = None if request.dtype == OWN else request.dtype
    file = gguf_in(request.model)
    if file is None:
        file, wanted = convert(request.model, wanted, phases), None
    with phases.time("weights"):
        weights = Weights(file, options)
    if wanted is not None and weights.dtype() != wanted:
        # Checked only after the load, because the usual case reads the file once.
        weights.close()
        file = convert(file, wanted, phases)
        with phases.time("weights"):
            weights = Weights(file, options)
    context_tokens = context(request, weights)
    with phases.time("context"):
        rooms = Rooms(weights, options, request.threads or physical_cores(), context_tokens, request.context_tokens)
    return LlamaModel(weights, Text(weights), rooms, options, context_tokens)


def convert(path, dtype, phases):
    with phases.time("conversion"):
        return converted(path, dtype, phases)


class Weights:
    """llama.cpp's model: weights and vocabulary. Freed with the last reference."""

    def __init__(self, file, options):
        self.file, self.handle = file, None
        settings = bindings.llama_model_default_params()
        # An empty list of devices: a user's own library may also support a GPU.
        self._no_devices = (bindings.ctypes.c_void_p * 1)(None)
        settings.devices = bindings.ctypes.cast(self._no_devices, bindings.ctypes.c_void_p)
        settings.n_gpu_layers = 0
        settings.use_extra_bufts = options.repack
        library.forget()
        self.handle = bindings.llama_model_load_from_file(str(file).encode(), settings)
        if not self.handle:
            raise refused(file)
        self.vocabulary = bindings.llama_model_get_vocab(self.handle)
        self.vocabulary_size = bindings.llama_vocab_n_tokens(self.vocabulary)

    def dtype(self):
        """The dtype in this project's words: `q4_k` for llama.cpp's `Q4_K - Small`, `f32` for `all F32`."""
        name = bindings._lib.llama_ftype_name
        name.argtypes, name.restype = [bindings.ctypes.c_int], bindings.ctypes.c_char_p
        kind = bindings._lib.llama_model_ftype
        kind.argtypes, kind.restype = [bindings.ctypes.c_void_p], bindings.ctypes.c_int
        words = name(kind(self.handle)).decode().removeprefix("(guessed) ").removeprefix("all ")
        return words.split(" ")[0].lower()

    def metadata(self, key):
        buffer = bindings.ctypes.create_string_buffer(256)
        length = bindings.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None

    def close(self):
        if self.handle:
            bindings.llama_model_free(self.handle)
            self.handle = None

    def __del__(self):
        self.close()


def refused(file):
    why = library.why("llama.cpp does not say why")
    lower = why.lower()
    if any(sign in lower for sign in NO_MEMORY):
        return Failed("out_of_memory", f"`{file}`: {why}")
    if any(sign in lower for sign in NOT_OFFERED):
        return Failed("unsupported", f"`{file}`: {why}")
    return Failed("model", f"`{file}`: {why}", "fetch or copy this file again")


def context(request, weights):
    most = bindings.llama_model_n_ctx_train(weights.handle)
    asked = request.context_tokens
    if asked is not None and asked > most:
        raise Failed("context", f"`context_tokens`: {asked} is more than the {most} of model `{weights.file.name}`")
    return asked or most
