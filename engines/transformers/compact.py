"""The decoder of Llama and similar models, written for decoding only. Its matrices are joined, its KV
cache has a fixed address, and a step changes its own state, so that it can be compiled whole and replayed.

Norms, rotations and attention are in f32 for all weights.
Products and the activations between them are in the dtype of the load, even for int8 matrices.
"""

import math
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

from compact_product import Int8Matrix, product

# Norms stay in f32 for all weights: they are small, and their input is f32.
NORM = torch.float32


class Network(nn.Module):
    """Token ids and their positions to normed hidden states. The caller provides the attention."""

    def __init__(self, shape, dtype, int8=False):
        """`int8`: its matrices, including the embeddings, are `Int8Matrix`."""
        super().__init__()
        self.shape, self.dtype = shape, dtype
        matrix = Int8Matrix if int8 else partial(empty, dtype)
        self.embedding = matrix(shape.vocabulary_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape, dtype, matrix) for _ in range(shape.layers))
        self.norm = empty(NORM, shape.hidden_size)
        self.head = None if shape.tied_embeddings else matrix(shape.vocabulary_size, shape.hidden_size)
        # Rounded like Gemma's authors do: to the dtype that it scales.
        scale = shape.embedding_scale
        self.embedding_scale = None if scale is None else float(torch.tensor(scale, dtype=dtype, device="cpu"))

    def prepare(self, context_tokens):
        """Computes the rotations of every position, once the weights are in their final place."""
        cosines, sines = rotations(self.shape, context_tokens, self.norm.device)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)

    def forward(self, ids, positions, attend):
        """`ids` and `positions` [rows]; `attend(index of the layer, q, k, v)`, each [rows, its heads, head_dim]."""
        table = self.embedding
        x = table.lookup(ids, self.dtype) if isinstance(table, Int8Matrix) else table[ids]  # [rows, hidden]
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        cosines, sines = self.cosines[positions], self.sines[positions]  # [rows, 1, head_dim / 2]
        for index, layer in enumerate(self.layers):
            q, k, v = layer.heads(x, cosines, sines)
            x = layer.finish(x, attend(index, q, k, v))
        return rms_norm(x, self.norm, self.shape.norm_epsilon)  # [rows, hidden]

    def logits(self, x):
        return product(x, self.embedding if self.head is None else self.head)  # [rows, vocabulary]


class Layer(nn.Module):
    def __init__(self, shape, dtype, matrix):
        super().__init__()
        self.shape = shape
        hidden, inner = shape.hidden_size, shape.intermediate_size
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.attention_norm, self.mlp_norm = empty(NORM, hidden), empty(NORM, hidden)
        self.qkv = matrix(queries + 2 * keys, hidden)
        self.qkv_bias = empty(dtype, queries + 2 * keys) if shape.qkv_bias else None
        self.q_norm = empty(NORM, shape.head_dim) if shape.head_norms else None
        self.k_norm = empty(NORM, shape.head_dim) if shape.head_norms else None
        self.output = matrix(hidden, queries)
        self.output_bias = empty(dtype, hidden) if shape.output_bias else None
        self.gate_up = matrix(2 * inner, hidden)
        self.gate_up_bias = empty(dtype, 2 * inner) if shape.mlp_bias else None
        self.down = matrix(hidden, inner)
        self.down_bias = empty(dtype, hidden) if shape.mlp_bias else None

    def heads(self, x, cosines, sines):
        shape = self.shape
        joined = product(rms_norm(x, self.attention_norm, shape.norm_epsilon), self.qkv, self.qkv_bias)
        joined = joined.view(x.shape[0], -1, shape.head_dim)  # [rows, heads + 2 kv_heads, head_dim]
        q, k, v = joined.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        if shape.head_norms:
            q, k = rms_norm(q, self.q_norm, shape.norm_epsilon), rms_norm(k, self.k_norm, shape.norm_epsilon)
        return rotate(q, cosines, sines), rotate(k, cosines, sines), v

    def finish(self, x, mixed):
        x = x + product(mixed, self.output, self.output_bias)  # [rows, hidden]
        normed = rms_norm(x, self.mlp_norm, self.shape.norm_epsilon)
        gate, up = product(normed, self.gate_up, self.gate_up_bias).chunk(2, dim=-1)  # [rows, intermediate]
        gate = gelu(gate, approximate="tanh") if self.shape.gelu else silu(gate)
        return x + product(gate * up, self.down, self.down_bias)


