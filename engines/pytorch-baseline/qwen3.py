"""Qwen3's difference from Qwen2: each head of queries and keys is normalised before the rotation."""

from model import MLP, Attention, Decoder, RMSNorm, attend, heads_apart, rotate


class Qwen3(Decoder):
    def parts(self):
        return RMSNorm, NormedAttention, MLP


class NormedAttention(Attention):
    def __init__(self, shape):
        super().__init__(shape)
        self.q_norm = RMSNorm(shape.head_dim, shape.norm_epsilon)
        self.k_norm = RMSNorm(shape.head_dim, shape.norm_epsilon)

    def forward(self, x, frequencies):
        q = self.q_norm(heads_apart(self.q_proj(x), self.head_dim))  # [heads, tokens, head_dim]
        k = self.k_norm(heads_apart(self.k_proj(x), self.head_dim))  # [kv_heads, tokens, head_dim]
        v = heads_apart(self.v_proj(x), self.head_dim)
        q, k = rotate(q, frequencies), rotate(k, frequencies)
        return self.o_proj(attend(q, k, v, self.window))
