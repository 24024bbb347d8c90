"""A stand-in for PyTorch: the operations on logits that the engine uses."""

import math


class Tensor:
    def __init__(self, values):
        self._values = values

    @property
    def shape(self):
        inner = self._values[0] if self._values else None
        return (len(self._values), *(Tensor(inner).shape if isinstance(inner, list) else ()))

    def dim(self):
        return len(self.shape)

    def double(self):
        return self

    def __getitem__(self, index):
        value = self._values[index]
        return Tensor(value) if isinstance(value, list) else Scalar(value)


class Scalar(float):
    def __sub__(self, other):
        return Scalar(float(self) - float(other))

    def item(self):
        return float(self)


def logsumexp(row, dim):
    values = row._values
    largest = max(values)
    return Scalar(largest + math.log(sum(math.exp(value - largest) for value in values)))
