"""llama.cpp's library: its log messages, its build, and ggml's thread pool.

This module imports the bindings, so the engine imports it only during a load.
"""

import collections
import ctypes
import importlib.metadata
import os
import platform
import sys
from pathlib import Path

import llama_cpp.llama_cpp as bindings

from engine_kit import Failed

# Log levels of ggml.h that the bindings lack. A CONTINUED text continues the previous message.
WARNING, CONTINUED = 3, 5

# The most threads that ggml.h allows. A thread pool's mask of processors has this length too.
MAX_THREADS = 512

# The folder of this process' library. Another library needs another process.
FOLDER = Path(os.environ.get("LLAMA_CPP_LIB_PATH") or Path(bindings.__file__).parent / "lib").resolve()

_messages = collections.deque(maxlen=32)
_last_level = 0


@bindings.llama_log_callback
def _log(level, text, _):
    """Keeps warnings and errors, and prints them on stderr; stdout belongs to the protocol."""
    global _last_level
    text = text.decode("utf-8", "replace")
    if level == CONTINUED:
        level = _last_level
        if level >= WARNING and _messages:
            _messages[-1] += text
    elif level >= WARNING:
        _messages.append(text)
    _last_level = level
    if level >= WARNING:
        sys.stderr.write(text)


bindings.llama_log_set(_log, None)
bindings.llama_backend_init()


def clear_messages():
    _messages.clear()


def last_error():
    """The last message of the library that gives a reason, without the name of the function that logged it."""
    lines = [line.strip() for text in _messages for line in text.splitlines() if line.strip()]
    reasons = [line for line in lines if not line.endswith(("failed to load model", "failed to load model from file"))]
    for line in reversed(reasons or lines):
        function, _, message = line.partition(": ")
        return (message if message and function.isidentifier() else line).removeprefix("error loading model: ")
    return "llama.cpp gives no reason"


def check_folder(requested):
    """Refuses a library other than the library of this process."""
    if requested is not None and requested != FOLDER:
        raise Failed("unsupported", f"`library`: this process already uses the library in `{FOLDER}`", "start a new process")


def system_info():
    """The build and CPU features that the library reports: `AVX512_VNNI`, `AMX_INT8`, `OPENMP`, `REPACK`, ..."""
    text = bindings.llama_print_system_info().decode("utf-8", "replace")
    features = [feature.strip() for feature in text.replace("CPU :", "").split("|")]
    return [feature.removesuffix(" = 1") for feature in features if feature.endswith(" = 1")]


def versions():
    libraries = {"python": platform.python_version(), "llama-cpp-python": importlib.metadata.version("llama-cpp-python")}
    for library, function in (("llama.cpp", "llama_version"), ("ggml", "ggml_version")):
        version = _text_of(function)
        if version:
            libraries[library] = version
    return libraries | {"llama.cpp-features": " ".join(system_info())}


def _text_of(name):
    """The text that the function of this name returns; None if the library lacks the function."""
    function = getattr(bindings._lib, name, None)
    if function is None:
        return None
    function.restype, function.argtypes = ctypes.c_char_p, []
    return (function() or b"").decode("utf-8", "replace")


class HeaderSettings(ctypes.Structure):
    """`gguf_init_params` of gguf.h, which the bindings lack."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p)]


def main_dtype(file):
    """The dtype of most bytes of a GGUF file's tensors, such as `q4_k`."""
    ggml = bindings._lib
    ggml.gguf_init_from_file.argtypes, ggml.gguf_init_from_file.restype = [ctypes.c_char_p, HeaderSettings], ctypes.c_void_p
    ggml.gguf_get_n_tensors.argtypes, ggml.gguf_get_n_tensors.restype = [ctypes.c_void_p], ctypes.c_int64
    for function, result in ((ggml.gguf_get_tensor_type, ctypes.c_int), (ggml.gguf_get_tensor_size, ctypes.c_size_t)):
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int64], result
    ggml.ggml_type_name.argtypes, ggml.ggml_type_name.restype = [ctypes.c_int], ctypes.c_char_p
    ggml.gguf_free.argtypes, ggml.gguf_free.restype = [ctypes.c_void_p], None
    header = ggml.gguf_init_from_file(os.fsencode(file), HeaderSettings(no_alloc=True))
    if not header:
        raise Failed("model", f"`{file}`: {last_error()}")
    bytes_by_type = {}
    for index in range(ggml.gguf_get_n_tensors(header)):
        type = ggml.gguf_get_tensor_type(header, index)
        bytes_by_type[type] = bytes_by_type.get(type, 0) + ggml.gguf_get_tensor_size(header, index)
    ggml.gguf_free(header)
    return ggml.ggml_type_name(max(bytes_by_type, key=bytes_by_type.get)).decode().lower()


class ThreadPoolSettings(ctypes.Structure):
    """`ggml_threadpool_params` of ggml.h, which the bindings lack. `reserved` is for more fields, which a user's own library
    may have."""

    _fields_ = [
        ("cpumask", ctypes.c_bool * MAX_THREADS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
        ("reserved", ctypes.c_char * 3072),
    ]


class ThreadPool:
    """ggml's thread pool with its defaults, as in llama-bench: threads poll for work, then sleep. Without a pool, every call
    would start and end threads.

    With `pin` each thread stays on one processor, as with llama-bench's `--cpu-mask` and `--cpu-strict 1`. The calling
    thread is a thread of the pool, so it is pinned too until the pool is freed."""

    def __init__(self, threads, pin):
        self.threads, self.handle = threads, None
        if threads > MAX_THREADS:
            raise Failed("bad_request", f"`threads`: {threads} are more than the {MAX_THREADS} that ggml supports")
        self._original_affinity = os.sched_getaffinity(0) if pin else None
        settings = ThreadPoolSettings()
        bindings._lib.ggml_threadpool_params_init(ctypes.byref(settings), ctypes.c_int(threads))
        if pin:
            # The first processor of each core comes first, then the second processor of each core, and so on.
            order = sorted((index, processor) for core in processors_by_core() for index, processor in enumerate(core))
            self._pin_to([processor for _, processor in order[:threads]], settings)
        bindings._lib.ggml_threadpool_new.restype = ctypes.c_void_p
        self.handle = bindings._lib.ggml_threadpool_new(ctypes.byref(settings))
        if not self.handle:
            raise Failed("internal", f"cannot make a pool of {threads} threads: {last_error()}")

    def _pin_to(self, processors, settings):
        # ggml's initialisation has set `n_threads`. Another value shows that the library's structure has another layout.
        if settings.n_threads != self.threads:
            message = "option `pin`: this library's thread settings are not those of ggml 0.25"
            raise Failed("unsupported", message, "--set pin=false")
        for processor in processors:
            if processor < MAX_THREADS:
                settings.cpumask[processor] = True
        settings.strict_cpu = True

    def attach(self, context):
        bindings._lib.llama_attach_threadpool(ctypes.c_void_p(context), ctypes.c_void_p(self.handle), None)

    def __del__(self):
        if self.handle:
            bindings._lib.ggml_threadpool_free(ctypes.c_void_p(self.handle))
            self.handle = None
            if self._original_affinity is not None:
                os.sched_setaffinity(0, self._original_affinity)


def processors_by_core():
    """The processors that this process may use: a list for each core."""
    cores = {}
    for processor in sorted(os.sched_getaffinity(0)):
        try:
            core = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list").read_text()
        except OSError:
            # Without this file, each processor is its own core.
            core = processor
        cores.setdefault(core, []).append(processor)
    return list(cores.values())
