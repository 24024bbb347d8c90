"""A stand-in for CUDA graphs in tests: it records captured operations, and a replay repeats them on the same tensors.
Like a real capture, the recording leaves all tensors unchanged."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Recording(TorchDispatchMode):
    """Records operations, and the earlier contents of the tensors that these operations write."""

    def __init__(self):
        super().__init__()
        self.calls, self.earlier_contents = [], {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        written = [
            value
            for argument, value in zip(operation._schema.arguments, args)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, torch.Tensor)
        ]
        for tensor in written:
            self.earlier_contents.setdefault(id(tensor), (tensor, tensor.clone()))
        result = operation(*args, **kwargs)
        self.calls.append((operation, args, kwargs, result))
        return result

    def undo(self):
        for tensor, content in reversed(self.earlier_contents.values()):
            tensor.copy_(content)

    def replay(self):
        for operation, args, kwargs, result in self.calls:
            new_result = operation(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(new_result)):
                # The old and the new result of a view or of an in-place operation share their memory.
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@contextmanager
def stand_in_for_cuda_graphs():
    """Replaces CUDA graphs and streams. Yields the list of captured graphs."""
    captured_graphs = []

    @contextmanager
    def capture(graph):
        with Recording() as recording:
            yield
        recording.undo()
        graph.replay = recording.replay
        captured_graphs.append(graph)

    stream = SimpleNamespace(wait_stream=lambda other: None)
    with mock.patch.multiple(
        "torch.cuda",
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=lambda stream: nullcontext(),
        CUDAGraph=SimpleNamespace,
        graph=capture,
    ):
        yield captured_graphs
