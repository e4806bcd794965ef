"""Read a model's interface: its inputs, and what the graph tells about their values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from ort_ep.cli.console import CommandError

# ops that hand their first input's values on unchanged
_PASSING = {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Transpose", "Flatten", "Expand", "Slice", "Tile"}
# (op, position of the indices, position of the table they index); the axis attribute says which dimension
_INDEXING = {
    "Gather": (1, 0),
    "GatherElements": (1, 0),
    "ArrayFeatureExtractor": (1, 0),
    "GatherBlockQuantized": (1, 0),
}
# EmbedLayerNormalization's (indices, table) pairs
_EMBEDDINGS = {0: 2, 1: 4}


@dataclass(frozen=True)
class InputSpec:
    """One graph input: a dim is a size, a symbol, or None; dims is None when the rank is unknown."""

    name: str
    elem_type: int
    dtype: np.dtype
    dims: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        shape = (
            "of any rank"
            if self.dims is None
            else "[" + ", ".join(str(d) if d is not None else "?" for d in self.dims) + "]"
        )
        return f"{self.dtype.name} {shape}"


def existing_file(path: Path, what: str) -> Path:
    """`path` if it is a readable file, else a CommandError that says why not."""
    if path.is_dir():
        raise CommandError(f"{what} {path} is a directory", "Give a file.")
    if not path.exists():
        raise CommandError(f"{what} {path} does not exist", f"Check the path; it was looked up from {Path.cwd()}.")
    return path


def load_model(path: Path) -> onnx.ModelProto:
    """The model without its external data, which ONNX Runtime reads by itself."""
    existing_file(path, "model")
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError as error:
        raise CommandError(
            f"the name {path} is not valid UTF-8, and ONNX Runtime takes no other",
            "Rename the file, or set PYTHONUTF8=1 where the name is fine and the locale is not.",
        ) from error
    try:
        model = onnx.load_model(str(path), load_external_data=False)
    except OSError as error:
        raise CommandError(f"model {path} can't be read: {error.strerror}", "Check the file's permissions.") from error
    except (DecodeError, ValueError) as error:
        raise _not_a_model(path) from error
    if not model.graph.node and not model.graph.output:
        raise _not_a_model(path)
    return model


def _not_a_model(path: Path) -> CommandError:
    return CommandError(
        f"{path} is not an ONNX model, or it is cut off ({path.stat().st_size} bytes)",
        "Give the .onnx file itself; a Git LFS pointer or an HTML page saved under that name looks like this.",
    )


def input_specs(model: onnx.ModelProto) -> list[InputSpec]:
    """The inputs a caller must feed: graph inputs without a default."""
    defaults = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
    return [_spec(value) for value in model.graph.input if value.name not in defaults]


def _spec(value: onnx.ValueInfoProto) -> InputSpec:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "untyped").removesuffix("_type")
        raise CommandError(
            f"input {value.name!r} is of type {what}; this command feeds tensors only",
            "Run such a model from Python with ort_ep.InferenceSession.",
        )
    tensor = value.type.tensor_type
    dims: tuple[int | str | None, ...] | None = None
    if tensor.HasField("shape"):
        dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
    return InputSpec(value.name, tensor.elem_type, _numpy_dtype(tensor.elem_type), dims)


def _numpy_dtype(elem_type: int) -> np.dtype:
    if elem_type == TensorProto.STRING:
        return np.dtype(object)
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(elem_type))


def index_limit(graph: onnx.GraphProto, name: str) -> int | None:
    """The exclusive upper bound of an integer input, where it indexes a table or is compared with a constant."""
    shapes = {t.name: tuple(t.dims) for t in graph.initializer}
    constants = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
            shapes[node.output[0]] = tuple(node.attribute[0].t.dims)
    pending, seen, limits = [name], {name}, []
    while pending:
        value = pending.pop()
        for node in graph.node:
            for position in (i for i, used in enumerate(node.input) if used == value):
                limit = _limit_at(node, position, shapes, constants)
                if limit is not None:
                    limits.append(limit)
                elif node.op_type in _PASSING and position == 0 and node.output[0] not in seen:
                    seen.add(node.output[0])
                    pending.append(node.output[0])
    return min(limits) if limits else None


def _limit_at(
    node: onnx.NodeProto, position: int, shapes: dict[str, tuple[int, ...]], constants: dict[str, TensorProto]
) -> int | None:
    """The bound that `node` puts on its input number `position`, or None."""
    if node.op_type == "EmbedLayerNormalization":
        table = node.input[_EMBEDDINGS[position]] if position in _EMBEDDINGS else ""
        return shapes[table][0] if table in shapes else None
    if node.op_type == "OneHot" and position == 0 and node.input[1] in constants:
        return int(onnx.numpy_helper.to_array(constants[node.input[1]]).reshape(-1)[0])
    if node.op_type == "Equal" and node.input[1 - position] in constants:
        compared = constants[node.input[1 - position]]
        return int(onnx.numpy_helper.to_array(compared).max()) + 1 if math.prod(compared.dims) > 1 else None
    indices, table_position = _INDEXING.get(node.op_type, (-1, -1))
    if position != indices or node.input[table_position] not in shapes:
        return None
    axis = next((a.i for a in node.attribute if a.name in ("axis", "gather_axis")), 0)
    if node.op_type == "ArrayFeatureExtractor":
        axis = -1
    shape = shapes[node.input[table_position]]
    return shape[axis] if -len(shape) <= axis < len(shape) else None
