"""Who waits for whom in an exchange between ranks, in terms of tasks.

    find_exchanges(tasks, calls, members, instances) -> Exchanges

Taken from the job's matched calls (perfkit.analysis.job). An exchange of which fewer than two members are traced, or
whose members' clocks could not be aligned, is not shared: its duration stays as measured.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from perfkit.analysis.classify import encode_text
from perfkit.analysis.collectives import ROOT_WAITS, WAIT_FOR_ROOT
from perfkit.analysis.intervals import Ints
from perfkit.analysis.replay.graph import NEVER
from perfkit.analysis.replay.tasks import Tasks
from perfkit.analysis.timeline import Mask, ints

MESSAGES = ("send", "recv")


@dataclass
class Exchanges:
    """Exchanges that are shared between traced ranks."""

    num: int
    coming: Ints
    """Exchange, row by row with `coming_task`: whose start counts as an arrival."""
    coming_task: Ints
    waiting: Ints
    """Exchange, row by row with `waiting_task`: who goes on only when all have come."""
    waiting_task: Ints
    shared: Ints
    """Tasks that take part, in order."""
    transfer: Ints
    """Of every shared task: from the last arrival that it waits for to its end."""
    split: Mask
    """Of every shared task: whether all members are traced, so that its transfer is known to be one."""
    message: Mask
    """Of all tasks: messages between two ranks."""

    def without(self, tasks: Tasks, wrong: Ints) -> Exchanges:
        """Take some exchanges out: those who only took part in them keep the length of their own task."""
        coming, waiting = ~np.isin(self.coming, wrong), ~np.isin(self.waiting, wrong)
        _, number = np.unique(np.append(self.coming[coming], self.waiting[waiting]), return_inverse=True)
        left = int(np.count_nonzero(coming))
        shared = np.unique(np.append(self.coming_task[coming], self.waiting_task[waiting]))
        kept = np.isin(self.shared, shared)
        arrival = np.full(int(number.max(initial=-1)) + 1, NEVER)
        np.maximum.at(arrival, number[:left], tasks.start[self.coming_task[coming]])
        begun = tasks.start[shared].copy()
        np.maximum.at(begun, np.searchsorted(shared, self.waiting_task[waiting]), arrival[number[left:]])
        return Exchanges(
            len(arrival), number[:left], self.coming_task[coming], number[left:], self.waiting_task[waiting], shared,
            tasks.end[shared] - begun, self.split[kept], self.message,
        )  # fmt: skip


def no_exchanges(tasks: Tasks) -> Exchanges:
    """Return what a single rank has."""
    none = np.empty(0, np.int64)
    return Exchanges(0, none, none, none, none, none, none, none > 0, np.zeros(len(tasks.start), bool))


def find_exchanges(tasks: Tasks, calls: pa.Table, members: pa.Table, instances: pa.Table) -> Exchanges:
    """Translate matched calls into tasks."""
    task = _task_of(tasks, calls)
    op, names = encode_text(calls["op"])

    def is_op(words: tuple[str, ...]) -> Mask:
        result: Mask = np.array([*(name in words for name in names), False])[op]
        return result

    message = np.zeros(len(tasks.start) + 1, bool)
    message[task[is_op(MESSAGES)]] = True
    instance = ints(members["instance"])
    u = ints(instances["u_ns"])
    known = (instance >= 0) & (task >= 0)
    known &= np.append(u, -1)[instance] >= 0
    rows = np.flatnonzero(known)
    number = np.bincount(instance[rows], minlength=len(instances))
    rows = rows[number[instance[rows]] >= 2]
    if not len(rows):
        nothing = no_exchanges(tasks)
        nothing.message = message[:-1]
        return nothing
    root = ints(calls["root"])[rows] == ints(calls["rank"])[rows]
    comes = ~(is_op(WAIT_FOR_ROOT)[rows] & ~root)
    waits = ~((is_op(WAIT_FOR_ROOT)[rows] & root) | (is_op(ROOT_WAITS)[rows] & ~root))
    _, one = np.unique(instance[rows], return_inverse=True)
    num = int(one.max()) + 1
    arrival = np.full(num, NEVER)
    np.maximum.at(arrival, one[comes], tasks.start[task[rows[comes]]])
    waits &= arrival[one] > NEVER
    shared = np.unique(task[rows])
    place = np.searchsorted(shared, task[rows])
    begun = tasks.start[shared].copy()
    np.maximum.at(begun, place[waits], arrival[one[waits]])
    complete = np.ones(len(shared), bool)
    np.logical_and.at(complete, place, np.asarray(instances["complete"])[instance[rows]])
    return Exchanges(
        num, one[comes], task[rows[comes]], one[waits], task[rows[waits]], shared, tasks.end[shared] - begun,
        complete, message[:-1],
    )  # fmt: skip


def _task_of(tasks: Tasks, calls: pa.Table) -> Ints:
    """Return the task of every call; -1 if it is none (a CPU rank's)."""
    lanes = {(record.rank, record.segment): lane for lane, record in enumerate(tasks.records)}
    rank, segment = ints(calls["rank"]), ints(calls["segment"])
    result = np.full(len(rank), -1, np.int64)
    for (r, s), lane in lanes.items():
        mine = np.flatnonzero((rank == r) & (segment == s))
        low, high = int(tasks.first_task[lane]), int(tasks.first_task[lane + 1])
        order = low + np.argsort(tasks.event_id[low:high], kind="stable")
        event = ints(calls["event_id"])[mine]
        at = np.minimum(np.searchsorted(tasks.event_id[order], event), len(order) - 1)
        result[mine] = np.where(tasks.event_id[order[at]] == event, order[at], -1)
    return result
