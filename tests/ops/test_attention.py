"""Attention against ONNX's reference, ONNX Runtime's CPU kernels and a plain numpy model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import helper

import mlxc_py as mx
from ort_ep.ops import attention

Check = Callable[..., None]
Draw = Callable[..., Any]
Host = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
ORT = tuple(map(int, onnxruntime.__version__.split(".")[:2]))


def heads_of(x: Host, heads: int) -> Host:
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def merged(x: Host) -> Host:
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def soft(scores: Host, sinks: Host | None = None) -> Host:
    peak = scores.max(-1, keepdims=True)
    e = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    total = e.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.reshape(-1, 1, 1) - peak)
    return e / np.where(total == 0, 1, total)


def model(q: Host, k: Host, v: Host, bias: Any = 0.0, sinks: Host | None = None) -> Host:
    """[B, H, L, D] in double precision."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]) + bias
    return soft(scores, sinks) @ v


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("flat", [True, False])
def test_types_and_groups(check: Check, draw: Draw, dtype: Any, kv_heads: int, flat: bool) -> None:
    q, k, v = draw(dtype, 2, 4, 3, 8), draw(dtype, 2, kv_heads, 5, 8), draw(dtype, 2, kv_heads, 5, 6)
    expected = model(q, k, v)
    if flat:
        how = {"q_num_heads": 4, "kv_num_heads": kv_heads}
        given = [merged(x) for x in (q, k, v)]
        check("Attention", *given, expect=merged(expected).astype(dtype), opset=23, **how)
    else:
        check("Attention", q, k, v, expect=expected.astype(dtype), opset=23)


