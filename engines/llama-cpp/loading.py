"""A load: finds or converts the GGUF file, loads its weights and makes the first context. Imports llama.cpp's library."""

import llama_cpp.llama_cpp as bindings

import library
from context import Contexts
from engine_kit import Failed, choose_context
from gguf_model import convert, find_gguf
from model import LlamaModel, Tokenizer

# Parts of llama.cpp's messages: for a complete file that it does not support, and for too little memory.
UNSUPPORTED = ("unknown model architecture", "unsupported", "not supported", "unknown pre-tokenizer")
NO_MEMORY = ("unable to allocate", "failed to allocate", "out of memory")


def load(request, dtype, options, phases):
    """Loads the model in `dtype`; None keeps the model's own dtype."""
    library.check_folder(options.library)
    file = find_gguf(request.model)
    if file is None:
        file, dtype = convert(request.model, dtype, phases), None
    with phases.time("weights"):
        weights = Weights(file, options)
    if dtype is not None and weights.file_type() != dtype:
        # Checked after the load, so that a file in the requested dtype is read only once.
        weights.close()
        file = convert(file, dtype, phases)
        with phases.time("weights"):
            weights = Weights(file, options)
    max_tokens = check_context(request.context_tokens, weights)
    with phases.time("context"):
        # By default one thread for each core, as in llama.cpp's own programs.
        threads = request.threads or len(library.processors_by_core())
        contexts = Contexts(weights, options, threads, max_tokens, request.context_tokens)
    return LlamaModel(weights, Tokenizer(weights), contexts, options, max_tokens)


def check_context(requested, weights):
    """Returns the longest context of the load, and refuses a longer request. If llama.cpp ignores a sliding window, the limit is
    the window's length: up to there the window hides no token."""
    limit, window, reason = bindings.llama_model_n_ctx_train(weights.handle), weights.ignored_window(), ""
    if window is not None and window < limit:
        limit, reason = window, ": llama.cpp ignores its sliding window"
    return choose_context(requested, limit, weights.file.name, reason)


class Weights:
    """llama.cpp's model: weights and vocabulary. The last reference frees it."""

    def __init__(self, file, options):
        self.file, self.handle, self._dtype = file, None, None
        settings = bindings.llama_model_default_params()
        # The list of devices is empty, because a user's own library may support a GPU too.
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
        """The dtype of most bytes in the file. The file's own name of its type may be another one: rows that do not divide into
        its quantization blocks have a wider dtype."""
        if self._dtype is None:
            self._dtype = library.main_dtype(self.file)
        return self._dtype

    def ignored_window(self):
        """The tokens of the sliding window in the metadata if llama.cpp computes without it; else None."""
        window = self.metadata(f"{self.metadata('general.architecture')}.attention.sliding_window")
        is_ignored = bindings.llama_model_n_swa(self.handle) == 0
        return int(window) if is_ignored and window is not None and window.isdecimal() and int(window) > 0 else None

    def file_type(self):
        """The file's name of its type, in this project's words: `q4_k` for llama.cpp's `Q4_K - Small`, `f32` for `all F32`."""
        name_of = bindings._lib.llama_ftype_name
        name_of.argtypes, name_of.restype = [bindings.ctypes.c_int], bindings.ctypes.c_char_p
        file_type = bindings._lib.llama_model_ftype
        file_type.argtypes, file_type.restype = [bindings.ctypes.c_void_p], bindings.ctypes.c_int
        name = name_of(file_type(self.handle)).decode().removeprefix("(guessed) ").removeprefix("all ")
        return name.split(" ")[0].lower()

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
    cause = library.last_error()
    lower = cause.lower()
    if any(part in lower for part in NO_MEMORY):
        return Failed("out_of_memory", f"`{file}`: {cause}")
    if any(part in lower for part in UNSUPPORTED):
        return Failed("unsupported", f"`{file}`: {cause}")
    if "model vocabulary" in lower or "tokenizer.ggml" in lower:
        hint = "orchestrate model convert FOLDER --to gguf    # FOLDER has the original weights and `tokenizer.json`"
        cause = cause.removeprefix("error loading model vocabulary: ")
        return Failed("model", f"`{file}` has no tokenizer that llama.cpp can load: {cause}", hint)
    return Failed("model", f"`{file}`: {cause}", "fetch or copy this file again")
