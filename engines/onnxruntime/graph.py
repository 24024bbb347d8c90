"""Reads the dtypes and the sizes of the ONNX graph that the library loads."""

from math import prod
from types import SimpleNamespace

import onnx
from onnx import TensorProto

# This project's names of the dtypes, and the bytes of an element.
DTYPES = {
    TensorProto.FLOAT: ("f32", 4),
    TensorProto.FLOAT16: ("f16", 2),
    TensorProto.BFLOAT16: ("bf16", 2),
    TensorProto.INT8: ("int8", 1),
    TensorProto.UINT8: ("uint8", 1),
    TensorProto.INT32: ("int32", 4),
    TensorProto.INT64: ("int64", 8),
}

# The nodes whose second input is a matrix of quantized weights, several of them in one element.
QUANTIZED_PRODUCT = "MatMulNBits"
QUANTIZED_EMBEDDING = "GatherBlockQuantized"

# The attribute `accuracy_level` of a product that rounds its activations to int8.
INT8_ACTIVATIONS = 4


def read_graph(path):
    """`weights_dtype` (of most weights), `weights_bytes`, `compute_dtype` and `kv_dtype` of the graph in a folder."""
    graph = onnx.load(path / "model.onnx", load_external_data=False).graph
    quantized, levels = {}, set()
    for node in graph.node:
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        if node.op_type == QUANTIZED_PRODUCT:
            quantized[node.input[1]] = attributes["bits"]
            levels.add(attributes.get("accuracy_level", 0))
        elif node.op_type == QUANTIZED_EMBEDDING:
            quantized[node.input[0]] = attributes.get("bits", 4)
    weights_by_dtype, weights_bytes = {}, 0
    for tensor in graph.initializer:
        (dtype, size), elements = DTYPES[tensor.data_type], prod(tensor.dims)
        weights_bytes += elements * size
        if (bits := quantized.get(tensor.name)) is not None:
            dtype, elements = f"int{bits}", elements * 8 * size // bits
        weights_by_dtype[dtype] = weights_by_dtype.get(dtype, 0) + elements
    caches = (value.type.tensor_type.elem_type for value in graph.input if value.name.startswith("past_key_values."))
    return SimpleNamespace(
        weights_dtype=max(weights_by_dtype, key=weights_by_dtype.get),
        weights_bytes=weights_bytes,
        compute_dtype="int8" if levels == {INT8_ACTIVATIONS} else "f32",
        kv_dtype=DTYPES[next(caches)][0],
    )
