"""A schedule as the action table that `torch.distributed.pipelining` loads: one CSV row a rank.

An action is STAGE, kind and microbatch, `3F0`; a forward beside a backward is `(3F1;5B0)OVERLAP_F_B`.
**Source**: torch 2.13, `_PipelineScheduleRuntime._load_csv` with format "compute_only", which adds the sends.
"""

from __future__ import annotations

from meshwright.cost.schedule.actions import Action
from meshwright.errors import Diagnostic, InputError
from meshwright.simulate.network import Network


def action_table(graph: Network, word: str) -> str:
    """The CSV text of a compiled schedule called `word`.

    Stages are virtual stages in model order. Raises InputError where a stage stands on two ranks (DualPipe's
    streams), which the table cannot say.
    """
    homes: dict[int, set[int]] = {}
    for stage, rank in zip(graph.stage.tolist(), graph.rank.tolist()):
        homes.setdefault(stage, set()).add(rank)
    twice = next((stage for stage, ranks in sorted(homes.items()) if len(ranks) > 1), None)
    if twice is not None:
        ranks = " and ".join(str(rank) for rank in sorted(homes[twice]))
        raise InputError(
            Diagnostic(
                "MW158",
                f"{word} holds stage {twice} on ranks {ranks}, but an action table has each on one",
                where="--actions",
                hint="dualpipev is the same schedule with each stage on one rank",
            )
        )
    rows: list[list[str]] = [[] for _ in range(graph.n_ranks)]
    waiting: list[str] = []
    for action, rank, stage in zip(graph.actions, graph.rank.tolist(), graph.stage.tolist()):
        waiting.append(_spelled(action, stage))
        if not action.joined:
            pair = len(waiting) > 1
            rows[rank].append(f"({';'.join(waiting)})OVERLAP_F_B" if pair else waiting[0])
            waiting = []
    return "".join(",".join(row) + "\n" for row in rows)


def _spelled(action: Action, stage: int) -> str:
    return f"{stage}{action.kind}{action.microbatch}"
