"""The perplexity of the embedded model on a text, in f32: its forward pass in plain PyTorch, which shares no code with any engine.

    python perplexity.py MODEL TEXT WINDOW WINDOWS

The tokens of the whole text are cut into windows of WINDOW tokens, BOS included, at most WINDOWS of them. Each begins with BOS, if
the tokenizer puts it before a text. Prints the number of scored tokens, and the exponential of their mean loss.
"""

import json
import sys

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

folder, text, window, windows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with open(f"{folder}/config.json", encoding="utf-8") as file:
    config = json.load(file)
heads, kv_heads, head = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
weights = {name: tensor.float() for name, tensor in load_file(f"{folder}/model.safetensors").items()}


def norm(x, name):
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"])
    return x * scale * weights[f"model.{name}.weight"]


def rotate(x):
    """Rotates the halves of each head by its position."""
    inverse = config["rope_theta"] ** (-torch.arange(0, head, 2).double() / head)
    angles = torch.outer(torch.arange(x.shape[-2]).double(), inverse)
    cos, sin = angles.cos().float(), angles.sin().float()
    a, b = x.split(head // 2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def logits(ids):
    x = weights["model.embed_tokens.weight"][ids]
    later = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
    for layer in range(config["num_hidden_layers"]):

        def linear(x, name):
            return x @ weights[f"model.layers.{layer}.{name}.weight"].T

        h = norm(x, f"layers.{layer}.input_layernorm")
        query, key, value = (
            linear(h, f"self_attn.{name}_proj").unflatten(-1, (-1, head)).transpose(0, 1) for name in "qkv"
        )
        key, value = (it.repeat_interleave(heads // kv_heads, dim=0) for it in (rotate(key), value))
        scores = rotate(query) @ key.transpose(1, 2) / head**0.5
        attended = scores.masked_fill(later, -torch.inf).softmax(-1) @ value
        x = x + linear(attended.transpose(0, 1).flatten(1), "self_attn.o_proj")
        h = norm(x, f"layers.{layer}.post_attention_layernorm")
        gate = linear(h, "mlp.gate_proj")
        x = x + linear(gate * gate.sigmoid() * linear(h, "mlp.up_proj"), "mlp.down_proj")
    # The output matrix is that of the embedding.
    assert config["tie_word_embeddings"]
    return norm(x, "norm") @ weights["model.embed_tokens.weight"].T


tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
torch.set_num_threads(1)
with open(text, encoding="utf-8", newline="") as file:
    tokens = tokenizer.encode(file.read()).ids
bos = tokenizer.encode("").ids
assert tokens[: len(bos)] == bos
tokens = tokens[len(bos) :]
length = window - len(bos)
nats, count = 0.0, 0
for start in range(0, min(len(tokens), length * windows), length):
    ids = torch.tensor(bos + tokens[start : start + length])
    logprobs = torch.log_softmax(logits(ids)[:-1].double(), dim=-1)
    scored = logprobs.gather(1, ids[1:, None])
    nats -= scored.sum().item()
    count += scored.numel()
print(count, torch.tensor(nats / count, dtype=torch.float64).exp().item())
