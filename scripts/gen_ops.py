#!/usr/bin/env python3
"""Regenerate docs/OPS.md, the list of operators that the execution provider translates, from its registry."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from ort_ep.dtypes import NARROW
from ort_ep.registry import ANY, FLOATS, INTS, NUMERIC, REGISTRY, SIGNED, SINGLES, UNSIGNED, Handler

DOCUMENT: Final = Path(__file__).resolve().parents[1] / "docs" / "OPS.md"
COMMAND: Final = "PYTHONPATH=. python scripts/gen_ops.py"

# Written down, not asked of onnx: the document must not depend on the version that is installed.
OPSETS: Final = {"ai.onnx": 28, "ai.onnx.ml": 5, "com.microsoft": 1}
AS_OF: Final = {"com.microsoft": " of ONNX Runtime 1.32"}
FUNCTIONS: Final = {
    "ai.onnx": (
        "BlackmanWindow",
        "CenterCropPad",
        "HammingWindow",
        "HannWindow",
        "NegativeLogLikelihoodLoss",
        "SoftmaxCrossEntropyLoss",
    ),
}
MICROSOFT: Final = {
    "generation, which drives a whole decoder by itself": (
        "BeamSearch",
        "BifurcationDetector",
        "GreedySearch",
        "Sampling",
        "SpeculativePrefixCommit",
        "WhisperBeamSearch",
    ),
    "strings, which MLX does not have": ("Tokenizer",),
    "sparse tensors, which ONNX Runtime gives no plugin": ("SparseToDenseMatMul",),
    "another provider's compiled graph": ("EPContext", "Snpe"),
    "an example of a schema": ("SampleOp",),
    "a packed format that is not documented": (
        "DequantizeBFP",
        "GatherPacked",
        "MatMulPacked",
        "QuantizeBFP",
    ),
    "written for one GPU provider, and there is no CPU kernel to tell what is right": (
        "BitmaskBiasDropout",
        "BitmaskDropout",
        "ConvStateReplay",
        "DecoderAttention",
        "DecoderMaskedSelfAttention",
        "DequantizeWithOrder",
        "DynamicSparseAttention",
        "GatedDeltaNetStateReplay",
        "GemmFloat8",
        "HyperConnectionLowRankMix",
        "LongformerAttention",
        "Mamba2Verify",
        "MatMulBlockQuantizedFp4Weight",
        "MatMulBlockQuantizedFp8Weight",
        "MatMulNBitsMlp",
        "MatMulNBitsQLoRA",
        "MatMulNBitsQkv",
        "MoEPacked",
        "PackedSparseAttentionIndexer",
        "PackedSparseAttentionIndexerMerge",
        "QOrderedAttention",
        "QOrderedGelu",
        "QOrderedLayerNormalization",
        "QOrderedLongformerAttention",
        "QOrderedMatMul",
        "QuantizeWithOrder",
        "RMSNormRotary",
        "RouterGateUpProj",
        "SparseAttentionIndexer",
        "SparsePagedAttention",
    ),
}
DECLINED: Final = {
    "com.microsoft": {name: reason for reason, names in MICROSOFT.items() for name in names},
    "ai.onnx": {
        "Constant": "not needed, since ONNX Runtime makes an initializer of it",
        "RegexFullMatch": "strings, which MLX does not have",
        "StringConcat": "strings, which MLX does not have",
        "StringNormalizer": "strings, which MLX does not have",
        "StringSplit": "strings, which MLX does not have",
    },
    "ai.onnx.ml": {
        "CastMap": "maps, which a plan does not hold",
        "CategoryMapper": "strings, which MLX does not have",
        "DictVectorizer": "maps, which a plan does not hold",
        "ZipMap": "maps, which a plan does not hold",
    },
}

# Larger sets first: a set of dtypes is told by the largest of these that it holds, and what is left over by name.
NAMED: Final = {
    "any": ANY,
    "numeric": NUMERIC,
    "ints": INTS,
    "floats": FLOATS,
    "signed": SIGNED,
    "unsigned": UNSIGNED,
    "singles": SINGLES,
    "narrow": NARROW,
}
COLUMNS: Final = ("Operator", "Since", "Dtypes", "Host inputs", "Restrictions", "How")

Row = tuple[str, ...]


def dtype_names(names: Iterable[str]) -> str:
    """A set of dtypes in few words."""
    rest, words = frozenset(names), []
    for word, members in NAMED.items():
        if members <= rest:
            words.append(word)
            rest -= members
    return ", ".join([*words, *sorted(rest)])


def row(handler: Handler) -> Row:
    """What the document tells of a handler, without its version."""
    if isinstance(handler.dtypes, frozenset):
        dtypes = dtype_names(handler.dtypes)
    else:
        dtypes = "; ".join(f"`{key}`: {dtype_names(names)}" for key, names in handler.dtypes.items())
    inputs = [name for name in (*handler.parameters, handler.variadic) if name in handler.host]
    restrictions = (handler.claim.__doc__ or "").strip().splitlines()[0] if handler.claim else ""
    how = ["host step" if handler.host_step else "handler"]
    how += ["shape only"] * handler.host_result + ["fold"] * (handler.fold is not None)
    how += ["containers"] * handler.containers
    return dtypes, ", ".join(f"`{name}`" for name in inputs), restrictions, ", ".join(how)


def rows(handlers: Iterable[Handler]) -> Iterator[Row]:
    """One row per operator, and another for each version that changes what is told of it."""
    for (name, told), versions in groupby(handlers, key=lambda handler: (handler.name, row(handler))):
        yield (f"`{name}`", ", ".join(str(handler.since) for handler in versions), *told)


def table(columns: Row, body: Iterable[Row]) -> list[str]:
    lines = [columns, ("---",) * len(columns), *body]
    return [f"| {' | '.join(line)} |".replace("|  |", "| |").replace("|  |", "| |") for line in lines]


def section(domain: str, handlers: list[Handler]) -> list[str]:
    """The operators of a domain: those with a handler, and the rest of its schemas."""
    lines = ["", f"## {domain}", "", f"{len({handler.name for handler in handlers})} operators have a handler.", ""]
    lines += table(COLUMNS, rows(handlers))
    if domain in OPSETS:
        without: list[Row] = [(f"`{name}`", "translated: function body") for name in FUNCTIONS.get(domain, ())]
        without += [(f"`{name}`", f"declined: {reason}") for name, reason in DECLINED[domain].items()]
        lines += [
            "",
            f"The other operators of {domain}, up to operator set {OPSETS[domain]}{AS_OF.get(domain, '')}:",
            "",
        ]
        lines += table(("Operator", "What becomes of it"), sorted(without))
    return lines


def render() -> str:
    """The whole document."""
    REGISTRY.load()
    lines = [f"<!-- Generated by `{COMMAND}`; do not edit. -->", *INTRODUCTION.splitlines(), ""]
    lines += table(
        ("Name", "Dtypes"), ((name, ", ".join(f"`{item}`" for item in sorted(NAMED[name]))) for name in NAMED)
    )
    for domain, handlers in groupby(REGISTRY.handlers(), key=lambda handler: handler.domain or "ai.onnx"):
        lines += section(domain, list(handlers))
    return "\n".join(lines) + "\n"


INTRODUCTION: Final = """# Operators

