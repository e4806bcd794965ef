"""Indices, positions and coordinates that lie nowhere: operators stay within their tensors, or say what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent  # of handlers.py

# What must raise is listed apart; everything runs in one process, which must live to say so.
PROGRAM = """
import sys
sys.path.append(sys.argv[1])
import numpy as np
from handlers import call

FAR = 2**30

def microsoft(name, *inputs, **attributes):
    call("com.microsoft", name, *inputs, **attributes)

def floats(*shape):
    return np.ones(shape, np.float32)

def ints(*values):
    return np.array(values, np.int32)

nan = np.full((1, 4), np.nan, np.float32)
far = ints([FAR, -FAR, 3])
tree = dict(nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2], nodes_values=[0.5, 0.0, 0.0],
            nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0],
            target_ids=[0, 0], target_treeids=[0, 0], target_nodeids=[1, 2], target_weights=[3.0, -4.0], n_targets=1)
SURVIVES = {
    "rotary": lambda: call("", "RotaryEmbedding", floats(1, 2, 3, 8), floats(4, 4), floats(4, 4), far),
    "microsoft rotary": lambda: microsoft("RotaryEmbedding", floats(1, 3, 8), far, floats(4, 4), floats(4, 4)),
    "embeddings": lambda: microsoft("EmbedLayerNormalization", far, far, floats(4, 8), floats(5, 8), floats(2, 8),
                                    floats(8), floats(8), None, far, n_outputs=1),
    "group index": lambda: microsoft("MatMulNBits", floats(2, 32), np.ones((6, 2, 8), np.uint8), floats(6, 2), None,
                                     np.full(32, FAR, np.int32), K=32, N=6, bits=4, block_size=16),
    "rows of packed weights": lambda: microsoft("GatherBlockQuantized", np.ones((4, 16), np.uint8), far,
                                                floats(4, 2), bits=4, block_size=16),
    "lengths": lambda: microsoft("GroupQueryAttention", floats(2, 1, 32), floats(2, 1, 16), floats(2, 1, 16),
                                 floats(2, 2, 6, 8), floats(2, 2, 6, 8), ints(FAR, -FAR), np.array([6]), floats(9, 4),
                                 floats(9, 4), num_heads=4, kv_num_heads=2, do_rotary=1, n_outputs=3),
    "crops that are not numbers": lambda: microsoft("CropAndResize", floats(1, 2, 5, 5), nan, ints(FAR),
                                                    np.array([2, 2])),
    "offsets that are not numbers": lambda: call("", "DeformConv", floats(1, 1, 5, 5), floats(1, 1, 2, 2),
                                                 np.full((1, 8, 4, 4), np.nan, np.float32)),
    "regions far away": lambda: call("", "MaxRoiPool", floats(1, 1, 5, 5), np.full((2, 5), 1e30, np.float32),
                                     pooled_shape=[2, 2]),
    "repeated tokens": lambda: microsoft("NGramRepeatBlock", np.full((1, 4), FAR, np.int64), floats(1, 5),
                                         ngram_size=2),
    "rows of a table": lambda: microsoft("TorchEmbedding", floats(3, 4), np.array([FAR, -FAR])),
    "sequences": lambda: call("", "LSTM", floats(3, 2, 4), floats(1, 8, 4), floats(1, 8, 2), None, ints(FAR, -5),
                              direction="reverse", n_outputs=1),
    "offsets of packed tokens": lambda: microsoft("PackedMultiHeadAttention", floats(4, 8), floats(4, 8), floats(4, 8),
                                                  None, ints([0, 1], [2, 3]), ints(0, FAR, -FAR), floats(1, 2, 2, 2),
                                                  num_heads=2),
    "packed requests": lambda: microsoft("VarlenCausalConvWithState", floats(4, 2), floats(2, 1, 3), ints(0, FAR, -FAR),
                                         None, floats(2, 2, 2), ints(FAR, -FAR), state_update_capacity=2, n_outputs=3),
    "packed tokens": lambda: microsoft("VarlenNGramHashMapping", ints(FAR, -FAR, 3), ints(5, 7), ints(0, 0),
                                       ints(FAR, 1, -FAR), max_ngram_size=2, n_head_per_ngram=2, pad_id=0, n_outputs=2),
    "pages": lambda: microsoft("PagedAttention", floats(2, 8), floats(2, 8), floats(2, 8), floats(2, 4, 1, 8),
                               floats(2, 4, 1, 8), ints(0, FAR), ints(-FAR), ints([FAR, -FAR]), floats(3, 4),
                               floats(3, 4), ints(FAR, -FAR), num_heads=1, kv_num_heads=1, do_rotary=1),
    "characters": lambda: microsoft("WordConvEmbedding", ints([FAR, -FAR, 3]), floats(2, 1, 2, 4), floats(2),
                                    floats(3, 4)),
}
RAISES = {
    "features": lambda: call("ai.onnx.ml", "TreeEnsembleRegressor", floats(2, 3), nodes_featureids=[7, 0, 0], **tree),
    "branches": lambda: call("ai.onnx.ml", "TreeEnsemble", floats(2, 3), tree_roots=[0], n_targets=1,
                             nodes_featureids=[0], nodes_splits=floats(1), nodes_modes=np.zeros(1, np.uint8),
                             nodes_truenodeids=[FAR], nodes_falsenodeids=[0], nodes_trueleafs=[0], nodes_falseleafs=[1],
                             leaf_targetids=[0], leaf_weights=floats(1)),
}
for title, attempt in SURVIVES.items():
    attempt()
for title, attempt in RAISES.items():
    try:
        attempt()
    except ValueError:
        continue
    print("did not raise:", title)
print("done")
"""


def test_nothing_reads_beyond_its_tensor() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(FOLDER)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr[-2000:]
