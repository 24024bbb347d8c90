# /// script
# requires-python = ">=3.11"
# dependencies = ["torch>=2.9", "transformers==5.23.0"]
# ///
"""Compares the scores of this engine and of Hugging Face's transformers, on small models with random weights.

    cargo build --release -p candle-engine
    uv run engines/candle/compare_with_transformers.py target/release/candle-engine

Prints for each model the largest difference of a log-probability, in nats. Both programs compute in f32.
Fails if a difference is not below MAX_DIFFERENCE.
"""

import json
import subprocess
import sys
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=1,
             pad_token_id=0)
LLAMA_3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=128)
# The scored sequence has 300 tokens, so a window of 300 hides no token. A window below 300 would be refused, because this
# engine accepts no context longer than the window.
MODELS = [
    ("llama", dict()),
    ("llama", dict(rope_parameters=LLAMA_3, tie_word_embeddings=True)),
    ("qwen2", dict(tie_word_embeddings=True)),
    ("qwen3", dict(head_dim=32, tie_word_embeddings=True)),
    ("qwen3", dict(head_dim=8, attention_bias=True, num_key_value_heads=1)),
    ("mistral", dict(head_dim=32, sliding_window=None)),
    ("mistral", dict(sliding_window=300)),
    ("phi3", dict(sliding_window=300)),
    ("phi3", dict(partial_rotary_factor=0.5, tie_word_embeddings=True)),
    ("gemma", dict(head_dim=32, num_key_value_heads=1)),
    ("gemma", dict(head_dim=16, attention_bias=True, hidden_act="gelu")),
]
IDS = [(index * index * 7 + 3 * index) % SIZES["vocab_size"] for index in range(300)]
MAX_DIFFERENCE = 1e-3


def main(engine):
    torch.manual_seed(0)
    differences = []
    for architecture, fields in MODELS:
        model = random_model(architecture, fields)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            scores = scores_of_engine(engine, folder)
        difference = float((scores - scores_of_transformers(model)).abs().max())
        print(f"{difference:.1e}  {architecture} {fields}", flush=True)
        differences.append(difference)
    sys.exit(not all(difference < MAX_DIFFERENCE for difference in differences))  # NaN fails too


def random_model(architecture, fields):
    config = AutoConfig.for_model(architecture, **{**SIZES, **fields})
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).float().eval()
    # `transformers` initialises weights so small that attention and MLP hardly matter. So the weights become larger here. Gemma's
    # code adds 1 to the weights of norms and multiplies embeddings, so its norms are around 0 and its embeddings smaller.
    for name, weights in model.named_parameters():
        noise = torch.rand_like(weights) - 0.5
        if "norm" in name:
            noise = noise / 2 + (0 if architecture == "gemma" else 1)
        elif "embed" in name:
            noise = noise * (0.5 if architecture == "gemma" else 2)
        elif weights.dim() == 2:
            noise = noise * 4 / weights.shape[1] ** 0.5
        weights.data.copy_(noise)
    return model


def scores_of_transformers(model):
    with torch.no_grad():
        logits = model(torch.tensor([IDS])).logits[0].double()  # [length, vocabulary]
    return torch.log_softmax(logits, -1)[range(len(IDS) - 1), IDS[1:]]


def scores_of_engine(engine, folder):
    requests = [{"type": "load", "model": folder, "dtype": "f32"}, {"type": "score", "sequences": [IDS]}]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    answers = subprocess.run([engine], input=lines, capture_output=True, text=True, check=True).stdout
    for answer in map(json.loads, answers.splitlines()):
        if answer["type"] == "failed":
            sys.exit(f"error: {answer['message']}")
        if answer["type"] == "scored":
            return torch.tensor(answer["logprobs"][0], dtype=torch.float64)
    sys.exit(f"error: no `scored` from `{engine}`")


if __name__ == "__main__":
    main(*sys.argv[1:])
