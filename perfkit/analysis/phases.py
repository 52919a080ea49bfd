"""Which part of training an op belongs to: forward, backward, optimizer, or forward run again.

    phases(tree) -> index into PHASES for every position, -1 for what is no op
    modules(tree) -> (codes, paths): the nn.Module path around every position

Recomputation (activation checkpointing) is recognised by what autograd itself records: an op inside a
backward node that has a sequence number and no forward thread was run with gradients on, and that is a
forward op. A node of a checkpoint, a frame of torch/utils/checkpoint.py, and an op of the backward thread
that no node encloses say the same. Sums of gradients and hooks run without gradients and stay backward.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.analysis.intervals import Ints
from perfkit.analysis.ops import CallTree
from perfkit.analysis.timeline import Mask

PHASES = ("forward", "backward", "optimizer", "recompute")
_NODE = r"autograd::engine::evaluate_function|Backward\d*$"
_CHECKPOINT_NODE = r"Checkpoint\w*Backward\d*$"
_CHECKPOINT_FRAME = r"torch/utils/checkpoint\.py\(\d+\): (recompute_fn|unpack_hook|backward)"
_OPTIMIZER = r"(?i)Optimizer\.(step|zero_grad)#|torch/optim/\w+\.py\(\d+\): step"
_MODULE = re.compile(r"nn\.Module: (.+?)(?:_\d+)?\Z")


def phases(tree: CallTree) -> Ints:
    """Return the phase of every op."""
    names = pa.array(tree.timeline.names, pa.utf8())
    is_node, checkpoint, is_optimizer, is_frame = (
        pc.match_substring_regex(names, pattern).to_numpy(zero_copy_only=False)
        for pattern in (_NODE, _CHECKPOINT_NODE, _OPTIMIZER, _CHECKPOINT_FRAME)
    )
    node, optimizer, frame = (tree.nearest(tree.named(m)) for m in (is_node, is_optimizer, is_frame))
    with_gradients = tree.nearest(tree.is_op & (tree.sequence >= 0) & (tree.forward_thread <= 0))
    of_backward = tree.nearest(tree.is_op & (tree.forward_thread > 0))
    again = (node >= 0) & ((with_gradients > node) | (frame > node))
    again |= (node >= 0) & checkpoint[tree.name[np.maximum(node, 0)]]
    again |= (node < 0) & (of_backward >= 0)
    again &= ~is_node[tree.name]
    result = np.where(node >= 0, PHASES.index("backward"), PHASES.index("forward"))
    result = np.where(again, PHASES.index("recompute"), result)
    result = np.where(optimizer > np.where(again, -1, node), PHASES.index("optimizer"), result)
    phase: Ints = np.where(tree.is_op, result, -1)
    return phase


def modules(tree: CallTree) -> tuple[Ints, list[str]]:
    """Return the module around every position as an index into paths, -1 for none.

    A backward op belongs to the module of the forward op with its sequence number.
    """
    names = tree.timeline.names
    labels = [(m.group(1) if (m := _MODULE.match(name)) else None) for name in names]
    is_module = tree.named([label is not None for label in labels], "python")
    paths: list[str] = []
    code = np.full(len(tree), -1, np.int64)
    if is_module.any():
        code, paths = _paths(tree, is_module, labels)
    recorded, values = tree.text("module_hierarchy")
    if values:
        own = (recorded >= 0) & (code < 0)
        code = np.where(own, recorded + len(paths), code)
        paths = [*paths, *values]
    return _from_forward(tree, code), paths


def _paths(tree: CallTree, is_module: Mask, labels: list[str | None]) -> tuple[Ints, list[str]]:
    """Intern (path of the module above, class) level by level."""
    near = tree.nearest(is_module)
    rows = np.flatnonzero(is_module)
    above = tree.above(near)[rows]
    parent = np.searchsorted(rows, above)
    path_of = np.full(len(rows), -1, np.int64)
    paths: list[str] = []
    level = np.flatnonzero(above < 0)
    key_base = len(tree.timeline.names)
    while len(level):
        upper = np.where(above[level] >= 0, path_of[np.minimum(parent[level], len(rows) - 1)], -1)
        key = (upper + 1) * key_base + tree.name[rows[level]]
        _, first, index = np.unique(key, return_index=True, return_inverse=True)
        path_of[level] = index + len(paths)
        for i in level[first].tolist():
            label = labels[tree.name[rows[i]]] or ""
            prefix = paths[path_of[parent[i]]] + "." if above[i] >= 0 else ""
            paths.append(prefix + label)
        done = np.zeros(len(rows), bool)
        done[level] = True
        level = np.flatnonzero((above >= 0) & done[np.minimum(parent, len(rows) - 1)])
    at = np.searchsorted(rows, np.maximum(near, 0))
    code: Ints = np.where(near >= 0, path_of[np.minimum(at, len(rows) - 1)], -1)
    return code, paths


def _from_forward(tree: CallTree, code: Ints) -> Ints:
    """Give backward ops the module of their forward op."""
    forward = np.flatnonzero((tree.sequence >= 0) & (tree.forward_thread <= 0) & (code >= 0))
    backward = np.flatnonzero((tree.sequence >= 0) & (tree.forward_thread > 0))
    if not len(forward) or not len(backward):
        return code
    forward = forward[np.argsort(-tree.rows[forward], kind="stable")]
    known, first = np.unique(tree.sequence[forward], return_index=True)
    at = np.minimum(np.searchsorted(known, tree.sequence[backward]), len(known) - 1)
    same = known[at] == tree.sequence[backward]
    given = np.full(len(tree), -1, np.int64)
    given[backward[same]] = code[forward[first[at[same]]]]
    near = tree.nearest(given >= 0)
    result: Ints = np.where((code < 0) & (near >= 0), given[np.maximum(near, 0)], code)
    return result
