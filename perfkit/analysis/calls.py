"""One row per collective call and rank: who, what, how much, when.

    collective_calls(timeline, device, tables, tree, steps) -> CALLS
    exposed_rows(timeline, device, windows, busy)           -> EXPOSED

Contract of the tables that the job's analysis is made of (perfkit.analysis.job assembles them):

    CALLS       one row per call and rank, on the clock of its rank, in order of (rank, segment, device, arrival)
    MEMBERS     row i says what matching and clocks made of row i of CALLS
    INSTANCES   one row per matched instance
    GROUPS      one row per distinct process group

Metadata comes from the kernel's arguments, then from those of the op that launched it (`record_param_comms`, NCCL's
NVTX payload), then from names and shapes of the ops around the launch. A piece of communication work always has a
row, known or not: every ns of C belongs to at least one call.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.attribute import Busy
from perfkit.analysis.call_about import OpNotes, is_issuer, op_name
from perfkit.analysis.call_args import NONE, CallArgs
from perfkit.analysis.call_columns import Found, describe_calls
from perfkit.analysis.classify import CLASSES, cpu_kind
from perfkit.analysis.intervals import Ints, difference, overlaps, union
from perfkit.analysis.ops import CallTree
from perfkit.analysis.timeline import Timeline
from perfkit.analysis.windows import NEVER, Steps, Windows
from perfkit.schema import TEXT

_THREADS = 2**20
CALLS = pa.schema(
    [
        ("rank", pa.int32()), ("device", pa.int32()), ("segment", pa.int32()),
        ("call", pa.int64()),         # position among the calls of (rank, segment, device), from 0
        ("event_id", pa.int64()),     # the kernel (or gloo work); messages coalesced into one kernel share it
        ("step", pa.int64()),         # step whose range launched it; null if unknown
        ("group", TEXT),              # process group name as recorded; null
        ("group_desc", TEXT),
        ("group_ranks", TEXT),        # JSON of sorted global ranks, "[0,1,2]"; null if not recorded
        ("group_size", pa.int64()),
        ("op", TEXT),                 # exchanges.collective_name vocabulary, and send, recv; `unknown`
        ("seq", pa.int64()),
        ("dtype", TEXT),
        ("in_bytes", pa.int64()), ("out_bytes", pa.int64()),
        ("peer", pa.int64()),         # global rank at the other end of a send or recv
        ("root", pa.int64()),         # global rank of the root of a rooted collective
        ("start_ns", pa.int64()), ("end_ns", pa.int64()),   # device kernel; CPU rank: gloo work
        ("host_start_ns", pa.int64()),                      # start of the op that issued it; null
        ("source", TEXT),             # kernel_args, op_args, op, name
        ("in_split", TEXT), ("out_split", TEXT),            # JSON lists of an all-to-all-v
    ]
)  # fmt: skip
"""Calls of one or many ranks."""
MEMBERS = pa.schema(
    [
        ("instance", pa.int64()),     # row of INSTANCES; -1 unmatched
        ("gid", pa.int64()),          # row of GROUPS; -1 unknown
        ("arrive_ns", pa.int64()),    # aligned: kernel start, or the c10d call of a CPU rank
        ("start_ns", pa.int64()), ("end_ns", pa.int64()),   # aligned
        ("wait_ns", pa.int64()), ("transfer_ns", pa.int64()), ("unsplit_ns", pa.int64()),   # sum to the duration
        ("exposed_wait_ns", pa.int64()), ("exposed_transfer_ns", pa.int64()), ("exposed_unsplit_ns", pa.int64()),
        ("bubble_ns", pa.int64()),    # exposed ns with this pipeline receive on the device
    ]
)  # fmt: skip
"""Row by row with CALLS. Exposed ns: each ns of C minus K has one owning call and one label."""
INSTANCES = pa.schema(
    [
        ("instance", pa.int64()), ("gid", pa.int64()), ("op", TEXT), ("dtype", TEXT), ("step", pa.int64()),
        ("bytes", pa.int64()),        # as nccl-tests counts the message; null
        ("size", pa.int64()),         # members of the group (2 for a message)
        ("present", pa.int64()),      # members found in the traces
        ("complete", pa.bool_()),     # present == size
        ("first_ns", pa.int64()),     # first aligned arrival
        ("arrival_ns", pa.int64()),   # A of definition 9
        ("end_ns", pa.int64()),       # latest aligned end
        ("skew_ns", pa.int64()),      # last arrival - first arrival
        ("last_rank", pa.int64()),    # who came last
        ("u_ns", pa.int64()),         # clock error that applies between its members; null: not aligned
        ("class", TEXT),              # transfer, skew, mixed, inconclusive
        ("algbw_gbps", pa.float64()), ("busbw_gbps", pa.float64()), ("efficiency", pa.float64()),
        ("link", TEXT), ("peak_gbps", pa.float64()),    # what it ran over, and how fast that can be; null
    ]
)  # fmt: skip
GROUPS = pa.schema(
    [
        ("gid", pa.int64()), ("name", pa.utf8()), ("desc", pa.utf8()), ("ranks", pa.list_(pa.int64())),
        ("size", pa.int64()),         # null if unknown
        ("traced", pa.int64()),       # members with a trace
        ("calls", pa.int64()),
        ("role", pa.utf8()),          # filled by perfkit.analysis.parallelism; null before
    ]
)  # fmt: skip
"""`ranks` is null for a group that was recorded by name or not at all."""
EXPOSED = pa.schema(
    [
        ("rank", pa.int32()), ("device", pa.int32()), ("segment", pa.int32()), ("step", pa.int64()),
        ("window_start_ns", pa.int64()), ("start_ns", pa.int64()), ("end_ns", pa.int64()),
    ]
)  # fmt: skip
"""C minus K in pieces, on the clock of the rank; `window_start_ns` is null for what lies outside of all windows."""


def collective_calls(
    timeline: Timeline, device: int | None, tables: Mapping[str, pa.Table], tree: CallTree, steps: Steps | None
) -> pa.Table:
    """Return the calls of one device of a rank (None: the gloo work of a rank without one)."""
    args = CallArgs.read(tables.get("collective_args"), _mine(timeline, tables.get("process_groups")))
    notes = OpNotes(tree, args.row_of(timeline.host.event_id[tree.rows]) >= 0)
    found = _host_calls(timeline, tree, args, notes) if device is None else _device_calls(timeline, device, args, notes)
    if not len(found.start):
        return CALLS.empty_table()
    host_start = np.append(timeline.host.start[tree.rows], NONE)[notes.outermost(found.issuer)]
    step = np.full(len(found.start), NONE, np.int64)
    if steps is not None and len(steps.number):
        asked = np.where(found.issuer >= 0, host_start, NEVER) if len(timeline.host.start) else found.start
        at = steps.at(asked)
        step = np.append(steps.number, NONE)[at]
    arrive = host_start if device is None else found.start
    order = np.lexsort((found.event_id, arrive))
    columns = describe_calls(timeline, found, args, notes)
    number = len(found.start)
    table = pa.table(
        {
            "rank": np.full(number, timeline.rank, np.int32),
            "device": pa.array([device if device is not None and device >= 0 else None] * number, pa.int32()),
            "segment": np.full(number, timeline.segment, np.int32),
            "call": np.argsort(order),
            "event_id": found.event_id,
            "step": pa.array(step, mask=step < 0),
            "start_ns": found.start,
            "end_ns": found.end,
            "host_start_ns": pa.array(host_start, mask=found.issuer < 0),
            **columns,
        }
    )
    return table.select(CALLS.names).cast(CALLS).take(order)


def exposed_rows(timeline: Timeline, device: int | None, windows: Windows, busy: Busy) -> pa.Table:
    """Return the pieces of exposed communication, each in its window."""
    exposed = difference(busy.communication, busy.compute)
    _, window, start, end = overlaps(exposed.start, exposed.end, windows.start, windows.end)
    outside = difference(exposed, union(windows.start, windows.end))
    window = np.append(window, np.full(len(outside.start), -1))
    start, end = np.append(start, outside.start), np.append(end, outside.end)
    order = np.argsort(start, kind="stable")
    window, start, end = window[order], start[order], end[order]
    number, step = len(start), np.append(windows.step, NONE)[window]
    return pa.table(
        {
            "rank": np.full(number, timeline.rank, np.int32),
            "device": pa.array([device if device is not None and device >= 0 else None] * number, pa.int32()),
            "segment": np.full(number, timeline.segment, np.int32),
            "step": pa.array(step, mask=step < 0),
            "window_start_ns": pa.array(np.append(windows.start, NONE)[window], mask=window < 0),
            "start_ns": start,
            "end_ns": end,
        },
        schema=EXPOSED,
    )


def _mine(timeline: Timeline, groups: pa.Table | None) -> pa.Table | None:
    if groups is None or not len(groups) or "rank" not in groups.column_names:
        return groups
    return groups.filter(pc.equal(groups["rank"], timeline.rank))


# ------------------------------------------------------------------ which work is which call


def _device_calls(timeline: Timeline, device: int, args: CallArgs, notes: OpNotes) -> Found:
    tree, work = notes.tree, timeline.work
    work = work.take((work.kind == CLASSES.index("communication")) & (work.device == device))
    work = work.take(np.argsort(work.start, kind="stable"))
    launch = np.append(tree.position, -1)[work.launch]
    issuer = notes.nearest(launch)
    unknown = issuer < 0
    if unknown.any():
        issuer = np.where(unknown, notes.nearest(tree.op_of(work)), issuer)
    recorded = np.append(args.row_of(timeline.host.event_id[tree.rows]), -1)
    carrier = np.append(tree.nearest(recorded[:-1] >= 0), -1)[issuer]
    own = args.row_of(work.event_id)
    found = Found(work.event_id, work.start, work.end, work.name, own, issuer, recorded[carrier], issuer.copy())
    return _with_messages(timeline, found, launch, carrier, recorded, args, notes)


def _with_messages(
    timeline: Timeline, found: Found, launch: Ints, carrier: Ints, recorded: Ints, args: CallArgs, notes: OpNotes
) -> Found:
    """Give a kernel that carries several grouped calls a row for each of them.

    Calls of a group are recorded one by one and launch nothing; the kernel is launched where the group ends. So a
    recorded call without a kernel belongs to the next kernel that the same thread launches.
    """
    tree, host = notes.tree, timeline.host
    positions = np.flatnonzero(recorded[:-1] >= 0)
    silent = positions[~np.isin(positions, carrier[carrier >= 0])]
    outer = np.append(tree.above(tree.nearest(recorded[:-1] >= 0)), -1)[silent] if len(silent) else silent
    silent = silent[outer < 0] if len(silent) else silent
    kernels = np.flatnonzero(launch >= 0)
    if not len(silent) or not len(kernels):
        return found
    rows, threads = tree.rows, host.thread
    kernels = kernels[np.lexsort((host.start[rows[launch[kernels]]], threads[rows[launch[kernels]]]))]
    base = int(host.start.max()) + 1
    low = int(host.start.min())
    span = base - low
    key = threads[rows[launch[kernels]]] % _THREADS * span + (host.start[rows[launch[kernels]]] - low)
    wanted = threads[rows[silent]] % _THREADS * span + (host.start[rows[silent]] - low)
    at = np.searchsorted(key, wanted, side="right")
    inside = at < len(kernels)
    silent, at = silent[inside], at[inside]
    kernel = kernels[at]
    same = threads[rows[silent]] == threads[rows[launch[kernel]]]
    # only a kernel without arguments of its own, or one that says it carries a group, takes calls in
    bare = (found.args[kernel] < 0) & (found.issued_args[kernel] < 0)
    said = args.texts("collective", np.where(found.args[kernel] >= 0, found.args[kernel], found.issued_args[kernel]))
    grouped = np.array([text is not None and "coalesced" in text.lower() for text in said], bool)
    keep = same & (bare | grouped)
    silent, kernel = silent[keep], kernel[keep]
    if not len(silent):
        return found
    alone = np.setdiff1d(np.arange(len(found.start)), kernel)
    which = np.concatenate([alone, kernel])
    many = found.take(which)
    many.issuer[len(alone) :] = silent
    many.inner[len(alone) :] = silent
    many.args[len(alone) :] = -1
    many.issued_args[len(alone) :] = recorded[silent]
    return many.take(np.argsort(many.start, kind="stable"))


def _host_calls(timeline: Timeline, tree: CallTree, args: CallArgs, notes: OpNotes) -> Found:
    """Return the work of a CPU rank's collectives, each with the `c10d` call that it came from."""
    host, names = timeline.host, timeline.names
    used = np.unique(host.name)
    kinds = cpu_kind(pa.array([names[i] for i in used.tolist()], pa.utf8())).to_pylist()
    working = np.zeros(len(names), bool)
    working[used] = [kind == "communication" for kind in kinds]
    rows = np.flatnonzero(working[host.name] & np.isin(host.kind, [CLASSES.index("op"), CLASSES.index("range")]))
    rows = rows[np.argsort(host.start[rows], kind="stable")]
    issuing = np.zeros(len(names), bool)
    issuing[used] = [is_issuer(names[i]) and not working[i] for i in used.tolist()]
    calls = np.flatnonzero(
        tree.named(issuing) & (np.append(tree.above(notes.nearest(np.arange(len(tree)))), -1)[:-1] < 0)
    )
    calls = calls[np.argsort(host.start[tree.rows[calls]], kind="stable")]
    op = np.array([op_name(names[i]) for i in host.name[rows].tolist()], object)
    call_op = np.array([op_name(names[i]) for i in tree.name[calls].tolist()], object)
    issuer = np.full(len(rows), NONE, np.int64)
    for kind in set(op.tolist()):
        mine, theirs = np.flatnonzero(op == kind), calls[call_op == kind]
        issuer[mine] = _pair_up(host.start[rows[mine]], host.start[tree.rows[theirs]], theirs)
    carried = args.row_of(host.event_id[rows])
    issued = args.row_of(np.append(host.event_id[tree.rows], NONE)[issuer])
    return Found(
        host.event_id[rows], host.start[rows], host.end[rows], host.name[rows], carried, issuer, issued,
        tree.position[rows],
    )  # fmt: skip


def _pair_up(work: Ints, call: Ints, position: Ints) -> Ints:
    """Give each piece of work its call: in order if there are as many, else the latest that came before it."""
    if len(work) == len(call) and (call <= work).all():
        return position
    at = np.searchsorted(call, work, side="right") - 1
    result: Ints = np.append(position, NONE)[np.where(at >= 0, at, len(position))]
    return result
