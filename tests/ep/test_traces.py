"""Which traces are kept, and when a new one is made."""

from __future__ import annotations

import threading

from ort_ep.traces import CREDIT, MOST_VALUES, Instead, Traces


def run(traces: Traces[str], shapes: object, values: object = ()) -> str:
    """One run of an engine: what it did, and the number of evictions."""
    key = (shapes, values)
    found = traces.find(key)
    if found is not None:
        return "eager" if isinstance(found, Instead) else "replay"
    if not traces.worthwhile(key):
        return "eager"
    return f"trace {traces.keep(key, 'a trace')}"


def test_a_shape_is_traced_at_once_and_replayed() -> None:
    traces: Traces[str] = Traces(2)
    assert [run(traces, n) for n in (1, 1, 2, 2, 1, 3, 1, 2)] == [
        *("trace 0", "replay", "trace 0", "replay", "replay"),
        *("trace 1", "replay", "trace 1"),  # 2 was used least recently, then 3
    ]


def test_shapes_that_never_come_back_are_not_traced_for_long() -> None:
    traces: Traces[str] = Traces(64)
    made = [run(traces, n) for n in range(1000)]
    assert made == ["trace 0"] * CREDIT + ["eager"] * (1000 - CREDIT)
    assert [run(traces, 999), run(traces, 999), run(traces, 999)] == ["trace 0", "replay", "replay"]
    assert run(traces, 2000) == "trace 0"  # that one paid
    assert run(traces, 5) == "trace 0"  # and so did this one
    assert run(traces, 6) == "eager"


def test_runs_that_are_never_traced_leave_traces_alone() -> None:
    traces: Traces[str] = Traces(4)
    run(traces, "prompt")
    for n in range(100):
        run(traces, n)
    assert run(traces, "prompt") == "replay"


def test_new_shapes_among_replays_are_traced() -> None:
    traces: Traces[str] = Traces(64)
    run(traces, "often")
    made = [run(traces, shapes) for n in range(50) for shapes in ("often", n)]
    assert made == ["replay", "trace 0"] * 50


def test_host_values_have_a_bound_of_their_own() -> None:
    traces: Traces[str] = Traces(64)
    for value in range(MOST_VALUES):
        assert [run(traces, "shapes", value), run(traces, "shapes", value)] == ["trace 0", "replay"]
    assert run(traces, "others", 0) == "trace 0"
    assert run(traces, "shapes", MOST_VALUES) == "trace 1"
    assert run(traces, "shapes", 0) == "trace 1"
    assert run(traces, "shapes", 2) == "replay"


def test_a_shape_goes_with_all_its_values() -> None:
    traces: Traces[str] = Traces(1)
    for value in range(3):
        run(traces, "first", value)
    traces.keep(("first", "broken"), Instead.EAGER)
    assert run(traces, "second") == "trace 3"


def test_the_patient_wait_for_the_second_run() -> None:
    traces: Traces[str] = Traces(8, patient=True)
    assert [run(traces, n) for n in (1, 2, 1, 1, 3, 2)] == ["eager", "eager", "trace 0", "replay", "eager", "trace 0"]


def test_what_cannot_be_traced_is_not_tried_again() -> None:
    traces: Traces[str] = Traces(8)
    assert traces.worthwhile((1, ()))
    traces.keep((1, ()), Instead.EAGER)
    assert [run(traces, 1) for _ in range(3)] == ["eager"] * 3


def test_threads() -> None:
    traces: Traces[str] = Traces(8)

    def work() -> None:
        for n in range(3000):
            run(traces, n % 13, n % 29)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run(traces, "new") for _ in range(3)][2] == "replay"
    assert len(traces._kept) == 8
    assert all(len(by_values) <= MOST_VALUES for by_values in traces._kept.values())
