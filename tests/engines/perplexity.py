"""The perplexity of a model on a text, in f32, by transformers alone: a computation that shares no code with any engine.

    python perplexity.py MODEL TEXT WINDOW WINDOWS

The tokens of the whole text are cut into windows of WINDOW tokens, BOS included, at most WINDOWS of them. Each begins with BOS, if
the tokenizer puts it before a text. Prints the number of scored tokens, and the exponential of their mean loss.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, text, window, windows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
torch.set_num_threads(1)
with open(text, encoding="utf-8", newline="") as file:
    tokens = tokenizer(file.read()).input_ids
bos = tokenizer("").input_ids
assert tokens[: len(bos)] == bos
tokens = tokens[len(bos) :]
length = window - len(bos)
nats, count = 0.0, 0
with torch.no_grad():
    for start in range(0, min(len(tokens), length * windows), length):
        ids = torch.tensor([bos + tokens[start : start + length]])
        logprobs = torch.log_softmax(model(ids).logits[0, :-1].double(), dim=-1)
        scored = logprobs.gather(1, ids[0, 1:, None])
        nats -= scored.sum().item()
        count += scored.numel()
print(count, torch.tensor(nats / count, dtype=torch.float64).exp().item())
