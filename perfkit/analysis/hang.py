"""Who made a job hang: the ranks that others wait for and that wait for nobody.

    explain_hang(dumps) -> Hang        (dumps from perfkit.sources.flight_recorder)

A rank waits for another one when, in a group of both,
  absent      it has a collective pending that the other never enqueued (its host did not get there), or
  stuck       it has completed collectives that the other enqueued and did not complete (its device stopped), or
  unanswered  it has a send or receive pending that the other has not posted, or
  no dump     the other left no dump at all.
Nearly every rank of a hung job waits; suspects are those at the end of the chains. Ranks that wait for each other in a
circle with no way out are suspects together. If no rank lags, the oldest collective that all members entered and none
left is named with its members, and said to be undecided. Groups that carry messages count them in their sequence
numbers, so that their members differ by right: there only pending sends and receives are compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfkit.sources.flight_recorder import Dump, Group

ONE_SIDED_OPS = ("broadcast", "reduce", "scatter", "gather")
"""Some members of these finish without the others, so that one who has not is no suspect for that alone."""
SAME_SIZE_OPS = ("all_reduce", "allreduce", "_all_gather_base", "_reduce_scatter_base", "broadcast", "reduce")
MAX_STACK_FRAMES = 12


Ops = dict[tuple[str, int], str]
"""(group, sequence number) -> what was called."""


@dataclass(frozen=True)
class Wait:
    """One rank waits for another one."""

    waiter: int
    awaited: int
    why: str
    group: str
    seq: int | None
    op: str | None


@dataclass(frozen=True)
class Suspect:
    """A rank at the end of the chains, and what is known about it."""

    rank: int
    why: str
    group: str
    desc: str
    seq: int | None
    op: str | None
    waiting_ranks: int
    stack: tuple[str, ...]


@dataclass(frozen=True)
class Divergence:
    """The first collective of a group that not all members have done."""

    group: str
    desc: str
    ranks: tuple[int, ...]
    seq: int
    op: str | None
    absent: tuple[int, ...]
    stuck: tuple[int, ...]
    variants: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Hang:
    """The answer."""

    suspects: tuple[Suspect, ...]
    decided: bool
    divergences: tuple[Divergence, ...]
    ranks_present: tuple[int, ...]
    ranks_missing: tuple[int, ...]

    @property
    def suspect_ranks(self) -> list[int]:
        """The ranks to look at first."""
        return [suspect.rank for suspect in self.suspects]


def explain_hang(dumps: Sequence[Dump]) -> Hang:
    """Find the ranks that everybody else waits for."""
    by_rank = {dump.rank: dump for dump in dumps}
    groups, ops = _groups(dumps), _ops(dumps)
    world = set(by_rank).union(*(group.ranks for group in groups.values()))
    missing = tuple(sorted(world - by_rank.keys()))
    divergences = tuple(d for group in groups.values() if (d := _diverge(group, by_rank, ops)) is not None)
    waits = [wait for group in groups.values() for wait in _waits(group, by_rank, ops)]
    stuck = {wait.awaited for wait in waits if wait.why == "stuck" and wait.op not in ONE_SIDED_OPS}
    waits = [wait for wait in waits if wait.waiter not in stuck]  # others completed it: it waits for its own device
    ends = _ends({(wait.waiter, wait.awaited) for wait in waits})
    mismatched = _mismatched(divergences)
    ranks = sorted(ends | mismatched.keys())
    suspects = [_suspect(rank, waits, mismatched, groups, by_rank) for rank in ranks]
    decided = bool(suspects)
    if not decided:
        suspects = _everyone_arrived(groups, by_rank)
    suspects.sort(key=lambda suspect: (-suspect.waiting_ranks, suspect.rank))
    return Hang(tuple(suspects), decided, divergences, tuple(sorted(by_rank)), missing)


def _groups(dumps: Sequence[Dump]) -> dict[str, Group]:
    """Return all groups by name; the same name with other ranks on another rank is another group."""
    found: dict[str, Group] = {}
    for dump in dumps:
        for name, group in dump.groups.items():
            if name in found and found[name].ranks != group.ranks:
                found.setdefault(f"{name} {list(group.ranks)}", group)
            else:
                found.setdefault(name, group)
    return found


def _members(group: Group, by_rank: dict[int, Dump]) -> dict[int, Dump]:
    return {
        rank: by_rank[rank]
        for rank in group.ranks
        if rank in by_rank and (own := by_rank[rank].groups.get(group.name)) is not None and own.ranks == group.ranks
    }


def _carries_messages(group: Group, members: dict[int, Dump]) -> bool:
    return any(call.is_p2p and call.group == group.name for dump in members.values() for call in dump.calls)


def _ops(dumps: Sequence[Dump]) -> Ops:
    return {(call.group, call.seq): call.op for dump in dumps for call in dump.calls if not call.is_p2p}


def _diverge(group: Group, by_rank: dict[int, Dump], ops: Ops) -> Divergence | None:
    members = _members(group, by_rank)
    progress = {rank: dump.progress[group.name] for rank, dump in members.items() if group.name in dump.progress}
    if not progress or _carries_messages(group, members):
        return None
    seq = min(p.completed for p in progress.values()) + 1
    if all(p.enqueued < seq for p in progress.values()):
        return None
    absent = tuple(rank for rank, p in progress.items() if p.enqueued < seq)
    furthest = max(p.completed for p in progress.values())
    stuck = tuple(rank for rank, p in progress.items() if p.completed < furthest and p.enqueued > p.completed)
    return Divergence(
        group.name, group.desc, group.ranks, seq, ops.get((group.name, seq)), absent, stuck, _variants(group, members)
    )


def _variants(group: Group, members: dict[int, Dump]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the different calls behind one sequence number, the first time that members disagree."""
    at: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, dump in members.items():
        for call in dump.calls:
            if call.group == group.name and not call.is_p2p:
                what = f"{call.op} {call.shape}" if call.op in SAME_SIZE_OPS else call.op
                at[call.seq][what].append(rank)
    for seq in sorted(at):
        if len(at[seq]) > 1:
            return tuple(
                (what, tuple(ranks)) for what, ranks in sorted(at[seq].items(), key=lambda item: -len(item[1]))
            )
    return ()


