"""The engine kit for Python: an engine's author writes the two classes below, and nothing about JSON, clocks or stdout.

    import engine_kit            # first: it keeps stdout for the protocol

    class MyEngine(engine_kit.Engine):
        def hello(self):
            return {"engine": "mine", "version": "1.0", "capabilities": {"dtypes": ["f32"], "prompt_ids": True}}

        def load(self, request, phases):
            with phases.time("import"):
                import heavy_library
            ...
            return MyModel(...)

    engine_kit.serve(MyEngine())

The same semantics as the Rust kit. Standard library only; an engine brings its own tokenizer. What the kit must not know:
any tensor library, any model format.
"""

import os
import sys

# Libraries print. From here on, whatever is printed goes to stderr, and only the kit holds the real stdout.
PROTOCOL_OUT = os.dup(1)
os.dup2(2, 1)

import ctypes
import errno
import queue
import select
import signal
import threading
import time

from engine_kit_checks import check_offered
from engine_kit_conversation import END, MAX_WAITING, Conversation, OutputClosed
from engine_kit_tokens import Job, Phases, Sampler, Tokens
from engine_kit_wire import Failed, Framer

__all__ = ["Engine", "Failed", "Job", "Model", "Phases", "Sampler", "Tokens", "check_offered", "serve"]


class Engine:
    """What an engine is, and how it loads a model."""

    # The load options that the engine knows; a load with another one is refused.
    options = ()

    def hello(self):
        """The hello facts: `engine`, `version`, `output`, `stamp`, `deterministic`, `capabilities`. From constants, with
        no heavy import. Raise `Failed("unavailable", ..., hint)` when something that the engine needs is missing here."""
        raise NotImplementedError

    def default_dtype(self, request):
        """The dtype of a load that names none, where it depends on the rest of the request (`request.device` is known).
        None is the first that hello names."""
        return None

    def load(self, request, phases):
        """Loads `request.model` and returns a `Model`. `request` has `model`, `device`, `dtype`, `threads`,
        `context_tokens` and `options`; the device defaults to the first that hello names, the dtype to `default_dtype`.
        Heavy imports happen here, inside `phases.time("import")`. The previous model is dropped before."""
        raise NotImplementedError

    def close(self):
        """Ends what the engine started outside of this process. Called last, and has a few seconds; from another thread, in the
        middle of a request, where nobody reads the answers any more."""


class Model:
    """A loaded model. Every call comes alone, from the main thread.

    An engine that advances several requests at once (hello's `concurrency` says how many) writes three methods more:
    `admit(slot, job)` takes a request in, `step(tokens)` advances every admitted one by a token with
    `tokens[slot].push(sequence, id)` (None stands in free slots), and `leave(slot)` forgets one.
    """

    def facts(self):
        """The configuration in effect and what is known now, cheaply: `eos_ids`, `context_tokens`, `vocabulary_size`,
        `bos_id`, `device`, `weights_dtype`, `threads`, ..."""
        raise NotImplementedError

    def encode(self, text):
        """Token ids with the special tokens that the model's tokenizer adds by default. No load opens a tokenizer, because
        ids need none: the first call does, which the kit makes with an empty text, before any clock runs. What is wrong
        with the tokenizer fails the requests that bring text, and the model goes on."""
        raise Failed("model", "the model has no tokenizer", "send `prompt_ids`")

    def decode(self, ids):
        """The text of token ids; None where there is no tokenizer. Asked for where the prompt was text, after the clocks
        have stopped."""
        return None

    def generate(self, job, tokens):
        """Runs `job.prompts` once: for every new token `tokens.push(sequence, id)`, until it answers True. The kit has
        checked the context, the batch and the capabilities."""
        raise NotImplementedError

    def score(self, ids):
        """Natural-log probabilities of `ids[1:]`, each given all before it."""
        raise Failed("unsupported", "`score` is not supported by this engine")


def serve(engine):
    """Speaks the protocol on stdin and stdout until stdin ends or `shutdown` comes, then exits with 0."""
    end_with_parent()
    if os.isatty(0):
        sys.stderr.write('reads one JSON request per line on stdin, for example: {"prompt":"Hello"}\n')
    inbox = queue.Queue(MAX_WAITING)
    threading.Thread(target=_read_lines, args=(_take_stdin(), inbox.put), daemon=True).start()
    conversation = Conversation(engine, inbox, _write)
    threading.Thread(target=_end_with_reader, args=(engine, conversation.working), daemon=True).start()
    code, why = 0, None
    try:
        conversation.run()
    except OutputClosed as closed:
        code, why = 1, str(closed)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    _end(engine, code, why)


def _end(engine, code, why=None):
    if why is not None:
        sys.stderr.write(f"error: cannot write answers: {why}\n")
    engine.close()
    sys.stderr.flush()
    # Without exit hooks: the reader may still block on stdin, and a library's farewell is not worth a hang.
    os._exit(code)


def _end_with_reader(engine, working):
    """Ends this process once nobody reads stdout any more, if need be in the middle of a request: an answer that nobody can get
    is not worth computing. Not between two requests: a reader that has all it wanted may go."""
    stdout = select.poll()
    # No event is asked for: what is left is an error or the other end's going, which no file knows.
    stdout.register(PROTOCOL_OUT, 0)
    stdout.poll()
    working.wait()
    _end(engine, 1, os.strerror(errno.EPIPE))


def end_with_parent():
    """On Linux, this process is killed when its parent ends, however the parent ends."""
    if sys.platform != "linux":
        return
    parent, pr_set_pdeathsig = os.getppid(), 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    # A parent that ended before the call above is not noticed by it.
    if os.getppid() != parent:
        os._exit(1)


def _take_stdin():
    """Moves stdin aside, so that no library and no child process takes a line."""
    stdin = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return stdin


def _read_lines(stdin, put):
    """Stamps every line when the bytes that end it have arrived, before anything is parsed."""
    framer = Framer()
    while piece := os.read(stdin, 1 << 20):
        read_ns = time.perf_counter_ns()
        for frame in framer.push(piece):
            put((read_ns, frame))
    for frame in framer.finish():
        put((time.perf_counter_ns(), frame))
    put(END)


def _write(line):
    while line:
        line = line[os.write(PROTOCOL_OUT, line) :]
