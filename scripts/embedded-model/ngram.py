"""Interpolated modified Kneser-Ney n-grams over token ids: a baseline without a neural network.

The formulas are those of Chen and Goodman, "An empirical study of smoothing techniques for language modeling" (1998):

    p(w | h) = max(c(hw) - D(c(hw)), 0) / c(h) + gamma(h) p(w | h'),   gamma(h) = sum of the discounts / c(h)

Here h' is h without its first word. c is the count in the highest order, and the number of different left neighbours in the
lower orders. D has three values: for a count of 1, of 2, and of more. The lowest order is mixed with 1 / vocab_size.
"""

import numpy as np

BOS = 0
BITS = 12  # the bits of one token id: a key of 64 bits holds five ids


def ngram_keys(stream: np.ndarray, order: int) -> np.ndarray:
    """The packed n-grams that lie within one document, with BOS only as the first token."""
    stream = stream.astype(np.uint64)
    length = len(stream) - order + 1
    keys = np.zeros(length, dtype=np.uint64)
    is_within_document = np.ones(length, dtype=bool)
    for index in range(order):
        part = stream[index:index + length]
        keys = (keys << np.uint64(BITS)) | part
        if index > 0:
            is_within_document &= part != BOS
    # BOS itself is given, never predicted.
    return keys[is_within_document & (stream[order - 1:] != BOS)]


def discounts(counts: np.ndarray) -> np.ndarray:
    """D for counts of 0, 1, 2, and 3 or more (equation 26 of the paper). In a text that is too small, D is one half."""
    n1, n2, n3, n4 = (int((counts == c).sum()) for c in (1, 2, 3, 4))
    if not (n1 and n2 and n3 and n4):
        return np.array([0.0, 0.5, 0.5, 0.5])
    y = n1 / (n1 + 2 * n2)
    discounts_by_count = [0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
    return np.clip(np.array(discounts_by_count), [0, 0.01, 0.01, 0.01], [0, 1, 2, 3])


class Table:
    """One order: the n-grams with their counts, and the contexts with their sums and gammas."""

    def __init__(self, keys: np.ndarray, counts: np.ndarray):
        self.keys, self.counts = keys, counts  # keys are sorted and unique
        self.discount = discounts(counts)
        self.contexts, starts = np.unique(keys >> np.uint64(BITS), return_index=True)
        discounted = self.discount[np.minimum(counts, 3)]
        self.sums = np.add.reduceat(counts, starts).astype(np.float64)
        self.gamma_of_context = np.add.reduceat(discounted, starts) / self.sums

    def interpolate(self, keys: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """The probability of the last token of each key, given the probabilities of the order below.

        For an unseen context, this is the probability of the order below.
        """
        count = np.where(*lookup(self.keys, keys, self.counts), 0)
        is_seen, total = lookup(self.contexts, keys >> np.uint64(BITS), self.sums)
        _, gamma = lookup(self.contexts, keys >> np.uint64(BITS), self.gamma_of_context)
        discounted = np.maximum(count - self.discount[np.minimum(count, 3)], 0.0)
        return np.where(is_seen, discounted / total + gamma * lower, lower)


def lookup(sorted_keys: np.ndarray, keys: np.ndarray, values: np.ndarray):
    """Whether each key is in the table, and its value (arbitrary if not)."""
    index = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return sorted_keys[index] == keys, values[index]


class Ngrams:
    """Models of order 1 to `highest`. `top[n]` is the table of order n for the model of order n, `below[n]` for models of a
    higher order."""

    def __init__(self, stream: np.ndarray, vocab_size: int, highest: int = 5):
        self.vocab_size, self.highest = vocab_size, highest
        raw = [None] + [np.unique(ngram_keys(stream, n), return_counts=True) for n in range(1, highest + 1)]
        self.top = [None] + [Table(*raw[n]) for n in range(1, highest + 1)]
        self.below = [None] + [Table(*self.count_predecessors(n, *raw[n], raw[n + 1][0])) for n in range(1, highest)]

    @staticmethod
    def count_predecessors(order: int, keys, counts, longer_keys):
        """The number of different tokens before each n-gram; an n-gram that begins with BOS keeps its count."""
        endings, different = np.unique(longer_keys & np.uint64((1 << (BITS * order)) - 1), return_counts=True)
        is_known, value = lookup(endings, keys, different)
        return keys, np.where(is_known, value, counts)

    def probabilities(self, document: np.ndarray, order: int) -> np.ndarray:
        """The probability of every token after the BOS of a document, from at most `order - 1` tokens before each."""
        document = document.astype(np.uint64)
        assert document[0] == BOS
        predicted = len(document) - 1
        p = np.full(predicted, 1.0 / self.vocab_size)
        for n in range(1, order + 1):
            first = max(n - 2, 0)  # the earliest predicted token with n - 1 tokens before it, BOS counted
            if predicted <= first:
                break
            keys = np.zeros(predicted - first, dtype=np.uint64)
            for index in range(n):
                begin = first + 1 - (n - 1) + index
                keys = (keys << np.uint64(BITS)) | document[begin:begin + len(keys)]
            # `below` has raw counts for n-grams that begin with BOS, because no token precedes them.
            table = self.top[n] if n == order else self.below[n]
            p[first:] = table.interpolate(keys, p[first:])
        return p


def nats(model: Ngrams, documents: list, order: int) -> float:
    """The sum of -ln p over all documents."""
    return float(sum(-np.log(model.probabilities(document, order)).sum() for document in documents))
