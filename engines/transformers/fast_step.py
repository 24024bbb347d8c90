"""The decode step of `compact.py` as it is run: compiled once for every length on a CPU; on CUDA compiled in the same way,
and then captured as a graph for each of a few lengths.
"""

import os
import shutil

import torch
import torch._dynamo

from engine_kit import Failed

# Each number of sequences and each length of its cache is a step of its own; PyTorch's own bound is 8.
torch._dynamo.config.recompile_limit = 256

# So far may a compiled step's logits lie from the plain one's, as a part of the largest: rounding in another order is far
# below it in bf16, and a step that computes something else far above.
TOLERATED = 0.05


class Steps:
    """A step that is told how many tokens the cache holds with the one that it adds."""

    # What the compiler shapes its loops for. Any other number runs the same code.
    TYPICAL_TOKENS = 512

    OPTIONS = {
        # A product and a sum in one instruction, as in PyTorch's own kernels.
        "cpp.enable_floating_point_contract_flag": "fast",
        # What a product multiplies with is written down once, and not made anew for every row of the matrix.
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
        """Compiles, holds the outcome against the plain step, and runs it with another length, for which nothing is left
        to compile."""
        decoder = self._decoder
        typical = min(self.TYPICAL_TOKENS, decoder.context_tokens)
        decoder.begin(typical - 1)
        with decoder.unchanged():
            decoder.step(self._span(typical))
            wanted = decoder.logits.clone()
        self._first_run(self._span(typical))
        hold_against(wanted, decoder.logits)
        decoder.begin(1)
        self._run(2)
        forget_compilers()

    def _first_run(self, span):
        try:
            self._step(span)
        except (MemoryError, torch.OutOfMemoryError, Failed):
            raise
        except Exception as error:
            raise said_of_compiler(error) from error

    def _run(self, tokens):
        self._step(self._span(tokens))

    def _span(self, tokens):
        span = self._spans[:tokens]
        torch._dynamo.mark_dynamic(span, 0)
        return span


class CapturedSteps(Steps):
    """`length_for` says for a number of tokens which length is captured: a graph looks at as many tokens as when it was
    captured, and a mask hides those that are not there yet. The state is on the device, so a replay is told nothing."""

    # Coordinate descent also makes the compiler write products with one row itself, at the memory's speed.
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
        """Every length of the cache, so that no request of a single sequence waits for a capture."""
        super().prepare()
        length = 0
        while length < self._decoder.context_tokens:
            length = self._length_for(length + 1)
            self._decoder.begin(1)
            self(length)

    def _captured(self, length):
        with self._decoder.unchanged():
            # What is compiled or tuned at a first call must not be part of a graph.
            aside, now = torch.cuda.Stream(), torch.cuda.current_stream()
            aside.wait_stream(now)
            with torch.cuda.stream(aside):
                self._run(length)
            now.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self._run(length)
            self._pool = self._pool or graph.pool()
        return graph


def check_compiler(device):
    """The loops of a CPU step are C++ that is compiled here."""
    compiler = os.environ.get("CXX") or "g++"
    if device.type == "cpu" and shutil.which(compiler) is None:
        message = f"path `fast` compiles its step, and there is no C++ compiler `{compiler}`"
        raise Failed("unavailable", message, "apt-get install g++")


def hold_against(wanted, found):
    largest = float(wanted.abs().max())
    apart = float((wanted.float() - found.float()).abs().max())
    if not apart <= TOLERATED * max(largest, 1e-6):
        what = f"its logits lie {apart:.3g} from those of the plain step, which reach {largest:.3g}"
        raise Failed("internal", f"path `fast`: the step was compiled wrongly: {what}", "--set path=loop")


def forget_compilers():
    """Ends the processes that compiled: they would hold memory beside what is measured. The next compile starts its own."""
    from torch._inductor.async_compile import shutdown_compile_workers

    shutdown_compile_workers()


def said_of_compiler(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    what = lines[0][:300] if lines else type(error).__name__
    return Failed("internal", f"path `fast`: the step could not be compiled: {type(error).__name__}: {what}", "--set path=loop")
