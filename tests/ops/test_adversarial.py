"""Inputs that a model may hold and no operator can serve: an error in words, and never the end of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent  # of handlers.py

# Each line is a call that must raise; the program prints what did not, and its last word.
PROGRAM = """
import sys
sys.path.append(sys.argv[1])
import numpy as np
import mlxc_py as mx
import handlers

def ints(*values):
    return np.array(values, np.int64)

def call(name, *inputs, **attributes):
    handlers.call("", name, *inputs, **attributes)

x = mx.array(np.arange(12, dtype=np.float32).reshape(3, 4))
image = mx.zeros((1, 2, 5, 5))
empty = mx.zeros((0, 4))
index = mx.array(ints(0, 1))
CASES = {
    "Reshape to another size": lambda: call("Reshape", x, ints(5, 5)),
    "Reshape to a negative size": lambda: call("Reshape", x, ints(-2, -6)),
    "Reshape with two unknowns": lambda: call("Reshape", x, ints(-1, -1)),
    "Reshape to 2**40": lambda: call("Reshape", x, ints(2**40)),
    "Expand to what does not fit": lambda: call("Expand", x, ints(2, 3)),
    "Expand to a negative length": lambda: call("Expand", x, ints(-1, 4)),
    "Tile a negative number of times": lambda: call("Tile", x, ints(-1, 1)),
    "ConstantOfShape of a negative length": lambda: call("ConstantOfShape", ints(-3)),
    "Concat of what does not fit": lambda: call("Concat", x, mx.zeros((3, 5)), axis=0),
    "Concat on an axis that is not there": lambda: call("Concat", x, x, axis=5),
    "Squeeze of a longer axis": lambda: call("Squeeze", x, ints(0)),
    "Unsqueeze far away": lambda: call("Unsqueeze", x, ints(7)),
    "Slice with step 0": lambda: call("Slice", x, ints(0), ints(1), ints(0), ints(0)),
    "Slice of an axis that is not there": lambda: call("Slice", x, ints(0), ints(1), ints(9)),
    "Split into the wrong sum": lambda: call("Split", x, ints(1, 1), axis=0, n_outputs=2),
    "Transpose by a wrong order": lambda: call("Transpose", x, perm=[0, 0]),
    "Gather on an axis that is not there": lambda: call("Gather", x, index, axis=-7),
    "Gather from nothing": lambda: call("Gather", empty, index),
    "GatherElements from nothing": lambda: call("GatherElements", empty, mx.zeros((1, 4), mx.int64)),
    "GatherND from nothing": lambda: call("GatherND", empty, mx.zeros((1, 1), mx.int64)),
    "ScatterND into nothing": lambda: call("ScatterND", empty, mx.zeros((1, 1), mx.int64), mx.zeros((1, 4))),
    "ScatterND of what does not fit": lambda: call("ScatterND", x, mx.zeros((1, 1), mx.int64), mx.zeros((2, 9))),
    "TopK of more than there are": lambda: call("TopK", x, ints(5)),
    "TopK of a negative number": lambda: call("TopK", x, ints(-1)),
    "Pad that cuts more than there is": lambda: call("Pad", x, ints(-9, 0, 0, 0)),
    "Range with delta 0": lambda: call("Range", ints(0)[0], ints(5)[0], ints(0)[0]),
    "ReduceSum of an axis that is not there": lambda: call("ReduceSum", x, ints(-8)),
    "CumSum of an axis that is not there": lambda: call("CumSum", x, ints(-8)),
    "ArgMax of an axis that is not there": lambda: call("ArgMax", x, axis=4),
    "ArgMax of nothing": lambda: call("ArgMax", empty, axis=0),
    "Softmax of an axis that is not there": lambda: call("Softmax", x, axis=4),
    "MatMul of what does not fit": lambda: call("MatMul", x, x),
    "integer MatMul of what does not fit": lambda: call("MatMul", x.astype(mx.int32), x.astype(mx.int32)),
    "Gemm of what does not fit": lambda: call("Gemm", x, x),
    "Einsum that makes no sense": lambda: call("Einsum", x, x, equation="ij,jk->ik"),
    "Conv with too large a kernel": lambda: call("Conv", image, mx.zeros((1, 2, 9, 9))),
    "Conv with the wrong channels": lambda: call("Conv", image, mx.zeros((1, 3, 3, 3))),
    "Conv with stride 0": lambda: call("Conv", image, mx.zeros((1, 2, 3, 3)), strides=[0, 0]),
    "ConvTranspose with the wrong channels": lambda: call("ConvTranspose", image, mx.zeros((3, 2, 3, 3))),
    "MaxPool with too large a kernel": lambda: call("MaxPool", image, kernel_shape=[9, 9], n_outputs=1),
    "MaxPool with positions and too large a kernel": lambda: call("MaxPool", image, kernel_shape=[9, 9], n_outputs=2),
    "AveragePool with too large a kernel": lambda: call("AveragePool", image, kernel_shape=[9, 9]),
    "Resize to a negative size": lambda: call("Resize", image, None, None, ints(1, 2, -4, 4)),
    "Resize of nothing": lambda: call("Resize", mx.zeros((1, 1, 0, 4)), None, None, ints(1, 1, 3, 4), mode="linear"),
    "STFT with frames that are too long": lambda: call("STFT", mx.zeros((1, 8, 1)), ints(2)[0], mx.zeros((16,))),
    "Det of what is not square": lambda: call("Det", x),
    "OneHot of a negative depth": lambda: call("OneHot", index, ints(-3), mx.array([0.0, 1.0])),
    "BatchNormalization of 3 channels": lambda: call("BatchNormalization", image, *[mx.zeros(3)] * 4, n_outputs=1),
    "DepthToSpace that does not divide": lambda: call("DepthToSpace", image, blocksize=3),
}
for name, attempt in CASES.items():
    try:
        attempt()
    except Exception as error:
        assert str(error) and not isinstance(error, (AttributeError, NameError)), (name, repr(error))
    else:
        print("no error:", name)
print("alive after", len(CASES))
"""


def test_every_impossible_call_is_an_error() -> None:
    command = [sys.executable, "-c", PROGRAM, str(FOLDER)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (run.returncode, run.stdout.splitlines()) == (0, ["alive after 49"]), run.stdout + run.stderr