class Decoder(nn.Module):
    """A network with its cache and the state of its loop, for a fixed number of sequences and length."""

    def __init__(self, network, sequences, context_tokens, exact):
        """`exact`: a step gets the number of tokens and reads only those. Otherwise it may read more, like a captured
        graph, and a mask hides unwritten tokens. Sequences of different lengths need the mask too."""
        super().__init__()
        self.network, self.context_tokens, self.masked = network, context_tokens, not exact or sequences > 1
        shape, dtype = network.shape, network.dtype
        device = dict(device=network.norm.device)
        # One position more than is ever written. A view of the whole would be a different case to the compiler than a view
        # of a part, and heads a power of two apart would share the processor's cache lines.
        size = (sequences, shape.kv_heads, context_tokens + 1, shape.head_dim)
        # Masked values are still multiplied by zero, so they must be finite.
        make = torch.empty if exact else torch.zeros
        self.keys, self.values = Buffers(), Buffers()
        for index in range(shape.layers):
            self.keys.register_buffer(str(index), make(size, dtype=dtype, **device))
            self.values.register_buffer(str(index), make(size, dtype=dtype, **device))
        self.register_buffer("ids", torch.zeros(sequences, dtype=torch.long, **device))
        self.register_buffer("positions", torch.zeros(sequences, dtype=torch.long, **device))
        self.register_buffer("slot", torch.zeros(1, dtype=torch.long, **device))
        self.register_buffer("logits", torch.zeros(sequences, shape.vocabulary_size, dtype=dtype, **device))
        hidden = torch.full((sequences, context_tokens + 1), -math.inf, **device) if self.masked else None
        self.register_buffer("hidden", hidden)

    def prefill(self, ids, real=None):
        """Runs whole prompts: `ids` [sequences, columns]; `real` is False at pads, and None without pads. The state
        is then that after the first new token. Returns the hidden states."""
        sequences, columns = ids.shape
        if real is None:
            positions = torch.arange(columns, device=ids.device).expand(sequences, columns)
            mask = None
        else:
            positions = (real.cumsum(-1) - 1).clamp(min=0)
            before = torch.ones(columns, columns, dtype=torch.bool, device=ids.device).tril()
            # A pad attends to itself: the softmax of a fully masked row is undefined.
            itself = torch.eye(columns, dtype=torch.bool, device=ids.device)
            mask = (before & real[:, None, :] | itself)[:, None]  # [sequences, 1, columns, columns]

        def attend(index, q, k, v):
            q, k, v = (part.view(sequences, columns, -1, part.shape[-1]).transpose(1, 2) for part in (q, k, v))
            self.keys[index][:, :, :columns] = k  # [sequences, kv_heads, columns, head_dim]
            self.values[index][:, :, :columns] = v
            shared = q.shape[1] // k.shape[1]
            if shared > 1:
                k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
            mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
            return mixed.transpose(1, 2).reshape(sequences * columns, -1)  # [rows, heads * head_dim]

        x = self.network(ids.reshape(-1), positions.reshape(-1), attend)
        self.slot.fill_(columns)
        self.positions.copy_(positions[:, -1] + 1)
        if self.masked:
            self.hidden.fill_(-math.inf)
            self.hidden[:, :columns] = 0.0 if real is None else torch.where(real, 0.0, -math.inf)
        x = x.view(sequences, columns, -1)
        self.logits.copy_(self.network.logits(x[:, -1]))
        self.ids.copy_(self.logits.argmax(-1))
        return x

    def begin(self, written):
        """Sets the state as if this many tokens had been written, with any keys and values: for compiling and
        capturing."""
        for buffers in (self.keys, self.values):
            for index in range(len(self.network.layers)):
                buffers[index][:, :, :written].normal_()
        for state, value in ((self.slot, written), (self.positions, written), (self.ids, 0)):
            state.fill_(value)
        if self.masked:
            self.hidden.fill_(-math.inf)
            self.hidden[:, :written] = 0.0

    @contextmanager
    def unchanged(self):
        """Restores the state after the steps inside. Later steps overwrite what they wrote to the cache."""
        states = [state for state in (self.slot, self.positions, self.ids, self.logits, self.hidden) if state is not None]
        before = [state.clone() for state in states]
        yield
        for state, value in zip(states, before):
            state.copy_(value)

    def step(self, span):
        """Takes the id of each sequence, and leaves the next one. Only the length of `span` matters: it is the number
        of cached tokens to read. Among equal logits `argmax` takes the first, which is the lowest id."""
        tokens = span.shape[0]
        if self.masked:
            self.hidden.index_fill_(1, self.slot, 0.0)

        def attend(index, q, k, v):
            keys, values = self.keys[index], self.values[index]
            keys.index_copy_(2, self.slot, k[:, :, None])  # [sequences, kv_heads, 1, head_dim]
            values.index_copy_(2, self.slot, v[:, :, None])
            hidden = self.hidden.narrow(1, 0, tokens)[:, None] if self.masked else None
            return attend_to_cache(q, keys.narrow(2, 0, tokens), values.narrow(2, 0, tokens), hidden)

        x = self.network(self.ids, self.positions, attend)
        self.logits.copy_(self.network.logits(x))
        self.ids.copy_(self.logits.argmax(-1))
        self.positions.add_(1)
        self.slot.add_(1)


