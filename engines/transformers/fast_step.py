"""Runs the decode step of `compact.py`. On a CPU it is compiled once for every length. On CUDA it is also captured as
a graph for each of a few lengths.
"""

import os
import shutil

import torch
import torch._dynamo

from engine_kit import Failed
from steps import compare_logits, end_compilers, expected_logits


class Steps:
    """A compiled step; its caller passes the number of cached tokens, including the one that it adds."""

    # The length for which the compiler tunes its loops. Other lengths run the same code.
    TYPICAL_TOKENS = 512

    OPTIONS = {
        # Fused multiply-add, as in PyTorch's own kernels.
        "cpp.enable_floating_point_contract_flag": "fast",
        # Computes the input of a product once, not again for every row of the matrix.
        "realize_reads_threshold": 1,
    }

    def __init__(self, decoder):
        self._decoder = decoder
        self._spans = torch.empty(decoder.context_tokens + 1, dtype=torch.bool, device=decoder.ids.device)
        self._step = self._compiled(decoder.step)

    def __call__(self, tokens):
        self._run(tokens)

    def _compiled(self, step):
        return torch.compile(step, fullgraph=True, options=self.OPTIONS)

    def prepare(self):
        """Compiles, and compares the result with the plain step: at a typical length, then at others with other ids.
        The others must not need another compilation, nor use constants of the first."""
        typical = min(self.TYPICAL_TOKENS, self._decoder.context_tokens)
        self._compare_at(typical, self._first_run)
        for tokens in (max(2, typical // 16), 2):
            self._compare_at(tokens, self._run)
        end_compilers()

    def _compare_at(self, tokens, run):
        """Runs the step that adds the last of this many tokens, and the plain step for comparison."""
        decoder = self._decoder
        decoder.begin(tokens - 1)
        ids = torch.arange(tokens, tokens + len(decoder.ids), device=decoder.ids.device)
        decoder.ids.copy_(ids % decoder.logits.shape[-1])
        with decoder.unchanged():
            decoder.step(self._span(tokens))
            expected = expected_logits(decoder.logits)
        # Cleared, so that a step that writes elsewhere does not find the plain step's result.
        for buffers in (decoder.keys, decoder.values):
            for index in range(len(decoder.network.layers)):
                buffers[index][:, :, tokens - 1].zero_()
        run(tokens)
        compare_logits(expected, decoder.logits, "fast")

    def _first_run(self, tokens):
        try:
            self._run(tokens)
        except (MemoryError, torch.OutOfMemoryError, Failed):
            raise
        except Exception as error:
            raise compiler_failure(error) from error

    def _run(self, tokens):
        self._step(self._span(tokens))

    def _span(self, tokens):
        span = self._spans[:tokens]
        torch._dynamo.mark_dynamic(span, 0)
        return span


class CapturedSteps(Steps):
    """A step captured as CUDA graphs. `length_for` gives the captured length for a number of tokens. A graph reads as
    many tokens as at its capture, and a mask hides unwritten ones. The state is on the device, so a replay needs no
    arguments."""

    # Coordinate descent also makes the compiler write products with one row itself, at memory speed.
    OPTIONS = {"coordinate_descent_tuning": True}

    def __init__(self, decoder, length_for):
        super().__init__(decoder)
        self._length_for, self._graphs, self._pool = length_for, {}, None

    def __call__(self, tokens):
        length = self._length_for(tokens)
        if length not in self._graphs:
            self._graphs[length] = self._captured(length)
        self._graphs[length].replay()

    def prepare(self):
        """Captures every length of the cache, so that no request of a single sequence waits for it."""
        super().prepare()
        length = 0
        while length < self._decoder.context_tokens:
            length = self._length_for(length + 1)
            self._compare_at(length, self)

    def _captured(self, length):
        with self._decoder.unchanged():
            # Compilation and tuning in a first call must stay outside the graph.
            side, current = torch.cuda.Stream(), torch.cuda.current_stream()
            side.wait_stream(current)
            with torch.cuda.stream(side):
                self._run(length)
            current.wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self._run(length)
            self._pool = self._pool or graph.pool()
        return graph


def check_compiler(device):
    """Checks for a C++ compiler: the loops of a CPU step are compiled here."""
    compiler = os.environ.get("CXX") or "g++"
    if device.type == "cpu" and shutil.which(compiler) is None:
        message = f"path `fast` compiles its step, and the C++ compiler `{compiler}` is missing"
        raise Failed("unavailable", message, "apt-get install g++")


def compiler_failure(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0][:300] if lines else type(error).__name__
    return Failed("internal", f"path `fast`: cannot compile the step: {type(error).__name__}: {first}", "--set path=loop")
