"""Prints the perplexity of the stored model and of n-grams on the same tokens, and some greedy continuations.

Every document of the held-out text is evaluated separately, after a `<s>` that is not predicted, without `</s>`. The
perplexity is the exponential of the mean of -ln p over all tokens. The model computes in f32 with the file's bf16 weights."""

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from llama import Llama, load
from ngram import Ngrams, nats
from text import split
from tokens import BOS, EOS

PROMPTS = ["Hello", "Hello, my name is", "One morning in", "7 + 5 =",
           "Mara read six words aloud: amber, owl, kettle, ginger, harp, Tolvane.\nJonas closed his eyes and said them again:"]

# Passages that repeat earlier text of the document, found by the words that introduce them.
ANSWERS = re.compile(r"Answer: ([^\n]*)")
REPEATED = re.compile(r"(?:said them again:|Looking back:|The list at the end:|Then write it down\.|You ask for)([^\n]*)")


def row(name: str, total_nats: float, tokens: int, size_bytes: int) -> str:
    return (f"| {name} | {math.exp(total_nats / tokens):.3f} | {total_nats / tokens:.4f} | "
            f"{total_nats / math.log(2) / size_bytes:.4f} |")


@torch.no_grad()
def token_nats(model: Llama, ids: np.ndarray) -> np.ndarray:
    """-ln p of every token after the first."""
    tokens = torch.from_numpy(ids.astype(np.int64))[None]  # [1, T]
    return F.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:], reduction="none").double().numpy()


def tokens_within(pattern: re.Pattern, text: str, offsets: list) -> np.ndarray:
    """Whether each token after the BOS begins inside a match's first group, or at the space before that group."""
    spans = [match.span(1) for match in pattern.finditer(text)]
    return np.array([any(begin - 1 <= start < end for begin, end in spans) for start, _ in offsets[1:]])


def print_parts(texts: list, encoded: list, ngram_nats: list, model_nats: list) -> None:
    """Prints perplexities over some of the tokens. Their position or text selects them, never a model's result."""
    positions = [np.arange(len(x)) / len(x) for x in model_nats]
    selections = {"first third of each document": [p < 1 / 3 for p in positions],
                  "last third of each document": [p >= 2 / 3 for p in positions],
                  "answers after `Answer:`": [tokens_within(ANSWERS, t, e.offsets) for t, e in zip(texts, encoded)],
                  "repeated lists and facts": [tokens_within(REPEATED, t, e.offsets) for t, e in zip(texts, encoded)]}
    perplexity = lambda losses, mask: math.exp(np.concatenate(losses)[mask].mean())
    print("\n| tokens | number | 5-gram | the model |\n|---|---|---|---|")
    for name, masks in selections.items():
        mask = np.concatenate(masks)
        print(f"| {name} | {mask.sum()} | {perplexity(ngram_nats, mask):.3f} | {perplexity(model_nats, mask):.3f} |")


def windows(ids: np.ndarray, length: int) -> list:
    """The text in pieces of `length` tokens that begin with a BOS; an incomplete last piece is dropped."""
    step = length - 1
    return [np.concatenate([[BOS], ids[start:start + step]]) for start in range(0, len(ids) - step + 1, step)]


@torch.no_grad()
def continuation(model: Llama, tokenizer: Tokenizer, prompt: str, new_tokens: int = 90) -> str:
    ids = tokenizer.encode(prompt).ids
    for _ in range(new_tokens):
        following = int(model(torch.tensor([ids]))[0, -1].argmax())
        if following == EOS:
            break
        ids.append(following)
    return tokenizer.decode(ids)


def main(model_folder: str, train_documents: str) -> None:
    torch.set_num_threads(1)  # as in training: with more threads, a busy core would delay all of them at every operation
    folder = Path(model_folder)
    tokenizer, model = Tokenizer.from_file(str(folder / "tokenizer.json")), load(folder)
    heldout = (folder / "heldout.txt").read_text()
    texts = split(heldout)
    encoded = tokenizer.encode_batch(texts)
    documents = [np.array(e.ids) for e in encoded]
    tokens, size_bytes = sum(len(d) - 1 for d in documents), sum(len(t.encode()) for t in texts)
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]

    print(f"\n{len(documents)} held-out documents, {tokens} tokens, {size_bytes} bytes\n")
    print("| | perplexity per token | nats per token | bits per byte |\n|---|---|---|---|")
    ngrams = Ngrams(np.load(train_documents), vocab_size)
    for order in range(1, ngrams.highest + 1):
        print(row(f"{order}-gram", nats(ngrams, documents, order), tokens, size_bytes))
    model_nats = [token_nats(model, d) for d in documents]
    print(row("the model", sum(x.sum() for x in model_nats), tokens, size_bytes), flush=True)
    ngram_nats = [-np.log(ngrams.probabilities(d, ngrams.highest)) for d in documents]
    print_parts(texts, encoded, ngram_nats, model_nats)

    # The file as one text: a longer window contains more of the earlier text.
    heldout_ids = np.array(tokenizer.encode(heldout, add_special_tokens=False).ids)
    print("\n| window of the whole text, tokens | perplexity per token |\n|---|---|")
    for length in (128, 256, 512, 1024, 2048):
        losses = [token_nats(model, w) for w in windows(heldout_ids, length)]
        print(f"| {length} | {math.exp(np.concatenate(losses).mean()):.3f} |", flush=True)
    # Some quarters of a window have harder text, so each quarter is also evaluated without the text before it.
    print("\n| position in the window of 2048 | perplexity per token | the same tokens without earlier context |\n|---|---|---|")
    for part in range(0, 2048, 512):
        separate = [token_nats(model, np.concatenate([[BOS], w[part + 1:part + 513]])) for w in windows(heldout_ids, 2048)]
        print(f"| {part} to {part + 511} | {math.exp(np.concatenate([x[part:part + 512] for x in losses]).mean()):.3f} | "
              f"{math.exp(np.concatenate(separate).mean()):.3f} |")

    for prompt in PROMPTS:
        print(f"\n--- greedy after {prompt!r}\n{continuation(model, tokenizer, prompt)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
