"""A load, phase by phase: the file, its weights, a context for requests. Imports llama.cpp's library."""

import llama_cpp.llama_cpp as bindings

import library
from context import Contexts
from engine_kit import Failed
from file import convert, gguf_in
from model import LlamaModel, Text
from options import OWN_DTYPE
from processors import physical_cores

# llama.cpp's messages for a complete file that it does not support.
UNSUPPORTED = ("unknown model architecture", "unsupported", "not supported", "unknown pre-tokenizer")
NO_MEMORY = ("unable to allocate", "failed to allocate", "out of memory")


def load(request, options, phases):
    library.check_folder(options.library)
    dtype = None if request.dtype == OWN_DTYPE else request.dtype
    file = gguf_in(request.model)
    if file is None:
        file, dtype = converted(request.model, dtype, phases), None
    with phases.time("weights"):
        weights = Weights(file, options)
    if dtype is not None and weights.dtype() != dtype:
        # Checked after the load, so that the usual case reads the file only once.
        weights.close()
        file = converted(file, dtype, phases)
        with phases.time("weights"):
            weights = Weights(file, options)
    context_tokens = longest_context(request, weights)
    with phases.time("context"):
        contexts = Contexts(weights, options, request.threads or physical_cores(), context_tokens, request.context_tokens)
    return LlamaModel(weights, Text(weights), contexts, options, context_tokens)


def converted(path, dtype, phases):
    with phases.time("conversion"):
        return convert(path, dtype, phases)


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
        library.clear_messages()
        self.handle = bindings.llama_model_load_from_file(str(file).encode(), settings)
        if not self.handle:
            raise load_failure(file)
        self.vocabulary = bindings.llama_model_get_vocab(self.handle)
        self.vocabulary_size = bindings.llama_vocab_n_tokens(self.vocabulary)

    def dtype(self):
        """The dtype under this project's name: `q4_k` for llama.cpp's `Q4_K - Small`, `f32` for `all F32`."""
        name = bindings._lib.llama_ftype_name
        name.argtypes, name.restype = [bindings.ctypes.c_int], bindings.ctypes.c_char_p
        kind = bindings._lib.llama_model_ftype
        kind.argtypes, kind.restype = [bindings.ctypes.c_void_p], bindings.ctypes.c_int
        text = name(kind(self.handle)).decode().removeprefix("(guessed) ").removeprefix("all ")
        return text.split(" ")[0].lower()

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


def load_failure(file):
    cause = library.last_error("llama.cpp gives no reason")
    lower = cause.lower()
    if any(part in lower for part in NO_MEMORY):
        return Failed("out_of_memory", f"`{file}`: {cause}")
    if any(part in lower for part in UNSUPPORTED):
        return Failed("unsupported", f"`{file}`: {cause}")
    return Failed("model", f"`{file}`: {cause}", "fetch or copy this file again")


def longest_context(request, weights):
    limit = bindings.llama_model_n_ctx_train(weights.handle)
    requested = request.context_tokens
    if requested is not None and requested > limit:
        raise Failed("context", f"`context_tokens`: {requested} is more than the {limit} of model `{weights.file.name}`")
    return requested or limit