def _mismatched(divergences: Sequence[Divergence]) -> dict[int, Divergence]:
    """Ranks that called something else than most members of their group."""
    return {rank: d for d in divergences for _, ranks in d.variants[1:] for rank in ranks}


def _waits(group: Group, by_rank: dict[int, Dump], ops: Ops) -> Iterator[Wait]:
    members = _members(group, by_rank)
    if _carries_messages(group, members):
        yield from _message_waits(group, members)
        return
    progress = {rank: dump.progress[group.name] for rank, dump in members.items() if group.name in dump.progress}
    furthest = max((own.completed for own in progress.values()), default=0)
    lagging = {rank: own for rank, own in progress.items() if own.completed < furthest or own.enqueued <= furthest}
    for rank, own in progress.items():
        if own.enqueued <= own.completed:
            continue
        seq = own.completed + 1
        op = ops.get((group.name, seq))
        for other, theirs in lagging.items():
            at = theirs.completed + 1
            if at < seq and at <= theirs.enqueued:
                yield Wait(rank, other, "stuck", group.name, at, ops.get((group.name, at)))
            elif theirs.enqueued < seq:
                yield Wait(rank, other, "absent", group.name, seq, op)
        for other in set(group.ranks) - by_rank.keys():
            yield Wait(rank, other, "no dump", group.name, seq, op)