class Buffers(nn.Module):
    """Tensors by number; a compiler may assume that their addresses are fixed."""

    def __getitem__(self, index):
        return getattr(self, str(index))


def attend_to_cache(q, keys, values, hidden):
    """Attention of one new token of each sequence. `q` [sequences, heads, head_dim]; `keys` and `values` [sequences,
    kv_heads, tokens, head_dim]; `hidden` [sequences, 1, tokens], or None if nothing is masked. The compiler turns
    these sums into loops over the cache. The weights are divided by their sum last, which takes one division for each
    number."""
    sequences, heads, head_dim = q.shape
    dtype, (keys, values) = values.dtype, (keys.float(), values.float())
    q = q.float().view(sequences, keys.shape[1], -1, 1, head_dim) / math.sqrt(head_dim)
    if q.is_cuda:
        scores = (q * keys[:, :, None]).sum(-1)  # [sequences, kv_heads, shared, tokens]
    else:
        # Queries that share a key are stacked in one loop, so that each key is read once.
        scores = torch.stack([(query * keys).sum(-1) for query in q.unbind(2)], 2)
    if hidden is not None:
        scores = scores + hidden[:, :, None]
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    if q.is_cuda:
        mixed = (weights[..., None] * values[:, :, None]).sum(3)  # [sequences, kv_heads, shared, head_dim]
    else:
        mixed = torch.stack([(weight[..., None] * values).sum(2) for weight in weights.unbind(2)], 2)
    mixed = mixed / weights.sum(-1, keepdim=True)
    return mixed.to(dtype).view(sequences, -1)  # [sequences, heads * head_dim]


def rms_norm(x, weight, epsilon):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    return (wide * weight).to(x.dtype)


def rotate(x, cosines, sines):
    """The two halves of a head form the pairs (not neighbours), as the checkpoints expect."""
    # x: [rows, heads, head_dim]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1).to(x.dtype)


def rotations(shape, context_tokens, device):
    """Cosines and sines of every position [positions, 1, head_dim / 2], with the RoPE scaling of the checkpoint."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    frequencies = 1.0 / shape.rope_theta**exponents
    if (scaling := shape.rope_scaling) is not None:
        wavelengths = 2 * math.pi / frequencies
        # 0 for a wavelength so long that the whole factor applies, 1 for one that stays unchanged.
        weight = (scaling.original_context / wavelengths - scaling.low) / (scaling.high - scaling.low)
        weight = weight.clamp(0.0, 1.0)
        frequencies = (1 - weight) * frequencies / scaling.factor + weight * frequencies
    angles = torch.outer(torch.arange(context_tokens, dtype=torch.float32), frequencies)[:, None]
    return angles.cos().to(device), angles.sin().to(device)


def empty(dtype, *size):
    return nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