MASKS = {
    "none": None,
    "keys": (bool, (1, 5)),
    "bool": (bool, (3, 5)),
    "batch": (bool, (2, 1, 3, 5)),
    "float": (np.float32, (3, 5)),
    "heads": (np.float32, (2, 4, 3, 5)),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("mode", [1, 2, 3])
def test_masks_and_stages(check: Check, draw: Draw, mask: str, causal: int, softcap: float, mode: int) -> None:
    q, k, v = draw(np.float32, 2, 4, 3, 8), draw(np.float32, 2, 2, 5, 8), draw(np.float32, 2, 2, 5, 8)
    how = {"is_causal": causal, "softcap": softcap, "qk_matmul_output_mode": mode, "scale": 0.3}
    form = MASKS[mask]
    given = None if form is None else draw(form[0], *form[1])
    check("Attention", q, k, v, given, expect="reference", opset=23, outputs=4, **how)


def test_raw_scores_come_before_the_cap(check: Check, draw: Draw) -> None:
    q, k, v = (draw(np.float32, 1, 2, 3, 4) for _ in range(3))
    raw = (q.astype(np.float64) @ k.swapaxes(2, 3) / 2).astype(np.float32)
    y = (soft(2 * np.tanh(raw / 2)) @ v).astype(np.float32)
    check("Attention", q, k, v, expect=[y, k, v, raw], opset=23, softcap=2.0)


def test_rows_without_keys_are_zero(check: Check, draw: Draw) -> None:
    q, k, v = (draw(np.float32, 1, 2, 3, 4) for _ in range(3))
    mask = np.array([[True, False, True], [False] * 3, [True] * 3])
    check("Attention", q, k, v, mask, expect="reference", opset=23)
    check("Attention", q, k, v, np.where(mask, 0, -np.inf).astype(np.float32), expect="reference", opset=23)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_past(check: Check, draw: Draw, causal: int, dtype: Any) -> None:
    q, k, v = (draw(dtype, 2, 3, 4, 8) for _ in range(3))
    past = draw(dtype, 2, 3, 5, 8), draw(dtype, 2, 3, 5, 8)
    check("Attention", q, k, v, None, *past, expect="reference", opset=23, outputs=3, is_causal=causal)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("window", [(-1, -1), (1, -1), (2, 1), (0, 0)])
def test_windows_and_lengths(check: Check, draw: Draw, causal: int, window: tuple[int, int]) -> None:
    q, k, v = draw(np.float32, 2, 4, 3, 8), draw(np.float32, 2, 2, 6, 8), draw(np.float32, 2, 2, 6, 8)
    how = {"is_causal": causal, "left_window_size": window[0], "right_window_size": window[1]}
    check("Attention", q, k, v, expect="reference", opset=25, **how)
    lengths = np.array([2, 5], np.int64)
    check("Attention", q, k, v, None, None, None, lengths, expect="reference", opset=25, **how)
    short = draw(bool, 3, 5)
    check("Attention", q, k, v, short, None, None, lengths, expect="reference", opset=25, **how)


def test_nothing_to_attend(check: Check, draw: Draw) -> None:
    q, k, v = draw(np.float32, 1, 2, 3, 4), draw(np.float32, 1, 2, 0, 4), draw(np.float32, 1, 2, 0, 4)
    check("Attention", q, k, v, expect=np.zeros((1, 2, 3, 4), np.float32), opset=23)
    check("Attention", q[:, :, :0], q, q, expect=np.zeros((1, 2, 0, 4), np.float32), opset=23)


def test_the_fused_kernel_agrees(draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = draw(np.float32, 2, 4, 3, 8), draw(np.float32, 2, 2, 5, 8), draw(np.float32, 2, 2, 5, 8)
    bias = np.where(draw(bool, 3, 5), draw(np.float32, 3, 5), -np.inf).astype(np.float32)
    bias[1] = -np.inf
    queries, keys, values = (mx.array(x) for x in (q, k, v))
    for total in (None, mx.array(bias)):
        composed, _ = attention.attend(queries, keys, values, bias=total)
        with monkeypatch.context() as patch:
            patch.setattr(attention, "fused", lambda *_: True)
            kernel, _ = attention.attend(queries, keys, values, bias=total)
        np.testing.assert_allclose(np.array(kernel), np.array(composed), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("features", [8, 4])
@pytest.mark.parametrize("form", ["flat", "heads", "no positions"])
def test_rotary(check: Check, draw: Draw, dtype: Any, interleaved: int, features: int, form: str) -> None:
    shape = (2, 3, 4 * 8) if form == "flat" else (2, 4, 3, 8)
    caches = (2, 3, features // 2) if form == "no positions" else (10, features // 2)
    positions = None if form == "no positions" else draw(np.int64, 2, 3, low=0, high=10)
    given = draw(dtype, *shape), draw(dtype, *caches), draw(dtype, *caches), positions
    how = {"interleaved": interleaved, "rotary_embedding_dim": features if features < 8 else 0}
    how |= {"num_heads": 4} if form == "flat" else {}
    check("RotaryEmbedding", *given, expect="reference", opset=23, atol=2e-2 if dtype in FLOATS[:2] else None, **how)


@pytest.mark.parametrize("form", ["flat", "heads"])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_microsoft_rotary(check: Check, draw: Draw, form: str, interleaved: int) -> None:
    x = draw(np.float32, *((2, 3, 32) if form == "flat" else (2, 4, 3, 8)))
    for positions in (np.array([2]), draw(np.int64, 2, 3, low=0, high=10)):
        cos, sin = draw(np.float32, 10, 4), draw(np.float32, 10, 4)
        check("RotaryEmbedding", x, positions, cos, sin, domain=MICROSOFT, interleaved=interleaved)
    cos, sin = draw(np.float32, 10, 2), draw(np.float32, 10, 2)
    how = {"num_heads": 4, "rotary_embedding_dim": 4}
    check("RotaryEmbedding", x, np.array([2]), cos, sin, domain=MICROSOFT, interleaved=interleaved, **how)


PADDING = {
    "none": lambda draw, keys: None,
    "lengths": lambda draw, keys: np.array([2, keys], np.int32),
    "raw": lambda draw, keys: draw(np.int32, 2, keys, low=0, high=2),
    "rows": lambda draw, keys: draw(np.int32, 2, 3, keys, low=0, high=2),
}


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("past", [0, 4])
def test_multi_head(check: Check, draw: Draw, padding: str, causal: int, bias: bool, past: int) -> None:
    q, k, v = draw(np.float32, 2, 3, 16), draw(np.float32, 2, 3, 16), draw(np.float32, 2, 3, 16)
    cache = [draw(np.float32, 2, 4, past, 4) if past else None for _ in range(2)]
    added = draw(np.float32, 1, 4, 3, 3 + past) if bias else None
    weights = draw(np.float32, 48) if bias else None
    given = [q, k, v, weights, PADDING[padding](draw, 3 + past), added, *cache]
    if padding == "lengths" and past:
        given[4] = np.array([2, 7], np.int32)
    check("MultiHeadAttention", *given, domain=MICROSOFT, outputs=3, num_heads=4, unidirectional=causal)


def test_multi_head_with_values_of_another_size(check: Check, draw: Draw) -> None:
    q, k, v = draw(np.float32, 2, 3, 16), draw(np.float32, 2, 5, 16), draw(np.float32, 2, 5, 24)
    check("MultiHeadAttention", q, k, v, draw(np.float32, 56), domain=MICROSOFT, num_heads=4, scale=0.3)


def test_multi_head_scores(check: Check, draw: Draw) -> None:
    q, k, v = (draw(np.float32, 2, 3, 16) for _ in range(3))
    mask = draw(np.int32, 2, 3, low=0, high=2)
    # ORT can't infer the type of the scores
    outputs = [np.zeros(shape, np.float32) for shape in ((2, 3, 16), (2, 4, 3, 4), (2, 4, 3, 4), (2, 4, 3, 3))]
    check("MultiHeadAttention", q, k, v, None, mask, domain=MICROSOFT, outputs=outputs, num_heads=4)


def test_multi_head_cross_with_split_keys(check: Check, draw: Draw) -> None:
    q, k, v = draw(np.float32, 2, 3, 16), draw(np.float32, 2, 4, 5, 4), draw(np.float32, 2, 4, 5, 4)
    check("MultiHeadAttention", q, k, v, domain=MICROSOFT, num_heads=4)


@pytest.mark.parametrize("dtype", FLOATS[:3])
def test_multi_head_packed(check: Check, draw: Draw, dtype: Any) -> None:
    q, k, v = (draw(dtype, 2, 3, 4, 8) for _ in range(3))
    expected = merged(model(*(x.swapaxes(1, 2) for x in (q, k, v)))).astype(dtype)
    check("MultiHeadAttention", np.stack([q, k, v], 3), expect=expected, domain=MICROSOFT, num_heads=4)
    flat = q.reshape(2, 3, 32)
    check("MultiHeadAttention", flat, np.stack([k, v], 3), expect=expected, domain=MICROSOFT, num_heads=4)


ENDS = {
    "none": lambda draw, keys: None,
    "ends": lambda draw, keys: np.array([2, keys], np.int32),
    "ends and starts": lambda draw, keys: np.array([2, keys, 0, 1], np.int32),
    "raw": lambda draw, keys: draw(np.int32, 2, keys, low=0, high=2),
    "rows": lambda draw, keys: draw(np.int32, 2, 3, keys, low=0, high=2),
}


@pytest.mark.parametrize("mask", ENDS)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize(("past", "bias"), [(0, False), (0, True), (4, False)])
def test_microsoft_attention(check: Check, draw: Draw, mask: str, causal: int, past: int, bias: bool) -> None:
    x, w, b = draw(np.float32, 2, 3, 10), draw(np.float32, 10, 48), draw(np.float32, 48)
    cache = draw(np.float32, 2, 2, 4, past, 4) if past else None
    added = draw(np.float32, 2, 4, 3, 3 + past) if bias else None
    given = [x, w, b, ENDS[mask](draw, 3 + past), cache, added]
    check("Attention", *given, domain=MICROSOFT, outputs=2, num_heads=4, unidirectional=causal)


def test_microsoft_attention_with_sizes(check: Check, draw: Draw) -> None:
    x, w, b = draw(np.float32, 2, 3, 10), draw(np.float32, 10, 56), draw(np.float32, 56)
    check("Attention", x, w, b, domain=MICROSOFT, num_heads=4, qkv_hidden_sizes=[16, 16, 24])


@pytest.mark.parametrize("shared", [0, 1])
def test_decoder_masked(check: Check, draw: Draw, shared: int) -> None:
    q, k, v = (draw(np.float32, 2, 1, 16) for _ in range(3))
    past = draw(np.float32, 2, 4, 6, 4), draw(np.float32, 2, 4, 6, 4)
    length = np.array([4], np.int32) if shared else None
    keys = 5 if shared else 7
    mask = draw(np.int32, 2, keys, low=0, high=2)
    given = [q, k, v, mask, None, *past, length, None, None, draw(np.float32, 48)]
    ks, vs = (heads_of(x + b, 4) for x, b in zip((k, v), np.split(given[-1], 3)[1:], strict=True))
    ends = [np.concatenate([c[:, :, : keys - 1], x, c[:, :, keys:]], 2) for c, x in zip(past, (ks, vs), strict=True)]
    queries = heads_of(q + given[-1][:16], 4)
    bias = np.where(mask, 0, -10000.0)[:, None, None]
    y = merged(model(queries, ends[0][:, :, :keys], ends[1][:, :, :keys], bias)).astype(np.float32)
    how = {"num_heads": 4, "past_present_share_buffer": shared}
    check("DecoderMaskedMultiHeadAttention", *given, expect=[y, *ends], domain=MICROSOFT, **how)


def test_decoder_masked_cross(check: Check, draw: Draw) -> None:
    q, k, v = draw(np.float32, 2, 1, 16), draw(np.float32, 2, 4, 5, 4), draw(np.float32, 2, 4, 5, 4)
    check("DecoderMaskedMultiHeadAttention", q, k, v, domain=MICROSOFT, num_heads=4)


@pytest.mark.parametrize("bias", [True, False])
def test_packed(check: Check, draw: Draw, bias: bool) -> None:
    lengths, hidden = [2, 4, 1], 16
    q, k, v = (draw(np.float32, 7, hidden) for _ in range(3))
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    offsets = np.zeros((3, 4), np.int32)
    added = draw(np.float32, 3, 4, 4, 4) if bias else None
    parts = []
    for index, (start, length) in enumerate(zip(ends, lengths, strict=False)):
        one, two, three = (heads_of(x[None, start : start + length], 4) for x in (q, k, v))
        bias_here = 0.0 if added is None else added[index, :, :length, :length]
        parts.append(merged(model(one, two, three, bias_here))[0])
    expected = np.concatenate(parts).astype(np.float32)
    how = {"expect": expected, "domain": MICROSOFT, "num_heads": 4}
    check("PackedMultiHeadAttention", q, k, v, None, offsets, ends, added, **how)
    together = np.stack([x.reshape(7, 4, 4) for x in (q, k, v)], 2)
    check("PackedMultiHeadAttention", together, None, None, None, offsets, ends, added, **how)
    x, w = np.concatenate([q, k, v], 1), np.eye(48, dtype=np.float32)
    check("PackedAttention", x, w, np.zeros(48, np.float32), offsets, ends, added, **how)


@pytest.fixture
def grouped(plan_of: Callable[..., Any], cpu_session: Callable[..., Any]) -> Callable[..., list[list[Host]]]:
    """GroupQueryAttention or SparseAttention through the plan and on the CPU provider."""

    def run(op: str, given: list[Any], outputs: int, **attributes: Any) -> list[list[Host]]:
        names = ["" if value is None else f"x{index}" for index, value in enumerate(given)]
        feeds = {name: value for name, value in zip(names, given, strict=True) if name}
        types = helper.np_dtype_to_tensor_dtype
        inputs = [helper.make_tensor_value_info(n, types(x.dtype), x.shape) for n, x in feeds.items()]
        prefix = "sparse" if op == "SparseAttention" else "y"
        results = [
            helper.make_tensor_value_info(
                f"{prefix}{i}", types(given[0 if i in (0, 3) or given[3] is None else 3].dtype), None
            )
            for i in range(outputs)
        ]
        node = helper.make_node(op, names, [value.name for value in results], domain=MICROSOFT, **attributes)
        graph = helper.make_graph([node], op, inputs, results)
        imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        built = helper.make_model(graph, opset_imports=imports, ir_version=10)
        return [plan_of(built, feeds), run_with_shared_cache(cpu_session(built), feeds)]

    return run


def run_with_shared_cache(session: onnxruntime.InferenceSession, feeds: dict[str, Host]) -> list[Host]:
    """A run on the CPU provider; SparseAttention wants past and present in one buffer."""
    if session.get_outputs()[0].name != "sparse0":
        return [np.asarray(value) for value in session.run(None, feeds)]
    binding = session.io_binding()
    copies = {name: value.copy() for name, value in feeds.items()}  # the OrtValues only point at them
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in copies.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("sparse0")
    binding.bind_ortvalue_output("sparse1", values["x3"])
    binding.bind_ortvalue_output("sparse2", values["x4"])
    session.run_with_iobinding(binding)
    return [np.array(value.numpy()) for value in binding.get_outputs()]


# new rows, rows of the caches, total length, length of each batch entry
GROUPED = {
    "prompt": (3, 0, 3, [3, 3]),
    "ragged prompt": (3, 0, 3, [3, 2]),
    "prompt into a buffer": (3, 8, 3, [3, 2]),
    "decode": (1, 6, 5, [5, 3]),
    "grown": (1, 4, 5, [5, 5]),
}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"local_window_size": 2},
    "cap": {"softcap": 1.5, "scale": 0.4},
    "smooth": {"smooth_softmax": 1},
}


@pytest.mark.parametrize("case", GROUPED)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [1, 2])
def test_grouped(draw: Draw, grouped: Any, case: str, dtype: Any, packed: bool, form: str, batch: int) -> None:
    length, past, total, lengths = GROUPED[case]
    q, k, v = draw(dtype, batch, length, 64), draw(dtype, batch, length, 32), draw(dtype, batch, length, 32)
    caches = [draw(dtype, batch, 2, past, 16) for _ in range(2)] if past else [None, None]
    three = [np.concatenate([q, k, v], 2), None, None] if packed else [q, k, v]
    given = [*three, *caches, np.array(lengths[:batch], np.int32) - 1, np.array([total], np.int32)]
    rotary = int(packed)
    given += [draw(dtype, 16, 8), draw(dtype, 16, 8)] if rotary else []
    results = grouped("GroupQueryAttention", given, 3, num_heads=4, kv_num_heads=2, do_rotary=rotary, **FORMS[form])
    compare_valid(results, lengths[:batch], length, dtype)


def compare_valid(results: list[list[Host]], lengths: list[int], length: int, dtype: Any) -> None:
    """Outputs of padding, and cache rows beyond a length, may be anything."""
    for (y, k, v), (y_cpu, k_cpu, v_cpu) in [results]:
        assert (y.dtype, y.shape, k.shape, v.shape) == (y_cpu.dtype, y_cpu.shape, k_cpu.shape, v_cpu.shape)
        rtol, atol = (2e-2, 5e-3) if dtype is np.float16 else (2e-4, 2e-5)
        for entry, count in enumerate(lengths):
            rows = min(length, count)
            np.testing.assert_allclose(y[entry, :rows], y_cpu[entry, :rows], rtol=rtol, atol=atol)
            for mine, theirs in ((k, k_cpu), (v, v_cpu)):
                np.testing.assert_allclose(mine[entry, :, :count], theirs[entry, :, :count], rtol=rtol, atol=atol)


EXTRAS = ["positions", "bias", "sinks", "bidirectional", "scores", "weights", "chunk"]


@pytest.mark.skipif(ORT < (1, 32), reason="older schemas of GroupQueryAttention have at most 16 inputs")
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("batch", [1, 2])
def test_grouped_extras(draw: Draw, grouped: Any, extra: str, batch: int) -> None:
    length, total = 1 if extra == "bias" else 3, 7
    lengths = [7, 7] if extra in ("scores", "weights") else [7, 5]
    if batch == 2 and extra in ("scores", "weights", "positions", "sinks", "bidirectional"):
        length = 1  # ORT takes several new rows of several entries only with query_seqlens
    given: list[Any] = [draw(np.float32, batch, length, width) for width in (64, 32, 32)]
    given += [draw(np.float32, batch, 2, 10, 16) for _ in range(2)]
    given += [np.array(lengths[:batch], np.int32) - 1, np.array([total], np.int32)]
    given += [draw(np.float32, 16, 8), draw(np.float32, 16, 8)]
    optional: list[Any] = [None] * 8
    how: dict[str, Any] = {"do_rotary": 1}
    outputs = 3
    if extra == "positions":
        optional[0] = draw(np.int64, batch, length, low=0, high=16)
    elif extra == "bias":
        optional[1] = draw(np.float32, batch, 4, length, total)
    elif extra == "sinks":
        optional[2] = draw(np.float32, 4)
    elif extra == "bidirectional":
        how["causal"] = 0
    elif extra == "chunk":
        optional[7] = np.array([2, 3][:batch], np.int32)
    else:
        how["qk_output"], outputs = (1 if extra == "scores" else 2), 4
    results = grouped("GroupQueryAttention", given + optional, outputs, num_heads=4, kv_num_heads=2, **how)
    if outputs == 4:
        mine, theirs = (result.pop() for result in results)
        seen = np.arange(total) <= np.arange(length)[:, None] + total - length
        np.testing.assert_allclose(np.where(seen, mine, 0), np.where(seen, theirs, 0), rtol=2e-4, atol=2e-5)
    fresh = length if optional[7] is None else int(optional[7].min())
    compare_valid(results, lengths[:batch], fresh, np.float32)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("scaling", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize(("length", "past", "lengths"), [(3, 8, [3]), (1, 8, [6]), (1, 8, [6, 4])])
def test_grouped_over_a_quantized_cache(
    draw: Draw, grouped: Any, bits: int, scaling: str, length: int, past: int, lengths: list[int]
) -> None:
    batch, kind, width = len(lengths), (np.int8 if bits == 8 else np.uint8), 16 * bits // 8
    given: list[Any] = [draw(np.float32, batch, length, size) for size in (64, 32, 32)]
    given += [draw(kind, batch, 2, past, width, low=0, high=100) for _ in range(2)]
    given += [np.array(lengths, np.int32) - 1, np.array([max(lengths)], np.int32), *[None] * 5]
    scales = (1, 2, 1, 16) if scaling == "PER_CHANNEL" else (1,)
    given += [(0.03 * np.abs(draw(np.float32, *scales)) + 0.02).astype(np.float32) for _ in range(2)]
    how = {"k_quant_type": scaling, "v_quant_type": scaling, "kv_cache_bit_width": bits, "kv_num_heads": 2}
    mine, theirs = grouped("GroupQueryAttention", given, 3, num_heads=4, **how)
    for entry, count in enumerate(lengths):
        np.testing.assert_allclose(mine[0][entry], theirs[0][entry], rtol=1e-3, atol=1e-4)
        for cache, other in zip(mine[1:], theirs[1:], strict=True):
            np.testing.assert_array_equal(cache[entry, :, :count], other[entry, :, :count])


def test_grouped_head_norms(draw: Draw, plan_of: Any, check: Check) -> None:
    q, k, v = (draw(np.float32, 1, 3, width) for width in (32, 16, 16))
    gains = draw(np.float32, 8), draw(np.float32, 8)

    def normal(x: Host, gain: Host) -> Host:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gain

    queries, keys = normal(heads_of(q, 4), gains[0]), normal(heads_of(k, 2), gains[1])
    causal = np.where(np.tri(3, dtype=bool), 0, -np.inf)
    y = merged(model(queries, keys, heads_of(v, 2), causal)).astype(np.float32)
    given = [q, k, v, None, None, np.array([2], np.int32), np.array([3], np.int32), *[None] * 7, *gains]
    expected = [y, keys.astype(np.float32), heads_of(v, 2)]
    check("GroupQueryAttention", *given, expect=expected, domain=MICROSOFT, num_heads=4, kv_num_heads=2)


@pytest.mark.parametrize(("length", "lengths"), [(20, [20, 20]), (1, [21, 21])])
@pytest.mark.parametrize("rotary", [0, 1])
def test_sparse(draw: Draw, grouped: Any, length: int, lengths: list[int], rotary: int) -> None:
    # equal lengths: with ragged ones ORT 1.32 gives wrong rows for the shorter entries
    given: list[Any] = [draw(np.float32, 2, length, width) for width in (64, 32, 32)]
    given += [draw(np.float32, 2, 2, 64, 16) for _ in range(2)]
    rows = np.array([[0, 1, 3, 5, 8], [0, 1, 3, 6, 9]], np.int32)
    columns = np.array([[0, 0, 1, 1, 2, 1, 2, 3, -1], [0, 0, 1, 0, 1, 2, 0, 2, 3]], np.int32)
    given += [rows, columns, np.array([max(lengths)], np.int32), np.array(lengths, np.int32)]
    given += [draw(np.float32, 64, 8), draw(np.float32, 64, 8)] if rotary else []
    how = {"num_heads": 4, "kv_num_heads": 2, "sparse_block_size": 16, "do_rotary": rotary}
    compare_valid(grouped("SparseAttention", given, 3, **how), lengths, length, np.float32)


def test_relative_position_bias(check: Check, draw: Draw) -> None:
    # transformers' T5: exact distances first, then logarithmic buckets
    table = draw(np.float32, 8, 2)
    distance = np.arange(6)[None] - np.arange(6)[:, None]
    lengths = np.array(6, np.int64), np.array(6, np.int64)
    one_way = np.array([0, 1, 2, 3, 4, 5])[np.maximum(-distance, 0)]
    one_way = np.where(one_way == 5, 4, one_way)
    both = np.array([0, 1, 2, 2, 3, 3])[abs(distance)] + np.where(distance > 0, 4, 0)
    for is_bidirectional, bucket in ((0, one_way), (1, both)):
        expected = table[bucket].transpose(2, 0, 1)[None]
        how = {"max_distance": 16 if is_bidirectional == 0 else 8, "is_bidirectional": is_bidirectional}
        check("RelativePositionBias", table, *lengths, expect=expected, domain=MICROSOFT, constants=[1, 2], **how)


def test_gated_relative_position_bias(check: Check, draw: Draw) -> None:
    q, q_bias, rel = draw(np.float32, 2, 5, 12), draw(np.float32, 12), draw(np.float32, 1, 3, 5, 5)
    w, b, eco = draw(np.float32, 4, 8), draw(np.float32, 8), draw(np.float32, 1, 3, 1, 1)
    gates = heads_of(q + q_bias, 3).astype(np.float64) @ w + b
    gates = 1 / (1 + np.exp(-gates.reshape(2, 3, 5, 2, 4).sum(-1)))
    expected = ((gates[..., :1] * (gates[..., 1:] * eco - 1) + 2) * rel).astype(np.float32)
    check("GatedRelativePositionBias", q, q_bias, rel, w, b, eco, expect=expected, domain=MICROSOFT, num_heads=3)


@pytest.mark.parametrize("past", [0, 2])
def test_masks_of_a_whole_square(check: Check, draw: Draw, past: int) -> None:
    x, w, b = draw(np.float32, 2, 3, 10), draw(np.float32, 10, 48), draw(np.float32, 48)
    mask = draw(np.int32, 2, 1, 8, 8, low=0, high=2)
    cache = draw(np.float32, 2, 2, 4, past, 4) if past else None
    q, k, v = (heads_of(part, 4) for part in np.split(x.astype(np.float64) @ w + b, 3, -1))
    if cache is not None:
        k, v = np.concatenate([cache[0], k], 2), np.concatenate([cache[1], v], 2)
    bias = np.where(mask[:, :, past : past + 3, : past + 3], 0, -10000.0)
    y = merged(model(q, k, v, bias)).astype(np.float32)
    check("Attention", x, w, b, mask, cache, expect=y, domain=MICROSOFT, num_heads=4)


def test_lengths_before_offsets(check: Check, draw: Draw) -> None:
    q, k, v = (draw(np.float32, 2, 3, 16) for _ in range(3))
    lengths = np.array([2, 3, 0, 3, 6, 0, 2, 5], np.int32)
    bias = np.where(np.arange(3) < lengths[:2, None], 0, -10000.0)[:, None, None]
    y = merged(model(heads_of(q, 4), heads_of(k, 4), heads_of(v, 4), bias)).astype(np.float32)
    check("MultiHeadAttention", q, k, v, None, lengths, expect=y, domain=MICROSOFT, num_heads=4)
