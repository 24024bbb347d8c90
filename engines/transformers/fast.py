"""Path `fast`: PyTorch at its fastest. It uses the network of `compact.py`, one decode step compiled whole at the
load, and a KV cache in place. Only the ids for the user cross between host and device.
"""

import math
from types import SimpleNamespace

import torch
import torch._dynamo

from causal import SCORE_ROWS, Causal, Chooser, lay_out, libraries, push
from compact import Decoder
from compact_shape import read_shape
from compact_weights import read_network
from devices import DTYPES, bytes_as, check_free_memory, find_device, free_bytes, explaining_memory, set_threads, wait_for
from engine_kit import Failed
from fast_step import CapturedSteps, Steps, check_compiler
from steps import compile_cache

# The number of last log-probabilities of a score that come from the compiled step itself, so that the measured kernels are
# the verified ones. Earlier ones come from the prefill, which is measured too.
SCORED_BY_STEPS = 16

# The share of free memory for keys and values if the load names no context.
CACHE_SHARE = 0.5

LIBRARIES = ("torch", "safetensors", "tokenizers")

# The library of the quantisation, for the row.
QUANTISED = "this engine itself (compact_product.py), int8 weight-only, a scale for each row"


def load(request, folder, options, phases):
    device, dtype = find_device(request.device), DTYPES[request.dtype]
    set_threads(request.threads)
    # Frees compiled code of the model before, which would keep its weights.
    torch._dynamo.reset()
    check_options(request.options)
    shape = read_shape(folder.config)
    check_compiler(device)
    int8 = options.quantize == "int8"
    weights_dtype = torch.int8 if int8 else dtype
    check_free_memory({device: bytes_as(folder.tensors, weights_dtype)}, weights_dtype)
    with phases.time("weights"), explaining_memory("weights", device):
        network = read_network(folder, shape, dtype, int8, lambda part, file: phases.progress("weights", part, file))
    with phases.time("device"), explaining_memory("moving the weights", device):
        network = network.to(device)
        wait_for(device)
    loaded = SimpleNamespace(
        folder=folder,
        network=network,
        device=device,
        dtype=dtype,
        options=options,
        context_tokens=context_in_effect(request.context_tokens, shape, dtype, device),
        devices=[device],
        weights=weight_facts(network, request.dtype, int8),
        choices={"quantized by": QUANTISED} if int8 else {},
    )
    model = Fast(loaded)
    with phases.time("compile"), torch.no_grad(), explaining_memory("compiling the step", device):
        model.prepare()
    return model


