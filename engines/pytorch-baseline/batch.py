"""The layout of a batch: the row, the column and the position of each token, and the keys that it attends to."""

import torch

# The id, the position and the sequence number of a pad. Tokens attend only to their own sequence, so never to a pad.
PAD = (0, 0, -1)


class Batch:
    """Tokens of one or more sequences, in rows of equal length. `ids`, `positions` (of each token in its sequence) and
    `sequences` (the number of its sequence) are [rows, columns]. `last` has the rows and the columns of the sequences' last
    tokens.

    With padding `left` and `right` each sequence is a row; `packed` puts all sequences into one row. With a cache, the batch
    has only the tokens that are not in the cache. The keys are then those of the cache and of the batch.
    """

    def __init__(self, sequences, padding, device, cache=None):
        starts = [0] * len(sequences) if cache is None else cache.lengths(sequences)
        pieces = [
            [(id, position, number) for position, id in enumerate(ids[start:], start)]
            for number, (ids, start) in enumerate(zip(sequences, starts))
        ]
        rows = [sum(pieces, [])] if padding == "packed" else pad(pieces, padding)
        # A later column of a sequence replaces an earlier one, so its last column remains.
        last = {number: (row, column) for row, cells in enumerate(rows) for column, (_, _, number) in enumerate(cells)}
        self.last = tuple(zip(*(last[number] for number in range(len(sequences)))))
        cells = torch.tensor(rows, dtype=torch.int32, device=device)  # [rows, columns, 3]
        self.ids, self.positions, self.sequences = cells.unbind(-1)
        self._cache = cache
        self._key_positions = self._with_cached("positions", self.positions, dim=1)
        self._key_sequences = self._with_cached("sequences", self.sequences, dim=1)

    def visible_keys(self, window):
        """Whether each token attends to each key, [rows, columns, keys]. A token attends to its own sequence up to itself, and
        with a window only to the last `window` of these tokens."""
        distances = self.positions[:, :, None] - self._key_positions[:, None, :]
        visible = (self.sequences[:, :, None] == self._key_sequences[:, None, :]) & (distances >= 0)
        return visible if window is None else visible & (distances < window)

    def all_keys(self, layer, k, v):
        """The keys and values of a layer: those in the cache, then `k` and `v`, [rows, kv_heads, columns, head_dim]."""
        return self._with_cached((layer, "k"), k, dim=2), self._with_cached((layer, "v"), v, dim=2)

    def _with_cached(self, name, tensor, dim):
        return tensor if self._cache is None else self._cache.append(name, tensor, dim)


class Cache:
    """The keys and values of earlier batches of the same sequences, and the layout of their columns."""

    def __init__(self):
        self._tensors, self._lengths = {}, None

    def lengths(self, sequences):
        """The number of tokens of each sequence that are in the cache. From now on, all of their tokens count as cached."""
        lengths = self._lengths or [0] * len(sequences)
        self._lengths = [len(ids) for ids in sequences]
        return lengths

    def append(self, name, tensor, dim):
        """Adds columns to a tensor of the cache, and returns all of its columns."""
        if name in self._tensors:
            tensor = torch.cat([self._tensors[name], tensor], dim)
        self._tensors[name] = tensor
        return tensor


def pad(rows, side):
    """Pads the rows on the left or the right to the length of the longest."""
    columns = max(len(row) for row in rows)
    pads = [[PAD] * (columns - len(row)) for row in rows]
    return [pad + row if side == "left" else row + pad for row, pad in zip(rows, pads)]
