"""Schedules whose stages lie in a V: one building block, repeated, gives each rank's order of passes.

Rank r holds virtual stages r and 2p - 1 - r. A building block says at which slot each pass of one microbatch
runs, with F, I and W of a chunk one slot each; the next microbatch does the same six slots later, so a block
is legal where the six passes of a rank fall on different slots modulo six. The slots between the same pass on
neighbouring ranks (`Block`) set how long activations live: a rank's two chunks together are held
p (down + up + back_down + back_up) slots; every six of them is a chunk more in flight.
**Source**: Qi et al. 2024 (arXiv 2405.15362), sections 3 and 4; the slots are worked out here from its rules.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from meshwright.cost.schedule.actions import Action, Kind, Order, v_shaped

CYCLE = 6  # slots from one microbatch to the next: F, I and W of two chunks

Row = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Block:
    """Slots from a rank's pass to the next rank's.

    Forward in chunk 0 (`down`) and 1 (`up`), then the gradient back in chunk 1 (`back_down`) and 0
    (`back_up`).
    """

    down: int
    up: int
    back_down: int
    back_up: int


@lru_cache(maxsize=256)
def slots(block: Block, pp: int) -> tuple[Row, ...]:
    """[pp] slots of F0, F1, I1, I0, W1, W0 of the first microbatch.

    Each of the three turns (down to up, forward to backward, up again) takes extra slots such that no two
    passes of a rank share one; of the legal choices the one that holds least, then the shortest.
    """
    down = [block.down * r for r in range(pp)]
    up = [block.up * (pp - 1 - r) for r in range(pp)]
    back_down = [block.back_down * r for r in range(pp)]
    back_up = [block.back_up * (pp - 1 - r) for r in range(pp)]
    legal = []
    for extra in product(range(CYCLE), repeat=3):
        first_up = down[-1] + 1 + extra[0]
        first_back = first_up + up[0] + 1 + extra[1]
        last_back = first_back + back_down[-1] + 1 + extra[2]
        rows = [
            (down[r], first_up + up[r], first_back + back_down[r], last_back + back_up[r]) for r in range(pp)
        ]
        if all(len({t % CYCLE for t in row}) == 4 for row in rows):
            whole = tuple((*row, *_weight_slots(row)) for row in rows)
            legal.append((max(_held(row) for row in whole), sum(extra), whole))
    return min(legal)[-1]


def _held(row: Row) -> int:
    """The most chunks that a rank holds when microbatches have always been coming."""
    f0, f1, _, _, w1, w0 = row
    return max(
        sum((t - f) // CYCLE - (t - 1 - w) // CYCLE for f, w in ((f0, w0), (f1, w1))) for t in range(CYCLE)
    )


def _weight_slots(row: tuple[int, int, int, int]) -> tuple[int, int]:
    """The first free slots after the input parts of chunk 1 and of chunk 0."""
    taken = {t % CYCLE for t in row}
    found = []
    for after in row[2:]:
        slot = next(t for t in range(after + 1, after + 1 + CYCLE) if t % CYCLE not in taken)
        taken.add(slot % CYCLE)
        found.append(slot)
    return found[0], found[1]


def pattern(block: Block, pp: int, microbatches: int) -> Order:
    """Each rank's passes in the order of their slots."""
    passes: tuple[tuple[Kind, int], ...] = (("F", 0), ("F", 1), ("I", 1), ("I", 0), ("W", 1), ("W", 0))
    order = []
    for row in slots(block, pp):
        timed = [
            (slot + CYCLE * i, Action(kind, chunk, i))
            for i in range(microbatches)
            for slot, (kind, chunk) in zip(row, passes)
        ]
        order.append(tuple(action for _, action in sorted(timed, key=lambda x: x[0])))
    return tuple(order)


def peak(row: tuple[Action, ...]) -> int:
    """The most chunks a rank's passes hold at once."""
    held = most = 0
    for action in row:
        held += {"F": 1, "W": -1}.get(action.kind, 0)
        most = max(most, held)
    return most


def tightened(order: Order, pp: int) -> Order:
    """`order` with its weight parts moved to where a rank would idle.

    Forwards and input parts keep their order on each rank. Runs slot by slot: a rank whose next pass still
    waits for its input runs the oldest weight part instead, and one that has run its last forward takes an
    input part, which others wait for, before a weight part. In between nothing waits, so nothing moves.
    """
    stage = {place: s for s, place in enumerate(v_shaped(pp, 2, 0, 1))}
    done: dict[tuple[str, int, int], int] = {}  # pass of (microbatch, stage) -> slot
    rows = [[a for a in row if a.kind != "W"] for row in order]
    weights_before = [_weights_before(row) for row in order]
    forwards_left = [sum(a.kind == "F" for a in row) for row in order]
    limits, held = [peak(row) for row in order], [0] * pp
    position, weights_run = [0] * pp, [0] * pp
    pending: list[deque[Action]] = [deque() for _ in range(pp)]
    result: list[list[Action]] = [[] for _ in range(pp)]

    def ready(rank: int, action: Action, now: int) -> bool:
        s, i = stage[rank, action.chunk], action.microbatch
        needs = [("F", s - 1)] if action.kind == "F" else [("I", s + 1), ("F", s)]
        return all(done.get((kind, i, at), now) < now for kind, at in needs if 0 <= at < 2 * pp)

    def choose(rank: int, now: int) -> Action | None:
        at = position[rank]
        following = rows[rank][at] if at < len(rows[rank]) else None
        runs = following is not None and ready(rank, following, now)
        if following is not None and following.kind == "F":
            runs = runs and held[rank] < limits[rank]
        due = at == len(rows[rank]) or weights_run[rank] < weights_before[rank][at]
        if pending[rank] and (not runs or (due and forwards_left[rank])):
            return pending[rank][0]
        return following if runs else None

    now, left = 0, sum(len(row) for row in order)
    while left:
        for rank, action in [(r, a) for r in range(pp) if (a := choose(r, now)) is not None]:
            result[rank].append(action)
            left -= 1
            if action.kind == "W":
                pending[rank].popleft()
                weights_run[rank] += 1
                held[rank] -= 1
                continue
            done[action.kind, action.microbatch, stage[rank, action.chunk]] = now
            position[rank] += 1
            if action.kind == "F":
                held[rank] += 1
                forwards_left[rank] -= 1
            else:
                pending[rank].append(Action("W", action.chunk, action.microbatch))
        now += 1
    return tuple(tuple(row) for row in result)


def _weights_before(row: tuple[Action, ...]) -> list[int]:
    """For each forward or input part of a rank, the weight parts that the pattern runs before it."""
    seen, counts = 0, []
    for action in row:
        if action.kind == "W":
            seen += 1
        else:
            counts.append(seen)
    return counts