def _message_waits(group: Group, members: dict[int, Dump]) -> Iterator[Wait]:
    posted = Counter(
        (rank, call.op, call.peer)
        for rank, dump in members.items()
        for call in dump.calls
        if call.is_p2p and call.pending and call.group == group.name and call.peer is not None
    )
    for (rank, op, peer), count in posted.items():
        if peer not in members:
            yield Wait(rank, int(peer or 0), "no dump", group.name, None, op)
        elif posted[peer, "send" if op == "recv" else "recv", rank] < count:
            yield Wait(rank, int(peer or 0), "unanswered", group.name, None, op)


def _ends(edges: set[tuple[int, int]]) -> set[int]:
    """Return the ranks of the components that are waited for and wait for nobody outside of themselves."""
    after: dict[int, set[int]] = defaultdict(set)
    for waiter, awaited in edges:
        if waiter != awaited:
            after[waiter].add(awaited)
            after[awaited] |= set()
    ends: set[int] = set()
    for component in _components(after):
        leaves = any(awaited not in component for rank in component for awaited in after[rank])
        awaited = len(component) > 1 or any(next(iter(component)) in others for others in after.values())
        if awaited and not leaves:
            ends |= component
    return ends


def _components(after: dict[int, set[int]]) -> list[set[int]]:
    """Tarjan's strongly connected components, without recursion."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    found: list[set[int]] = []
    for root in after:
        work = [(root, iter(after[root]))] if root not in index else []
        while work:
            rank, others = work[-1]
            if rank not in index:
                index[rank] = low[rank] = len(index)
                stack.append(rank)
            descend = next((other for other in others if other not in index), None)
            if descend is not None:
                work.append((descend, iter(after[descend])))
                continue
            low[rank] = min([low[rank], *(low[other] for other in after[rank] if other in stack)])
            work.pop()
            if low[rank] == index[rank]:
                at = stack.index(rank)
                found.append(set(stack[at:]))
                del stack[at:]
    return found


def _suspect(
    rank: int, waits: list[Wait], mismatched: dict[int, Divergence], groups: dict[str, Group], by_rank: dict[int, Dump]
) -> Suspect:
    waiting = _reaching(rank, waits)
    own = [wait for wait in waits if wait.awaited == rank]
    if own:
        first = min(own, key=lambda wait: (("stuck", "absent", "no dump", "unanswered").index(wait.why), wait.seq or 0))
        group = groups[first.group]
        return Suspect(
            rank, first.why, group.name, group.desc, first.seq, first.op, len(waiting), _stack(by_rank.get(rank))
        )
    d = mismatched[rank]
    return Suspect(rank, "mismatch", d.group, d.desc, d.seq, d.op, len(waiting), _stack(by_rank.get(rank)))


def _reaching(rank: int, waits: list[Wait]) -> set[int]:
    """Return the ranks that wait for this one, directly or through others."""
    before: dict[int, set[int]] = defaultdict(set)
    for wait in waits:
        before[wait.awaited].add(wait.waiter)
    found, todo = {rank}, [rank]
    while todo:
        new = before[todo.pop()] - found
        found |= new
        todo += new
    return found - {rank}


def _stack(dump: Dump | None) -> tuple[str, ...]:
    """Return the stack of the last call that a rank made: the place that it went on from."""
    if dump is None or not dump.calls:
        return ()
    return max(dump.calls, key=lambda call: call.created_ns).stack[:MAX_STACK_FRAMES]


def _everyone_arrived(groups: dict[str, Group], by_rank: dict[int, Dump]) -> list[Suspect]:
    """Name the members of the oldest call that all have entered and none has left."""
    pending = [(call.created_ns, rank, call) for rank, dump in by_rank.items() for call in dump.calls if call.pending]
    if not pending:
        return []
    _, _, call = min(pending, key=lambda item: item[:2])
    group = groups[call.group]
    waiting = len(by_rank)
    return [
        Suspect(rank, "undecided", group.name, group.desc, call.seq, call.op, waiting, _stack(by_rank.get(rank)))
        for rank in group.ranks
    ]