class Fast(Causal):
    def __init__(self, loaded):
        super().__init__(loaded)
        self.network.prepare(loaded.context_tokens)
        self._decoders, self._captured = {}, loaded.device.type == "cuda"

    def prepare(self):
        """Compiles the step of one sequence, so that no request waits for it. The first batch compiles its own."""
        self._decoder(1, self.loaded.context_tokens)

    def run(self, job, tokens):
        if not job.use_cache:
            raise Failed("unsupported", "`use_cache` false: the step of path `fast` needs its cache", "--set path=loop")
        batch, chooser = lay_out(job.prompts, job.padding, self.device), Chooser(job, tokens)
        decoder, steps = self._decoder(batch.sequences, batch.columns + job.max_new_tokens)
        decoder.prefill(batch.ids, None if batch.mask is None else batch.mask.bool())
        if chooser.samples:
            self._sample(decoder, steps, batch.columns, chooser, tokens)
        elif self._captured:
            self._decode_ahead(decoder, steps, batch.columns, job.max_new_tokens, tokens)
        else:
            written = batch.columns
            while not push(tokens, decoder.ids.tolist()):
                written += 1
                steps(written)

    def _sample(self, decoder, steps, written, chooser, tokens):
        """Copies logits to the host, which samples by the protocol's rules."""
        while True:
            decoder.ids.copy_(chooser(decoder.logits))
            if push(tokens, decoder.ids.tolist()):
                return
            written += 1
            steps(written)

    def _decode_ahead(self, decoder, steps, written, new_tokens, tokens):
        """Submits the next step to the device before the host has read the last id."""
        transfer = IdTransfer(len(decoder.ids), self.device)
        transfer.send(0, decoder.ids)
        for index in range(new_tokens):
            if index + 1 < new_tokens:
                written += 1
                steps(written)
                transfer.send(index + 1, decoder.ids)
            if push(tokens, transfer.receive(index)):
                break
        # A sequence that ends early leaves a running step, whose time belongs to this request.
        transfer.wait()

    @torch.no_grad()
    def score(self, ids):
        with explaining_memory(f"score ({len(ids)} tokens)", self.device):
            decoder, steps = self._decoder(1, len(ids))
            first = max(1, len(ids) - 1 - SCORED_BY_STEPS)
            sequence = torch.tensor(ids, device=self.device)
            x = decoder.prefill(sequence[None, :first])[0]  # [first, hidden]
            values = []
            for rows, scored in zip(x.split(SCORE_ROWS), sequence[1 : first + 1].split(SCORE_ROWS)):
                values += logprobs(self.network.logits(rows), scored)
            for index in range(first, len(ids) - 1):
                decoder.ids.copy_(sequence[index : index + 1])
                steps(index + 1)
                values += logprobs(decoder.logits, sequence[index + 1 : index + 2])
        return values

    def _decoder(self, sequences, tokens):
        """A decoder for this many tokens and sequences, and its step. The decoder of a single sequence has a cache
        for the whole context; of the others only the last is kept."""
        context = self.loaded.context_tokens if sequences == 1 else self._cache_length(tokens)
        if (sequences, context) not in self._decoders:
            self._decoders = {key: decoder for key, decoder in self._decoders.items() if key[0] == 1}
            decoder = Decoder(self.network, sequences, context, exact=not self._captured)
            steps = CapturedSteps(decoder, self._cache_length) if self._captured else Steps(decoder)
            steps.prepare()
            self._decoders[sequences, context] = decoder, steps
        return self._decoders[sequences, context]

    def _cache_length(self, tokens):
        """The smallest sufficient cache length: `cache_tokens`, twice as many, four times, ..."""
        smallest = self.loaded.options.cache_tokens
        doublings = max(0, math.ceil(math.log2(tokens / smallest)))
        return min(smallest << doublings, self.loaded.context_tokens)

    def facts(self):
        return {**super().facts(), "libraries": {**libraries(LIBRARIES), **self.choices()}}

    def choices(self):
        graphs = "captured in CUDA graphs by length" if self._captured else "one step for every length"
        choices = {
            "decode": f"own loop and network, static cache, torch.compile (inductor), {graphs}",
            "prefill": "eager, scaled_dot_product_attention",
        }
        if (found := compile_cache()) is not None:
            choices["inductor cache"] = found
        return {**super().choices(), **choices}


class IdTransfer:
    """Transfers ids to the host, up to two steps at a time: an asynchronous copy into pinned memory for each token,
    and an event for the host to wait on."""

    def __init__(self, sequences, device):
        self._device = device
        self._ids = torch.empty(2, sequences, dtype=torch.long, pin_memory=True)
        self._events = [torch.cuda.Event(), torch.cuda.Event()]

    def send(self, index, ids):
        self._ids[index % 2].copy_(ids, non_blocking=True)
        self._events[index % 2].record(torch.cuda.current_stream(self._device))

    def receive(self, index):
        self._events[index % 2].synchronize()
        return self._ids[index % 2].tolist()

    def wait(self):
        torch.cuda.current_stream(self._device).synchronize()


def check_options(options):
    """Refuses an option without effect instead of ignoring it."""
    if options.get("attention") is not None:
        raise Failed("unsupported", "option `attention` has no effect with path `fast`", "--set path=loop")


def weight_facts(network, dtype, int8):
    """The facts of the weights. Scales of int8 rows count as bytes, but not as numbers of the checkpoint."""
    size = sum(parameter.nbytes for parameter in network.parameters())
    numbers = sum(parameter.numel() for name, parameter in network.named_parameters() if not name.endswith(".scales"))
    return SimpleNamespace(parameters=numbers, weights_bytes=size, weights_dtype="int8" if int8 else dtype, compute_dtype=dtype)


def logprobs(logits, ids):
    """The log-probability of one id in each row of logits."""
    return torch.log_softmax(logits.double(), -1).gather(1, ids[:, None])[:, 0].tolist()


def context_in_effect(requested, shape, dtype, device, free=free_bytes):
    """The requested context; else the model's, halved until its keys and values fit into their share."""
    context = requested or shape.context_tokens
    if shape.window is not None and context > shape.window:
        message = f"path `fast`: a context of {context} tokens, and the model's sliding window is {shape.window}"
        raise Failed("unsupported", message, "--set path=loop")
    token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype.itemsize
    while requested is None and (unused := free(device)) is not None and context * token_bytes > CACHE_SHARE * unused and context > 1:
        context //= 2
    return context
