"""Phi-3's differences from Llama: one matrix for queries, keys and values, and one for gate and up."""

from torch import nn

from model import Decoder, Linear, RMSNorm, attend, heads_apart, rotate


class Phi3(Decoder):
    def parts(self):
        return RMSNorm, JoinedAttention, JoinedMLP


class JoinedAttention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.head_dim, self.window = shape.head_dim, shape.window
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.sizes = [queries, keys, keys]
        self.qkv_proj = Linear(shape.hidden_size, sum(self.sizes), bias=False)
        self.o_proj = Linear(queries, shape.hidden_size, bias=False)

    def forward(self, x, frequencies):
        joined = self.qkv_proj(x).split(self.sizes, dim=-1)
        q, k, v = (heads_apart(part, self.head_dim) for part in joined)  # [heads or kv_heads, tokens, head_dim]
        q, k = rotate(q, frequencies), rotate(k, frequencies)
        return self.o_proj(attend(q, k, v, self.window))


class JoinedMLP(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_up_proj = Linear(shape.hidden_size, 2 * shape.intermediate_size, bias=False)
        self.down_proj = Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x):
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)  # [tokens, intermediate] each
        return self.down_proj(nn.functional.silu(gate) * up)
