"""Where a session's nodes run, and why some stay on CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ort_ep.cli.console import CommandError, out, row, say, table

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

SHOWN = 12  # rows of declined operators


@dataclass(frozen=True)
class Placement:
    """Nodes on MLX and on CPU; `declined` holds (operator, reason, nodes), `failure` why MLX gave a run up.

    `host_steps`: how often a run stops to read data that the rest of a subgraph depends on.
    """

    on_mlx: int
    on_cpu: int
    subgraphs: int
    host_steps: int
    declined: tuple[tuple[str, str, int], ...]
    failure: str = ""

    @property
    def share(self) -> float:
        """The part of the nodes that runs on MLX, 0 to 1."""
        return self.on_mlx / max(1, self.on_mlx + self.on_cpu)


def placement(session: InferenceSession) -> Placement:
    """Read the session's claim report."""
    import ort_ep

    report = ort_ep.claim_report(session)
    declined = tuple((op, reason, count) for (op, reason), count in report.reasons().most_common())
    failure = report.failures[-1] if report.failures else ""
    return Placement(report.mlx_nodes, report.cpu_nodes, len(report.clusters), report.host_steps, declined, failure)


def show_placement(where: Placement) -> None:
    """How many nodes ran where, and why some stayed on CPU."""
    total = where.on_mlx + where.on_cpu
    say(
        f"{where.on_mlx} of {total} nodes ran on MLX ({where.share:.0%}) in {where.subgraphs} "
        f"subgraph{'' if where.subgraphs == 1 else 's'} with {where.host_steps} host "
        f"step{'' if where.host_steps == 1 else 's'}, {where.on_cpu} on CPU"
    )
    show_declined(where)


def show_declined(where: Placement) -> None:
    """Why nodes stayed on CPU, the most frequent first."""
    if where.declined:
        made = table("", "on CPU", "nodes", "reason")
        made.columns[2].justify = "left"
        for op, reason, count in where.declined[:SHOWN]:
            row(made, op, str(count), reason)
        out().print(made)
    if len(where.declined) > SHOWN:
        say(f"... and {len(where.declined) - SHOWN} more kinds; ort_ep.claim_report(session) lists every node")


def refuse_fallback(where: Placement) -> None:
    """A run that failed on MLX was answered by CPU; comparing that with CPU says nothing."""
    if where.failure:
        raise CommandError(
            f"MLX failed, and ONNX Runtime answered from its CPU provider instead: {where.failure}",
            "Please report it with the model; --option on_compute_error=raise shows the failure at once.",
        )
