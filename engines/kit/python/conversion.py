"""Conversions of a model for an engine that reads another format. The program that started the worker runs them, because it owns
the cache of conversions: the same model is converted once, also if several folders have it.

An engine of another project's library names the library's own converter as a command:

    path = conversion.convert(request.model, "onnx", "f32", f"onnxruntime-genai {version}; rules 1",
                              [sys.executable, "-m", "onnxruntime_genai.models.builder", ...], phases)

The command gets the folder to write as its last argument. The third part of the name is the version of the engine's own rules: a
conversion by other rules is not used again.
"""

import os
import subprocess
from pathlib import Path

from engine_kit_wire import Failed

# This variable names the program that started the worker.
PROGRAM_VARIABLE = "ORCHESTRATE_ENGINE_PROGRAM"


def convert(model, format, dtype, converter, command, phases):
    """The folder of the model as `command` converts it. `format` and `dtype` name the result in the cache, `converter` is the
    converter's name and version."""
    arguments = ["convert-with", str(model), format, dtype, converter, *map(str, command)]
    hint = "start the engine by its program, which converts models"
    return convert_by_program(model, format, arguments, hint, phases, dtype)


def convert_by_program(model, format, arguments, hint, phases, note=None):
    """Runs the program with these arguments, and returns the path on its last line. `format` is the format's name in messages,
    `hint` the way to convert without the program, `note` a word for the progress."""
    program = os.environ.get(PROGRAM_VARIABLE)
    if not program:
        raise Failed("unavailable", f"`{model}` needs a conversion to {format}, and `{PROGRAM_VARIABLE}` names no program", hint)
    with phases.time("conversion"):
        line, errors, code = run([program, *arguments], lambda fraction: phases.progress("conversion", fraction, note))
    if code != 0 or not line.startswith("/"):
        cause, hint = parse_errors(errors) if errors else (f"`{program}` ended with {code}, and named no file", None)
        raise Failed("model", f"`{model}` cannot be converted to {format}: {cause}", hint)
    return Path(line)


def parse_errors(errors):
    """The error in the lines of the program's stderr, and its hint or None."""
    error = errors.rpartition("error: ")[2]
    lines = error.splitlines()
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    cause = " ".join(line for line in lines if not line.startswith("hint: "))
    return cause, next(iter(hints), None)


def run(command, progress):
    """Runs a command, and passes each fraction on its stdout to `progress`. Returns the last line of its stdout, its stderr and
    its exit status."""
    pipe = subprocess.PIPE
    # Paths are bytes; surrogates preserve paths that are not UTF-8.
    encoding = {"encoding": "utf-8", "errors": "surrogateescape"}
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, **encoding)
    except OSError as error:
        cause = error.strerror or error
        raise Failed("unavailable", f"`{command[0]}` ({PROGRAM_VARIABLE}) cannot be started: {cause}") from None
    # stderr is read last: it is short (a line or a backtrace), so the program never waits for stderr to be read.
    with process:
        line = ""
        for line in process.stdout:
            line = line.rstrip("\n")
            fraction = _parse_fraction(line)
            if fraction is not None:
                progress(fraction)
        errors = process.stderr.read().strip()
    return line, errors, process.returncode


def _parse_fraction(line):
    """The progress in a line; None for other lines."""
    try:
        fraction = float(line)
    except ValueError:
        return None
    return fraction if 0 <= fraction <= 1 else None
