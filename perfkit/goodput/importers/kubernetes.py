"""`kubectl get jobs,pods,workloads.kueue.x-k8s.io -A -o json`: batch Jobs and the pods of training jobs.

A Job object is a job. Pods without a Job object in the dump are joined by what owns them (the Job's label, Kubeflow's,
JobSet's, else the owner's name); a completion index or pod that was made again is another attempt. The queue is
Kueue's label; a Kueue Workload tells when its job was admitted: until then it waited.
"""

from __future__ import annotations

import json
import re
from typing import Any

from perfkit.errors import CorruptInput
from perfkit.goodput.importers.base import Assume, Imported, iso_ns
from perfkit.schema import JOBS, table_from_rows

OWNER_LABELS = (
    "jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name", "trainer.kubeflow.org/trainjob-name",
    "batch.kubernetes.io/job-name", "job-name", "ray.io/cluster",
)  # fmt: skip
INDEX_LABELS = (
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
    "jobset.sigs.k8s.io/job-index",
)
GPU = re.compile(r"^(nvidia\.com|amd\.com|habana\.ai|gpu\.intel\.com)/(gpu|gaudi|mig-.*|i915|xe)$")
MAX_BYTES = 1 << 30


def looks_like_kubernetes(head: bytes) -> bool:
    """Whether it is JSON of a Kubernetes list, job or pod."""
    return head.lstrip()[:1] == b"{" and b'"apiVersion"' in head and b'"kind"' in head


def read_kubernetes(data: bytes, path: str, assume: Assume) -> Imported:
    """Return the jobs of a dump."""
    found = Imported(path, "kubernetes")
    try:
        document = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise CorruptInput(f"no JSON: {error}", path=path, next_step="dump it again with `kubectl … -o json`") from None
    items = document.get("items") if isinstance(document, dict) and "items" in document else [document]
    if not isinstance(items, list):
        raise CorruptInput("`items` is no list", path=path, next_step="dump it again with `kubectl … -o json`")
    jobs: list[dict[str, Any]] = []
    pods: list[dict[str, Any]] = []
    admitted: dict[tuple[str, str], dict[str, Any]] = {}
    for i, item in enumerate(items):
        try:
            kind = str(item["kind"])
            if kind == "Pod":
                pods.append(_pod(item))
            elif kind in ("Job", "PyTorchJob", "TrainJob", "JobSet", "MPIJob", "RayJob"):
                jobs.append(_job(item, assume))
            elif kind == "Workload":
                admitted.update(_workload(item))
            else:
                found.reject(i + 1, f"kind {kind} is neither a job nor a pod")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            found.reject(i + 1, f"a record that lacks what it should have: {type(error).__name__} {error}")
    known = {(job["partition"], job["job"].partition("/")[2]) for job in jobs}
    jobs += _jobs_of_pods([pod for pod in pods if (pod["namespace"], pod["owner"]) not in known], assume)
    _fill_from_pods(jobs, pods)
    for job in jobs:
        word = admitted.get((job["partition"], job["job"].partition("/")[2]))
        if word:
            job["submit_ns"] = job["submit_ns"] or word["submit_ns"]
            job["start_ns"] = word["admitted_ns"] or job["start_ns"]
            job["account"] = job["account"] or word["queue"]
    found.tables["jobs"] = table_from_rows(JOBS, sorted(jobs, key=lambda j: (j["job"], j["attempt"])))
    return found


def gpus_of(spec: dict[str, Any]) -> int:
    """GPUs that the containers of a pod ask for."""
    total = 0
    for container in spec.get("containers", []):
        resources = container.get("resources") or {}
        asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
        total += sum(int(amount) for name, amount in asked.items() if GPU.match(name))
    return total


def _meta(item: dict[str, Any]) -> tuple[str, str, dict[str, str], int | None]:
    meta = item["metadata"]
    return (
        meta.get("namespace", "default"),
        meta["name"],
        meta.get("labels") or {},
        iso_ns(meta.get("creationTimestamp")),
    )


def _job(item: dict[str, Any], assume: Assume) -> dict[str, Any]:
    namespace, name, labels, created = _meta(item)
    status, spec = item.get("status") or {}, item.get("spec") or {}
    conditions = {c["type"]: c for c in status.get("conditions") or [] if c.get("status") == "True"}
    template = (spec.get("template") or {}).get("spec") or {}
    each = gpus_of(template)
    count = int(spec.get("parallelism") or 1)
    ended = conditions.get("Failed") or conditions.get("Complete") or conditions.get("Succeeded") or {}
    reason = str(ended.get("reason", ""))
    cause = None
    if ended:
        done = ended.get("type") in ("Complete", "Succeeded")
        cause = "completed" if done else "deadline" if reason == "DeadlineExceeded" else "application"
    end = iso_ns(status.get("completionTime")) or iso_ns(ended.get("lastTransitionTime"))
    return {
        "cluster": assume.cluster,
        "job": f"{namespace}/{name}",
        "attempt": 0,
        "user": labels.get("user"),
        "name": name,
        "submit_ns": created,
        "eligible_ns": created,
        "start_ns": iso_ns(status.get("startTime")),
        "end_ns": end if ended else None,
        "gpus": each * count if template else None,
        "nodes": None,
        "num_nodes": None,
        "state": f"{ended['type']}{': ' + reason if reason else ''}" if ended else "Active",
        "exit_code": None,
        "cause": cause,
        "account": labels.get("kueue.x-k8s.io/queue-name"),
        "partition": namespace,
        "source": "kubernetes",
    }


