"""Gemma's differences from Llama: norm weights are stored minus one, a GELU replaces SiLU, and embeddings are scaled
at the input (but not as the output matrix)."""

import math

import torch
from torch import nn

from model import MLP, Attention, Decoder, RMSNorm


class Gemma(Decoder):
    def parts(self):
        return OneCentredNorm, Attention, GeluMLP

    def embed(self, ids):
        # Not rounded: Gemma's authors round this factor to the dtype of the computation, which here is f32.
        x = super().embed(ids)
        return x * math.sqrt(x.shape[-1])


class OneCentredNorm(RMSNorm):
    def forward(self, x):
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        return (1.0 + self.weight) * (x * torch.rsqrt(mean_square + self.epsilon))


class GeluMLP(MLP):
    def forward(self, x):
        # The tanh form, even for configs that say `gelu`: the checkpoints were trained with it.
        gate = nn.functional.gelu(self.gate_proj(x), approximate="tanh")
        return self.down_proj(gate * self.up_proj(x))
