"""The engine kit for Python: the author of an engine implements the two classes below, without code for JSON, clocks
or stdout.

    import engine_kit  # first, because this import reserves stdout for the protocol

    class MyEngine(engine_kit.Engine):
        def hello(self):
            return {"engine": "mine", "version": "1.0", "capabilities": {"dtypes": ["f32"], "prompt_ids": True}}

        def load(self, request, phases):
            with phases.time("import"):
                import heavy_library
            ...
            return MyModel(...)

    engine_kit.serve(MyEngine())

This kit behaves like the Rust kit. It uses the standard library only. Tensor libraries, model formats and tokenizers
belong to the engine.
"""

import os
import sys

# Libraries may print. After these lines their output goes to stderr, and only the kit writes to the real stdout.
PROTOCOL_OUT = os.dup(1)
os.dup2(2, 1)

import ctypes
import errno
import queue
import select
import signal
import threading
import time

# Engines import these names from this module.
from engine_kit_checks import check_logit, check_offered, choose_context, package_version, read_choice, read_flag
from engine_kit_conversation import END, MAX_WAITING_LINES, Conversation, OutputClosed
from engine_kit_tokens import Job, Phases, Sampler, Tokens
from engine_kit_wire import Failed, Framer


class Engine:
    """An engine: its facts, and the loading of a model."""

    # The load options of the engine. The kit refuses a load with any other option.
    options = ()

    def hello(self):
        """The facts of hello: `engine`, `version`, `output`, `stamp`, `deterministic`, `capabilities`. They must be
        constants that need no heavy import. Raises `Failed("unavailable", ..., hint)` if the machine lacks something that
        the engine needs."""
        raise NotImplementedError

    def default_dtype(self, request):
        """The dtype of a load without a dtype, if this default depends on the rest of the request (`request.device` is known).
        None means the first dtype of hello."""
        return None

    def load(self, request, phases):
        """Loads `request.model` and returns a `Model`. `request` has `model`, `device`, `dtype`, `threads`,
        `context_tokens` and `options`. The device defaults to the first device of hello, the dtype to `default_dtype`. Heavy
        imports happen here, inside `phases.time("import")`. The kit drops the previous model first."""
        raise NotImplementedError

    def close(self):
        """Ends the processes that the engine started, within a few seconds. The kit calls this method last. If the reader
        of the answers closes stdout during a request, another thread calls the method then."""


class Model:
    """A loaded model. The kit makes one call at a time, from the main thread.

    An engine that advances several requests at once (at most as many as its capability `concurrency`) implements three more
    methods. `admit(slot, job)` takes an iteration of a request. `step(tokens)` advances the sequences that are not done, usually
    by one token each, with `tokens[slot].push(sequence, id)`; `tokens` has None for a free slot. `leave(slot)` removes the
    iteration. An exception in `step` fails all requests; `tokens[slot].fail(error)` fails one. While only one request runs, a
    step may push many of its tokens: it asks `tokens[slot].must_end_step()` after each.
    """

    def facts(self):
        """The configuration in effect and the facts known at this time, without a long wait: `eos_ids`, `context_tokens`,
        `vocabulary_size`, `bos_id`, `device`, `weights_dtype`, `threads`, ..."""
        raise NotImplementedError

    def encode(self, text):
        """Token ids with the tokenizer's default special tokens. Opens the tokenizer at the first call and not at the load,
        because prompts of ids need none. The kit makes the first call with an empty text, before any iteration starts. If
        the tokenizer is broken, only requests with text fail."""
        raise Failed("model", "the model has no tokenizer", "send `prompt_ids`")

    def decode(self, ids):
        """The text of token ids; None without a tokenizer. The kit calls it only for prompts in text, after the last
        iteration."""
        return None

    def generate(self, job, tokens):
        """Generates once for every prompt in `job.prompts`. Calls `tokens.push(sequence, id)` for every new token of a
        sequence, until `push` returns True. The kit has checked the context, the batch and the capabilities."""
        raise NotImplementedError

    def score(self, ids):
        """Natural-log probabilities of `ids[1:]`, each given all ids before it. A model may also have `score_with_most_likely`: a
        tuple of this list, of the most likely ids at the same positions, and of their log-probabilities."""
        raise Failed("unsupported", "`score` is not supported by this engine")


def serve(engine):
    """Speaks the protocol on stdin and stdout until stdin ends or `shutdown` comes, then ends the process."""
    end_with_parent()
    if os.isatty(0):
        sys.stderr.write('this engine reads one JSON request per line on stdin, for example: {"prompt":"Hello"}\n')
    inbox = queue.Queue(MAX_WAITING_LINES)
    threading.Thread(target=_read_lines, args=(_redirect_stdin(), inbox.put), daemon=True).start()
    conversation = Conversation(engine, inbox, _write)
    threading.Thread(target=_end_if_stdout_closes, args=(engine, conversation.working), daemon=True).start()
    code, error = 0, None
    try:
        conversation.run()
    except OutputClosed as closed:
        code, error = 1, str(closed)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    _end(engine, code, error)


def _end(engine, code, error=None):
    if error is not None:
        sys.stderr.write(f"error: cannot write answers: {error}\n")
    engine.close()
    sys.stderr.flush()
    # Exit hooks are skipped: the thread that reads stdin may still block, and a library's hook may hang.
    os._exit(code)


def _end_if_stdout_closes(engine, working):
    """Ends this process if the reader closes stdout during a request, because no reader would get the answer. Between
    requests the process continues: a reader that has all its answers may close the pipe."""
    stdout = select.poll()
    # `poll` always reports errors and hang-ups, so no event is requested. On a file `poll` never returns.
    stdout.register(PROTOCOL_OUT, 0)
    stdout.poll()
    working.wait()
    _end(engine, 1, os.strerror(errno.EPIPE))


def count_threads(name=None):
    """The threads of this process: all, or those that the kernel shows under this name. Most libraries have no function that
    returns how many threads they have started."""
    names = []
    for task in os.scandir("/proc/self/task"):
        try:
            with open(f"{task.path}/comm") as file:
                names.append(file.read().strip())
        except OSError:
            # The thread has ended meanwhile.
            pass
    return len(names) if name is None else names.count(name)


def end_with_parent():
    """On Linux, kills this process when its parent ends in any way."""
    if sys.platform != "linux":
        return
    parent, pr_set_pdeathsig = os.getppid(), 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    # If the parent ended before the call above, no signal comes.
    if os.getppid() != parent:
        os._exit(1)


def _redirect_stdin():
    """Moves stdin to another descriptor, so that no library or child process takes a line."""
    stdin = os.dup(0)
    null_device = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_device, 0)
    os.close(null_device)
    return stdin


def _read_lines(stdin, put):
    """Puts every line into the inbox, with the time at which its last bytes were read."""
    framer = Framer()
    while chunk := _read(stdin):
        read_ns = time.perf_counter_ns()
        for frame in framer.push(chunk):
            put((read_ns, frame))
    for frame in framer.finish():
        put((time.perf_counter_ns(), frame))
    put(END)


def _read(stdin):
    try:
        return os.read(stdin, 1 << 20)
    except OSError:
        # A stream that cannot be read has ended.
        return b""


def _write(line):
    while line:
        line = line[os.write(PROTOCOL_OUT, line) :]
