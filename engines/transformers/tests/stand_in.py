"""A stand-in for CUDA graphs in tests: it records captured operations, and a replay repeats them on the same tensors.
As with a real capture, capturing leaves no results."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Written(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls, self.before = [], {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        written = [
            value
            for argument, value in zip(operation._schema.arguments, args)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, torch.Tensor)
        ]
        for tensor in written:
            self.before.setdefault(id(tensor), (tensor, tensor.clone()))
        result = operation(*args, **kwargs)
        self.calls.append((operation, args, kwargs, result))
        return result

    def undo(self):
        for tensor, was in reversed(self.before.values()):
            tensor.copy_(was)

    def replay(self):
        for operation, args, kwargs, result in self.calls:
            second = operation(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(second)):
                # A view follows its base; an in-place operation has already done its work.
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@contextmanager
def stand_in_for_cuda_graphs():
    captured = []

    @contextmanager
    def graph(made):
        with Written() as written:
            yield
        written.undo()
        made.replay = written.replay
        captured.append(made)

    stream = SimpleNamespace(wait_stream=lambda other: None)
    with mock.patch.multiple(
        "torch.cuda",
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=lambda stream: nullcontext(),
        CUDAGraph=SimpleNamespace,
        graph=graph,
    ):
        yield captured