def _pod(item: dict[str, Any]) -> dict[str, Any]:
    namespace, name, labels, created = _meta(item)
    status, spec = item.get("status") or {}, item.get("spec") or {}
    owner = next((labels[key] for key in OWNER_LABELS if key in labels), None)
    owners = item["metadata"].get("ownerReferences") or []
    owner = owner or (str(owners[0]["name"]) if owners else name)
    ended = [
        c["state"]["terminated"]
        for c in status.get("containerStatuses") or []
        if (c.get("state") or {}).get("terminated")
    ]
    scheduled = [c.get("lastTransitionTime") for c in status.get("conditions") or [] if c.get("type") == "PodScheduled"]
    reason = str(status.get("reason") or next((t.get("reason") for t in ended if t.get("exitCode")), "") or "")
    return {
        "namespace": namespace,
        "name": name,
        "owner": owner,
        "queue": labels.get("kueue.x-k8s.io/queue-name"),
        "index": next((labels[key] for key in INDEX_LABELS if key in labels), name),
        "user": labels.get("user"),
        "created": created,
        "start": iso_ns(scheduled[0]) if scheduled else iso_ns(status.get("startTime")),
        "end": max((t for t in (iso_ns(t.get("finishedAt")) for t in ended) if t), default=None),
        "phase": str(status.get("phase", "Unknown")),
        "reason": reason,
        "gpus": gpus_of(spec),
        "node": spec.get("nodeName"),
        "exit_code": max((int(t.get("exitCode", 0)) for t in ended), default=None),
    }


def _workload(item: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    namespace, _, _, created = _meta(item)
    owners = item["metadata"].get("ownerReferences") or []
    conditions = (item.get("status") or {}).get("conditions") or []
    admitted = [
        iso_ns(c.get("lastTransitionTime"))
        for c in conditions
        if c.get("type") == "Admitted" and c.get("status") == "True"
    ]
    queue = (item.get("spec") or {}).get("queueName")
    word = {"submit_ns": created, "admitted_ns": admitted[0] if admitted else None, "queue": queue}
    return {(namespace, str(owner["name"])): word for owner in owners}


def _jobs_of_pods(pods: list[dict[str, Any]], assume: Assume) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    seen: dict[tuple[str, str, str], int] = {}
    for pod in sorted(pods, key=lambda p: (p["created"] or 0, p["name"])):
        place = (pod["namespace"], pod["owner"], pod["index"])
        attempt = seen.get(place, -1) + 1
        seen[place] = attempt
        groups.setdefault((pod["namespace"], pod["owner"], attempt), []).append(pod)
    return [_job_of_pods(key, members, assume) for key, members in groups.items()]


def _job_of_pods(key: tuple[str, str, int], pods: list[dict[str, Any]], assume: Assume) -> dict[str, Any]:
    namespace, owner, attempt = key
    starts = [p["start"] for p in pods if p["start"]]
    alive = any(p["phase"] in ("Running", "Pending") for p in pods)
    failed = next((p for p in pods if p["phase"] == "Failed"), None)
    state = "Active" if alive else failed["reason"] or "Failed" if failed else "Succeeded"
    cause = None if alive else _pod_cause(failed) if failed else "completed"
    return {
        "cluster": assume.cluster,
        "job": f"{namespace}/{owner}",
        "attempt": attempt,
        "user": pods[0]["user"],
        "name": owner,
        "submit_ns": min((p["created"] for p in pods if p["created"]), default=None),
        "eligible_ns": None,
        "start_ns": min(starts, default=None),
        "end_ns": None if alive else max((p["end"] for p in pods if p["end"]), default=None),
        "gpus": sum(p["gpus"] for p in pods),
        "nodes": sorted({p["node"] for p in pods if p["node"]}) or None,
        "num_nodes": len({p["node"] for p in pods if p["node"]}) or None,
        "state": state,
        "cause": cause,
        "exit_code": max((p["exit_code"] for p in pods if p["exit_code"] is not None), default=None),
        "account": pods[0]["queue"],
        "partition": namespace,
        "source": "kubernetes",
    }


def _pod_cause(pod: dict[str, Any]) -> str:
    reasons = {
        "Evicted": "preemption",
        "Preempted": "preemption",
        "OOMKilled": "out_of_memory",
        "NodeLost": "node",
        "NodeShutdown": "node",
        "Terminated": "node",
        "DeadlineExceeded": "deadline",
    }
    return reasons.get(pod["reason"], "application")


def _fill_from_pods(jobs: list[dict[str, Any]], pods: list[dict[str, Any]]) -> None:
    """Give Job objects the nodes of their pods."""
    for job in jobs:
        if job["nodes"] is None:
            mine = {p["node"] for p in pods if f"{p['namespace']}/{p['owner']}" == job["job"] and p["node"]}
            if mine:
                job["nodes"], job["num_nodes"] = sorted(mine), len(mine)
