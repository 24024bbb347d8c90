"""Products of a few rows with a matrix for `compact.py`: the matrix in the dtype of the load, or in int8. A single
row is bound by memory, and its compiled code is a loop over the matrix; many rows use `linear`.
"""

import torch
from torch import nn
from torch.nn.functional import linear

# The number of panels. A matrix times one row is bound by memory, and the compiler writes it as a loop over rows. One loop
# takes a row from each of this many distant panels: the processor prefetches as many streams, and their sums are
# independent. More panels are slower.
PANELS = 4

# The longest sum in one piece. For longer ones the compiler uses a more precise method at half the speed. (These are short
# enough to be precise.)
LONGEST_SUM = 4096

# The numbers of an int8 matrix that are widened at once: few enough for the caches of a CPU, and enough for a launch on
# CUDA.
PIECE = {"cpu": 2**20, "cuda": 2**26}

# The most rows that the compiler's own loop sums with an int8 matrix. More rows are faster with the matrix widened first.
# (On CUDA it is the compiler's own rule.)
SUMMED_ROWS = {"cpu": 8, "cuda": 1}

# The largest code. -128 is unused, so that a scale serves both signs.
LARGEST = 127


def product(x, matrix, bias=None):
    # x: [rows, in], matrix: [out, in]
    if isinstance(matrix, Int8Matrix):
        return int8_product(x, matrix.codes, matrix.scales, bias)
    if x.is_cuda or x.shape[0] > 1 or not torch.compiler.is_compiling():
        return linear(x, matrix, bias)
    out = panel_sums(x, matrix)
    return (out if bias is None else out + bias).to(matrix.dtype)


def int8_product(x, codes, scales, bias=None):
    """Sums the codes unscaled, and scales each sum. For many rows, it widens the matrix piece by piece."""
    compiling = torch.compiler.is_compiling()
    if not compiling or x.shape[0] > SUMMED_ROWS[x.device.type]:
        # A product that is not fused needs no unrolling for the compiler.
        return (linear_in_pieces if not compiling or x.is_cuda else opaque_linear)(x, codes, scales, bias)
    sums = (x.float() * codes.float()).sum(-1)[None] if x.is_cuda else panel_sums(x, codes)
    out = sums * scales
    return (out if bias is None else out + bias).to(x.dtype)


def panel_sums(x, matrix):
    """[rows, out] in f32; `matrix` is any tensor that converts to f32. All rows of `x` are in one loop."""
    rows, columns = matrix.shape
    panels = next(count for count in (PANELS, 2, 1) if rows % count == 0)
    parts = next(count for count in range(1, columns + 1) if columns % count == 0 and columns // count <= LONGEST_SUM)
    x = x.float().view(-1, parts, columns // parts)
    matrix = matrix.view(panels, rows // panels, parts, -1)
    sums = [torch.cat([(panel.float() * row).sum(-1) for panel in matrix.unbind(0)]) for row in x.unbind(0)]  # each [out, parts]
    return torch.stack([each.sum(-1) if parts > 1 else each[:, 0] for each in sums])


def linear_in_pieces(x, codes, scales, bias):
    size = max(1, PIECE[x.device.type] // codes.shape[1])
    biases = [None] * len(codes) if bias is None else bias.split(size)
    pieces = zip(codes.split(size), scales.split(size), biases)
    return torch.cat([linear(x, dequantised(some, scale, x.dtype), part) for some, scale, part in pieces], dim=-1)


@torch.library.custom_op("orchestrate_transformers::int8_linear", mutates_args=())
def opaque_linear(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return linear_in_pieces(x, codes, scales, bias)


@opaque_linear.register_fake
def _(x, codes, scales, bias):
    return x.new_empty(x.shape[0], codes.shape[0])


def dequantised(codes, scales, dtype):
    """Rows in the dtype of the load."""
    return codes.float().mul_(scales[:, None]).to(dtype)


class Int8Matrix(nn.Module):
    """Weights in int8 with an f32 scale for each row: the largest of a row is 127 scales away from zero."""

    def __init__(self, rows, columns):
        super().__init__()
        self.shape = torch.Size((rows, columns))
        self.codes = nn.Parameter(torch.empty(rows, columns, dtype=torch.int8), requires_grad=False)
        self.scales = nn.Parameter(torch.empty(rows, dtype=torch.float32), requires_grad=False)

    def write(self, first, tensor):
        """Quantises `tensor` into the rows from `first` on, a few at a time. Returns False for NaN or infinity, which
        have no code."""
        finite = True
        for rows in tensor.split(max(1, PIECE["cpu"] // self.shape[1])):
            rows, span = rows.float(), slice(first, first + len(rows))
            first += len(rows)
            scales = rows.abs().amax(-1) / LARGEST
            finite = finite and bool(scales.isfinite().all())
            # A row of zeros has the scale 0, which cannot divide.
            self.codes[span] = (rows / torch.where(scales > 0, scales, 1.0)[:, None]).round_().clamp_(-LARGEST, LARGEST)
            self.scales[span] = scales
        return finite

    def lookup(self, ids, dtype):
        return dequantised(self.codes[ids], self.scales[ids], dtype)  # [ids, in]
