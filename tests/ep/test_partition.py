from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

from ort_ep import partition, proto
from ort_ep.graph import Graph, Node, Value
from ort_ep.partition import phases

Dag = tuple[list[list[int]], list[bool]]
Parse = Callable[[str], ModelProto]


@st.composite
def dags(draw: st.DrawFn) -> Dag:
    count = draw(st.integers(0, 24))
    before = [draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else [] for i in range(count)]
    return before, draw(st.lists(st.booleans(), min_size=count, max_size=count))


def ancestors(before: list[list[int]]) -> list[set[int]]:
    found: list[set[int]] = []
    for needed in before:
        found.append(set(needed).union(*(found[other] for other in needed)))
    return found


def convex(group: set[int], above: list[set[int]]) -> bool:
    """No path leaves the group and comes back."""
    return not any(outside not in group and above[outside] & group for inside in group for outside in above[inside])


def quotient_is_acyclic(before: list[list[int]], groups: list[list[int]]) -> bool:
    name = {node: ("group", i) for i, group in enumerate(groups) for node in group}
    key = [name.get(node, ("node", node)) for node in range(len(before))]
    edges = {
        (key[other], key[node]) for node, needed in enumerate(before) for other in needed if key[other] != key[node]
    }
    left = set(key)
    while left:
        free = {node for node in left if not any(target == node and source in left for source, target in edges)}
        if not free:
            return False
        left -= free
    return True


@settings(max_examples=300, deadline=None)
@given(dags())
def test_clusters_cover_the_claimed_nodes_are_convex_and_never_form_a_cycle(
    dag: Dag,
) -> None:
    before, claimed = dag
    groups = phases(before, claimed)
    above = ancestors(before)
    assert sorted(itertools.chain(*groups)) == [node for node, mine in enumerate(claimed) if mine]
    assert all(convex(set(group), above) for group in groups)
    assert quotient_is_acyclic(before, groups)


@settings(max_examples=300, deadline=None)
@given(dags())
def test_no_two_clusters_could_be_one(dag: Dag) -> None:
    before, claimed = dag
    groups = phases(before, claimed)
    above = ancestors(before)
    for first, second in itertools.combinations(groups, 2):
        assert not convex({*first, *second}, above)


@settings(max_examples=100, deadline=None)
@given(dags())
def test_groups_are_in_execution_order(dag: Dag) -> None:
    before, claimed = dag
    groups = phases(before, claimed)
    above = ancestors(before)
    for earlier, later in itertools.combinations(groups, 2):
        assert not any(above[node] & set(later) for node in earlier)


def test_diamond_around_an_unclaimed_node_is_two_clusters() -> None:
    # 0 -> 1 (unclaimed) -> 3, 0 -> 2 -> 3
    assert phases([[], [0], [0], [1, 2]], [True, False, True, True]) == [[0, 2], [3]]


def test_captured_values_are_dependencies() -> None:
    x, y, z = (Value(i, name) for i, name in enumerate("xyz"))

    def node(
        position: int, op: str, inputs: tuple[Value, ...], output: Value, implicit: tuple[Value, ...] = ()
    ) -> Node:
        return Node(position, op, op, "", 1, 1, inputs, (output,), {}, captured={v.name: v for v in implicit})

    last = Value(3, "last")
    nodes = [node(0, "Relu", (x,), y), node(1, "If", (x,), z, (y,)), node(2, "Add", (y, z), last)]
    graph = Graph("g", {"": 1}, [x], [last], [x, y, z, last], nodes)
    assert partition.predecessors(nodes) == [[], [0], [0, 1]]
    assert partition.clusters(graph, [True, False, True]) == [[0], [2]]


class Counted(list[int]):
    """A dependency list that counts how often it is read."""

    reads = 0

    def __iter__(self) -> Iterator[int]:
        Counted.reads += len(self)
        return super().__iter__()


def test_work_grows_with_the_edges_not_with_their_square() -> None:
    count = 10_000
    chain = [Counted([i - 1] if i else []) for i in range(count)]
    Counted.reads = 0
    groups = phases(chain, [i % 3 != 0 for i in range(count)])
    assert len(groups) == count // 3
    assert Counted.reads == count - 1
    assert phases(chain, [True] * count) == [list(range(count))]


def linked(before: list[list[int]], sequences: list[bool]) -> Graph:
    """A graph with these dependencies, whose node i makes a sequence where `sequences` says so."""
    made = [Value(i, f"v{i}", "sequence" if is_sequence else "tensor") for i, is_sequence in enumerate(sequences)]
    nodes = [
        Node(i, f"n{i}", "Op", "", 1, 1, tuple(made[other] for other in needed), (made[i],), {})
        for i, needed in enumerate(before)
    ]
    return Graph("g", {"": 1}, [], [], made, nodes)


@settings(max_examples=300, deadline=None)
@given(dags(), st.data())
def test_what_sequences_connect_is_in_one_cluster_or_in_none(dag: Dag, data: st.DataObject) -> None:
    before, claimed = dag
    graph = linked(before, data.draw(st.lists(st.booleans(), min_size=len(before), max_size=len(before))))
    groups, given_up = partition.settled(graph, claimed)
    home = {position: i for i, group in enumerate(groups) for position in group}
    for position, node in enumerate(graph.nodes):
        for value in node.reads:
            if value.is_container:
                assert home.get(value.index) == home.get(position)
    assert {*home, *given_up} == {position for position, mine in enumerate(claimed) if mine}
    kept = [position in home for position in range(len(before))]
    assert groups == partition.clusters(graph, kept)
    if not any(value.is_container for value in graph.values):
        assert not given_up


def test_a_long_sequence_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[Graph] = []
    clusters = partition.clusters

    def counted(graph: Graph, claimed: list[bool]) -> list[list[int]]:
        passes.append(graph)
        return clusters(graph, claimed)

    monkeypatch.setattr(partition, "clusters", counted)
    graph = linked([[i - 1] if i else [] for i in range(1000)], [True] * 1000)
    groups, given_up = partition.settled(graph, [False] + [True] * 999)
    assert (groups, len(given_up), len(passes)) == ([], 999, 2)


def test_small_static_clusters_do_not_pay_and_open_shapes_are_kept(model: Parse) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[{n}] x) => (float[{n}] y) {{ y = Exp(x) }}'
    tiny, huge, unknown = (proto.from_model(model(text.format(n=n))).nodes for n in ("8", "1000000", "N"))
    assert "cost: about 0 us" in (partition.cost_reason(tiny) or "")
    assert partition.cost_reason(huge) is None
    assert partition.cost_reason(unknown) is None


def test_matrix_products_cost_their_flops(model: Parse) -> None:
    text = (
        """<ir_version: 8, opset_import: ["": 17]> g (float[512, 512] x) => (float[512, 512] y) { y = MatMul(x, x) }"""
    )
    (node,) = proto.from_model(model(text)).nodes
    assert (partition.microseconds(node) or 0) > 2 * 512**3 / partition.FLOPS_PER_US