What `MLXExecutionProvider` translates. All else stays on ONNX Runtime's CPU provider, and so does a node that does not
meet what is said here; `ort_ep.claim_report(session)` tells the reason for each.

`python tests/ops/coverage` runs each operator on MLX at every version and for every dtype, and counts those that pass.

- **Since**: the operator-set versions that a handler is right from. A node gets the newest that is not newer than it.
- **Dtypes**: of every input that is not a host input, or by parameter, `return` being the outputs; what is not named
  may be of `any` dtype. Only what ONNX allows for the operator and ONNX Runtime holds counts: 1.32 has no tensors of
  complex numbers or of `float6`. `float64` is for the CPU device only.
- **Host inputs**: their values must be constants or computed from shapes, so that they are known before MLX runs.
- **Restrictions**: what else the claim asks for. An attribute that a handler does not know must have its default.
- **How**: *handler*: a function over MLX arrays. *fold*: computed at once in numpy where all inputs are known there.
  *shape only*: reads no data. *containers*: sequences and optionals inside a subgraph, too. *host step*: runs in numpy
  between two compiled segments, since the output's shape depends on data. *function body*: the operator has no handler,
  and its schema's definition by other operators is translated in its place. The same goes for a model's own functions.

ONNX's reference and ONNX Runtime's CPU provider disagree on `Resize` where `scales` times the input's size is no whole
number: `align_corners` is as the reference has it, `tf_crop_and_resize` as the CPU provider has it, which also goes for
crops that reach beyond the input.

`QMoE` weighs experts as its schema says, to a sum of 1 with `normalize_routing_weights` only. The CPU provider always
does so.
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if docs/OPS.md is not current")
    args = parser.parse_args(argv)
    text = render()
    if DOCUMENT.is_file() and DOCUMENT.read_text(encoding="utf-8") == text:
        return 0
    if args.check:
        print(f"docs/OPS.md: differs from what the registry gives\nrun: {COMMAND}", file=sys.stderr)
        return 1
    DOCUMENT.write_text(text, encoding="utf-8")
    print("wrote docs/OPS.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
