"""Operators whose output shape depends on data: host steps on numpy between the segments of a plan."""

from __future__ import annotations

import numpy as np

from ort_ep.registry import ANY, FLOATS, INT32, MICROSOFT, SINGLES, op

Host = np.ndarray


@op("NonZero", since=9, dtypes=ANY, host_step=True)
def non_zero(x: Host) -> Host:
    return np.array(np.nonzero(np.atleast_1d(x)), np.int64)


@op("Compress", since=9, dtypes=ANY, host_step=True)
def compress(x: Host, condition: Host, *, axis: int | None = None) -> Host:
    length = x.size if axis is None else x.shape[axis]
    return np.compress(condition[:length], x, axis)


@op("Unique", since=11, dtypes=ANY, host_step=True)
def unique(x: Host, *, axis: int | None = None, sorted: int = 1, n_outputs: int) -> tuple[Host, ...]:
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis, equal_nan=False)
    if not sorted:
        # by first appearance; `rank` says where each sorted value has gone
        order = np.argsort(first)
        rank = np.argsort(order)
        values, first, counts = np.take(values, order, axis or 0), first[order], counts[order]
        inverse = rank[inverse]
    return (values, first, inverse.reshape(-1), counts)[:n_outputs]


@op("NonMaxSuppression", since=10, host_step=True, dtypes={"boxes": FLOATS, "scores": FLOATS})
def non_max_suppression(
    boxes: Host,
    scores: Host,
    max_output_boxes_per_class: Host | None = None,
    iou_threshold: Host | None = None,
    score_threshold: Host | None = None,
    *,
    center_point_box: int = 0,
) -> Host:
    most = 0 if max_output_boxes_per_class is None else int(max_output_boxes_per_class.item())
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.item())
    chosen = []
    for batch, classes in enumerate(scores):
        low, high = corners(boxes[batch], bool(center_point_box))
        for category, score in enumerate(classes):
            order = np.argsort(-score, kind="stable")
            if score_threshold is not None:
                order = order[score[order] > score_threshold.item()]
            chosen += [(batch, category, box) for box in suppressed(order, low, high, overlap, most)]
    return np.array(chosen, np.int64).reshape(-1, 3)


def corners(boxes: Host, centred: bool) -> tuple[Host, Host]:
    first, second = boxes[:, :2], boxes[:, 2:]
    if centred:
        return first - second / 2, first + second / 2
    return np.minimum(first, second), np.maximum(first, second)


def suppressed(order: Host, low: Host, high: Host, overlap: float, most: int) -> list[int]:
    """The boxes that are kept, best first: none overlaps a better one by more than the threshold."""
    area = np.prod(high - low, 1)
    kept: list[int] = []
    while order.size and len(kept) < most:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        sides = np.clip(np.minimum(high[best], high[order]) - np.maximum(low[best], low[order]), 0, None)
        shared = np.prod(sides, 1)
        union = area[best] + area[order] - shared
        order = order[~(shared > overlap * union)]
    return kept


@op("DynamicTimeWarping", domain=MICROSOFT, dtypes=frozenset({"float32"}), host_step=True)
def dynamic_time_warping(cost: Host) -> Host:
    """The path [2, steps] of the least total cost from the first corner to the last."""
    rows, columns = cost.shape[-2:]
    cost = cost.reshape([rows, columns])
    total = np.full([rows + 1, columns + 1], np.inf, cost.dtype)
    total[0, 0] = 0
    for i, j in np.ndindex(rows, columns):
        total[i + 1, j + 1] = cost[i, j] + min(total[i, j], total[i, j + 1], total[i + 1, j])
    path = []
    i, j = rows, columns
    while i and j:
        path.append((i - 1, j - 1))
        both, up, left = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        if both < up and both < left:
            i, j = i - 1, j - 1
        elif up < both and up < left:
            i -= 1
        else:
            j -= 1
    return np.array(path[::-1], np.int32).reshape(-1, 2).T


@op("RemovePadding", domain=MICROSOFT, dtypes={"x": SINGLES, "counts": INT32}, host_step=True)
def remove_padding(x: Host, counts: Host) -> tuple[Host, Host, Host, Host]:
    """The tokens of all sequences, where they and then the padding lay, where each sequence begins, the longest."""
    real = np.arange(x.shape[1]) < counts[:, None]
    places = np.concatenate([np.flatnonzero(real), np.flatnonzero(~real)]).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(real.sum(1))]).astype(np.int32)
    return x[real], places.reshape(real.shape), starts, np.array([counts.max(initial=0)], np.int32)
