"""Products of a few rows with a matrix, as the network of `compact.py` computes them: the matrix in the dtype of the load, or
in int8. A single row is memory going by, and what is compiled for it is a loop over the matrix; many rows are `linear`.
"""

import torch
from torch import nn
from torch.nn.functional import linear

# A matrix times one row is memory going by. The compiler writes it as a loop over rows; so many rows, from far-apart panels,
# stand beside each other in one loop: as many streams for the processor to fetch ahead, and sums that do not wait for each
# other. More of them take longer again.
PANELS = 4

# Longer sums the compiler adds up in a way that is made for precision and costs half of the speed. (These are short enough
# to be precise.)
LONGEST_SUM = 4096

# So many numbers of an int8 matrix stand in the dtype of the load at once: on a CPU few enough to stay in its caches, on
# CUDA enough for a launch to be worth it.
PIECE = {"cpu": 2**20, "cuda": 2**26}

# The largest code. -128 is not used, so that a scale serves both signs.
LARGEST = 127


def product(x, matrix, bias=None):
    # x: [rows, in], matrix: [out, in]
    if isinstance(matrix, Int8Matrix):
        return matrix.product(x, bias)
    if x.is_cuda or not is_one_compiled_row(x):
        return linear(x, matrix, bias)
    out = panel_sums(x, matrix)
    return (out if bias is None else out + bias).to(matrix.dtype)[None]


def is_one_compiled_row(x):
    return x.shape[0] == 1 and torch.compiler.is_compiling()


def panel_sums(x, matrix):
    """[out] in f32; `x` is one row, and `matrix` anything that becomes f32 as it is read."""
    rows, columns = matrix.shape
    panels = next(count for count in (PANELS, 2, 1) if rows % count == 0)
    parts = next(count for count in range(1, columns + 1) if columns % count == 0 and columns // count <= LONGEST_SUM)
    x = x.float().view(parts, -1)
    matrix = matrix.view(panels, rows // panels, parts, -1)
    sums = torch.cat([(panel.float() * x).sum(-1) for panel in matrix.unbind(0)])  # [out, parts]
    return sums.sum(-1) if parts > 1 else sums[:, 0]


class Int8Matrix(nn.Module):
    """Weights in int8 with an f32 scale for each row: the largest of a row is 127 scales away from zero."""

    def __init__(self, rows, columns):
        super().__init__()
        self.shape = torch.Size((rows, columns))
        self.codes = nn.Parameter(torch.empty(rows, columns, dtype=torch.int8), requires_grad=False)
        self.scales = nn.Parameter(torch.empty(rows, dtype=torch.float32), requires_grad=False)

    def write(self, first, tensor):
        """Quantises `tensor` into the rows from `first` on, a few at a time. False where it holds what is not a number or
        not finite: that has no code."""
        finite = True
        for at in range(0, len(tensor), self._piece_rows("cpu")):
            rows = tensor[at : at + self._piece_rows("cpu")].float()
            here = slice(first + at, first + at + len(rows))
            scales = rows.abs().amax(-1) / LARGEST
            finite = finite and bool(scales.isfinite().all())
            # A row of nothing but zeros has no scale to be divided by.
            self.codes[here] = (rows / torch.where(scales > 0, scales, 1.0)[:, None]).round_().clamp_(-LARGEST, LARGEST)
            self.scales[here] = scales
        return finite

    def lookup(self, ids, dtype):
        return (self.codes[ids].float() * self.scales[ids][:, None]).to(dtype)  # [ids, in]

    def product(self, x, bias=None):
        # x: [rows, in]
        if is_one_compiled_row(x):
            # The codes are added up as they are, and what comes of a row is scaled once.
            sums = (x.float() * self.codes.float()).sum(-1) if x.is_cuda else panel_sums(x, self.codes)
            out = sums * self.scales
            return (out if bias is None else out + bias).to(x.dtype)[None]
        count, size = self.shape[0], self._piece_rows(x.device.type)
        pieces = [slice(first, min(first + size, count)) for first in range(0, count, size)]
        biases = [None if bias is None else bias[piece] for piece in pieces]
        return torch.cat([linear(x, self._plain(piece, x.dtype), part) for piece, part in zip(pieces, biases)], dim=-1)

    def _plain(self, piece, dtype):
        """Rows as they would be in the dtype of the load."""
        return self.codes[piece].float().mul_(self.scales[piece, None]).to(dtype)

    def _piece_rows(self, device_type):
        return max(1, PIECE[device_type] // self.shape[1])
