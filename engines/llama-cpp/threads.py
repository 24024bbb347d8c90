"""ggml's thread pool, and the processors of its threads."""

import ctypes
import os

import llama_cpp.llama_cpp as bindings

import library
from engine_kit import Failed
from processors import cores_first


# The limit of ggml.h, which has an entry for each processor.
MAX_THREADS = 512


class Settings(ctypes.Structure):
    """`ggml_threadpool_params` of ggml.h, which the bindings lack. The structure is longer, so that a user's own
    library may have more fields. ggml fills it."""

    _fields_ = [
        ("cpumask", ctypes.c_bool * MAX_THREADS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
        ("more", ctypes.c_char * 3072),
    ]


class Pool:
    """A pool with ggml's defaults, like llama-bench's; without a pool, every call would start and end its own
    threads. The threads first poll for work, then sleep. With `pin` each thread stays on one processor, as with
    llama-bench's `--cpu-mask` and `--cpu-strict 1`. The calling thread is one of them, and is released with the pool."""

    def __init__(self, threads, pin):
        self.threads, self.handle = threads, None
        if threads > MAX_THREADS:
            raise Failed("bad_request", f"`threads`: {threads} are more than the {MAX_THREADS} that ggml supports")
        self._allowed = os.sched_getaffinity(0) if pin else None
        functions, settings = bindings._lib, Settings()
        functions.ggml_threadpool_params_init(ctypes.byref(settings), ctypes.c_int(threads))
        if pin:
            self._pin_each(settings)
        functions.ggml_threadpool_new.restype = ctypes.c_void_p
        self.handle = functions.ggml_threadpool_new(ctypes.byref(settings))
        if not self.handle:
            raise Failed("internal", f"no pool of {threads} threads: {library.last_error('ggml gives no reason')}")

    def _pin_each(self, settings):
        if settings.n_threads != self.threads:
            message = "option `pin`: this library's thread settings are not those of ggml 0.25"
            raise Failed("unsupported", message, "--set pin=false")
        for processor in cores_first()[: self.threads]:
            if processor < MAX_THREADS:
                settings.cpumask[processor] = True
        settings.strict_cpu = True

    def attach(self, context):
        bindings._lib.llama_attach_threadpool(ctypes.c_void_p(context), ctypes.c_void_p(self.handle), None)

    def __del__(self):
        if self.handle:
            bindings._lib.ggml_threadpool_free(ctypes.c_void_p(self.handle))
            self.handle = None
            if self._allowed is not None:
                os.sched_setaffinity(0, self._allowed)
