"""Dumps of schedulers and exporters: what is read, and what is said of the rest."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfkit.errors import UnsupportedInput
from perfkit.goodput.importers import Assume, import_dumps, read_dump
from perfkit.goodput.importers.base import iso_ns
from perfkit.goodput.importers.hostlist import expand_hostlist
from perfkit.goodput.importers.sacct import gpus_in
from perfkit.goodput.importers.scontrol import node_state
from perfkit.goodput.question import ask

HEADER = "JobID|JobName|User|State|Submit|Start|End|AllocTRES|NodeList|ExitCode|SubmitLine"


def sacct(tmp_path, *lines: str, header: str = HEADER, raw: bytes | None = None):
    path = tmp_path / "sacct.txt"
    path.write_bytes(raw if raw is not None else "\n".join([header, *lines, ""]).encode())
    return read_dump(path, Assume(cluster="c"))


def job(number: object, start: str = "2024-01-01T23:00:00", end: str = "2024-01-02T01:00:00", **other: str) -> str:
    row = {
        "name": "train", "user": "ann", "state": "COMPLETED", "submit": "2024-01-01T22:00:00",
        "tres": "billing=8,cpu=8,gres/gpu=8,node=1", "nodes": "n1", "exit": "0:0", "line": "sbatch x.sh", **other,
    }  # fmt: skip
    return "|".join(
        [str(number), row["name"], row["user"], row["state"], row["submit"], start, end, row["tres"], row["nodes"],
         row["exit"], row["line"]]
    )  # fmt: skip


# ------------------------------------------------------------------ sacct


def test_a_job_over_midnight_is_one_job(tmp_path):
    row = sacct(tmp_path, job(1)).tables["jobs"].to_pylist()[0]
    assert (row["job"], row["gpus"], row["nodes"], row["cause"]) == ("1", 8, ["n1"], "completed")
    assert row["end_ns"] - row["start_ns"] == 2 * 3600 * 10**9
    assert row["start_ns"] == iso_ns("2024-01-01T23:00:00Z")


def test_times_are_of_the_zone_that_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join([HEADER, job(1, "2024-07-01T12:00:00", "2024-07-01T13:00:00")]))
    found = read_dump(tmp_path / "a.txt", Assume(timezone="Europe/Berlin"))
    assert found.tables["jobs"]["start_ns"][0].as_py() == iso_ns("2024-07-01T10:00:00Z")
    assert "times are Europe/Berlin" in found.assumed


def test_a_requeued_job_is_one_job_with_two_attempts(tmp_path):
    lines = [job(7, "2024-01-01T05:00:00", "2024-01-01T06:00:00", state="NODE_FAIL"), job(8)]
    lines.append(job(7, "2024-01-01T01:00:00", "2024-01-01T02:00:00", state="REQUEUED"))
    rows = {(r["job"], r["attempt"]): r["cause"] for r in sacct(tmp_path, *lines).tables["jobs"].to_pylist()}
    assert rows == {("7", 0): "requeue", ("7", 1): "node", ("8", 0): "completed"}


def test_tasks_of_an_array_know_their_array(tmp_path):
    rows = sacct(tmp_path, job("55_1"), job("55_2"), job("56")).tables["jobs"].to_pylist()
    assert [(r["job"], r["array"]) for r in rows] == [("55_1", "55"), ("55_2", "55"), ("56", None)]


def test_rows_of_steps_are_left_out_and_said(tmp_path):
    found = sacct(tmp_path, job(1), job("1.batch"), job("1.extern"), job("1.0"))
    assert len(found.tables["jobs"]) == 1
    assert any("3 rows of job steps" in text for text in found.assumed)


def test_a_job_that_only_its_steps_tell_of_lasts_as_long_as_they_do(tmp_path):
    found = sacct(
        tmp_path,
        job("9.0", "2024-01-01T01:00:00", "2024-01-01T02:00:00"),
        job("9.1", "2024-01-01T03:00:00", "2024-01-01T04:00:00"),
    )
    row = found.tables["jobs"].to_pylist()[0]
    assert (row["job"], row["end_ns"] - row["start_ns"]) == ("9", 3 * 3600 * 10**9)


@pytest.mark.parametrize("delimiter", ["|#", ";", "~", "||", "|"])
def test_any_delimiter_will_do(tmp_path, delimiter):
    lines = [text.replace("|", delimiter) for text in (HEADER, job(1), job(2))]
    assert len(sacct(tmp_path, raw="\n".join(lines).encode()).tables["jobs"]) == 2


def test_a_field_with_line_breaks_belongs_to_its_record(tmp_path):
    lines = [job(1), job(2, line="sbatch a \\\n  --b \\\n  --c"), job(3)]
    found = sacct(tmp_path, *lines)
    assert found.tables["jobs"]["job"].to_pylist() == ["1", "2", "3"]
    assert not found.counts


def test_a_record_with_too_many_fields_costs_one_line(tmp_path):
    found = sacct(tmp_path, job(1), job(2) + "|a|b|c", job(3))
    assert found.tables["jobs"]["job"].to_pylist() == ["1", "3"]
    assert found.bad == [(3, "wrong number of fields: 14 instead of 11")]
    assert dict(found.counts) == {"wrong number of fields": 1}


def test_bytes_that_are_no_utf8_are_shown_and_counted(tmp_path):
    raw = "\n".join([HEADER, job(1, name="tr\udc80in")]).encode("utf-8", "surrogateescape")
    found = sacct(tmp_path, raw=raw)
    assert found.tables["jobs"]["name"].to_pylist() == ["tr\ufffdin"]
    assert any("1 bytes are not UTF-8" in text for text in found.assumed)


def test_a_job_that_ends_before_it_starts_is_left_out(tmp_path):
    found = sacct(tmp_path, job(1, "2024-01-02T00:00:00", "2024-01-01T00:00:00"), job(2))
    assert found.tables["jobs"]["job"].to_pylist() == ["2"]
    assert dict(found.counts) == {"ends before it starts": 1}


def test_what_has_not_ended_has_no_end(tmp_path):
    row = sacct(tmp_path, job(1, end="Unknown", state="RUNNING")).tables["jobs"].to_pylist()[0]
    assert (row["end_ns"], row["cause"], row["state"]) == (None, None, "RUNNING")


def test_without_a_column_of_gpus_they_are_unknown(tmp_path):
    found = sacct(tmp_path, "1|COMPLETED|2024-01-01T00:00:00|2024-01-01T01:00:00", header="JobID|State|Start|End")
    assert found.tables["jobs"]["gpus"].to_pylist() == [None]
    assert any("GPUs each job held is unknown" in text for text in found.assumed)


def test_without_a_header_it_asks_for_the_columns(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("1|COMPLETED|2024-01-01T00:00:00|2024-01-01T01:00:00\n")
    with pytest.raises(UnsupportedInput, match="--fields"):
        read_dump(path, Assume())
    found = read_dump(path, Assume(fields=("JobID", "State", "Start", "End")))
    assert found.tables["jobs"]["state"].to_pylist() == ["COMPLETED"]


def test_a_job_in_two_dumps_is_one_job(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join([HEADER, job(1, end="Unknown", state="RUNNING")]))
    (tmp_path / "b.txt").write_text("\n".join([HEADER, job(1), job(2)]))
    dumps = import_dumps([tmp_path])
    assert dumps.duplicates == 1
    assert dumps.tables["jobs"]["state"].to_pylist() == ["COMPLETED", "COMPLETED"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.binary(max_size=300),
    st.sampled_from([b"", HEADER.encode() + b"\n", b"JobID|State|Start|End\n", b"{", b"# HELP a b\n"]),
)
def test_no_bytes_break_an_importer(tmp_path_factory, data, head):
    path = tmp_path_factory.mktemp("fuzz") / "dump"
    path.write_bytes(head + data)
    dumps = import_dumps([path])
    assert len(dumps.imported) + len(dumps.rejected) == 1


def test_gpus_of_a_tres():
    assert gpus_in("billing=28,cpu=96,gres/gpu=8,mem=0") == 8
    assert gpus_in("cpu=1,gres/gpu:a100=4,gres/gpu:h100=2") == 6
    assert gpus_in("gres/gpu:a100=4,gres/gpu=4") == 4
    assert gpus_in("gpu:ampere:8(S:0-1)") == 8
    assert gpus_in("cpu=1") == 0
    assert gpus_in("") is None


def test_host_lists_unfold():
    assert expand_hostlist("n[08-10,20],gpu7") == ["n08", "n09", "n10", "n20", "gpu7"]
    assert expand_hostlist("r[1-2]n[1-2]") == ["r1n1", "r1n2", "r2n1", "r2n2"]
    assert expand_hostlist("None assigned") is None
    assert expand_hostlist("n[1-99999999]") is None
    assert expand_hostlist("n[x]") is None


# ------------------------------------------------------------------ the controller


def test_states_of_nodes():
    cases = {
        "IDLE": "up", "mixed": "up", "IDLE+DRAIN": "drained", "drained$": "drained", "down*": "down", "idle*": "down",
        "ALLOCATED+RESERVED": "up", "FAIL": "unhealthy", "idle~": "up", "whatever": "unknown",
    }  # fmt: skip
    assert {text: node_state(text) for text in cases} == cases


def test_a_node_of_which_nobody_says_how_many_gpus_it_has_is_not_one_without(tmp_path):
    (tmp_path / "n.txt").write_text("NodeName=n1 State=IDLE CfgTRES=cpu=96,gres/gpu=8\nNodeName=n2 State=IDLE\n")
    mixed = ask([str(tmp_path / "n.txt")])["inventory"]
    assert (mixed["nodes"], mixed["gpus"], mixed["nodes_without_gpu_count"], mixed["up_share"]) == (2, 8, 1, 1.0)
    (tmp_path / "n.txt").write_text("NodeName=n1 State=IDLE\nNodeName=n2 State=DOWN\n")
    unknown = ask([str(tmp_path / "n.txt")])["inventory"]
    assert (unknown["nodes"], unknown["gpus"], unknown["up_share"]) == (2, None, None)


def test_nodes_and_jobs_of_scontrol(tmp_path):
    nodes = (
        "NodeName=n1 Arch=x86 CfgTRES=cpu=96,gres/gpu=8 State=IDLE+DRAIN Reason=bad fan [root@2024-01-01T00:00:00]\n"
    )
    (tmp_path / "n.txt").write_text(nodes + "NodeName=n2 State=\n")
    found = read_dump(tmp_path / "n.txt", Assume(as_of_ns=5))
    row = found.tables["nodes"].to_pylist()[0]
    assert (row["node"], row["gpus"], row["state"], row["start_ns"]) == ("n1", 8, "drained", 5)
    assert row["reason"].startswith("bad fan")
    assert found.bad == [(2, "a node without NodeName or State")]
    (tmp_path / "j.txt").write_text(
        "JobId=12 JobName=a b\n   UserId=ann(1000) JobState=RUNNING Restarts=1\n   StartTime=2024-01-01T00:00:00 "
        "EndTime=2024-01-08T00:00:00 NumNodes=2 NodeList=n[1-2] TRES=cpu=1,gres/gpu=16\n\nJobId=13 JobState=PENDING\n"
    )
    rows = read_dump(tmp_path / "j.txt", Assume()).tables["jobs"].to_pylist()
    assert (rows[0]["attempt"], rows[0]["gpus"], rows[0]["nodes"], rows[0]["end_ns"]) == (1, 16, ["n1", "n2"], None)
    assert rows[1]["start_ns"] is None


def test_sinfo_with_a_header_and_without(tmp_path):
    (tmp_path / "a").write_text("PARTITION|NODELIST|GRES|STATE\np*|n[1-2]|gpu:a100:4|idle\nq|n[1-2]|gpu:a100:4|idle\n")
    assert read_dump(tmp_path / "a", Assume()).tables["nodes"]["gpus"].to_pylist() == [4, 4]
    (tmp_path / "short").write_text("NODELIST|GRES|STATE\nn1|gpu:8|drained\n")
    assert read_dump(tmp_path / "short", Assume()).tables["nodes"]["state"].to_pylist() == ["drained"]
    (tmp_path / "b").write_text("p*|up|n1|gpu:a100:4|mixed\np*|up|n2|gpu:a100:4|down*\n")
    found = read_dump(tmp_path / "b", Assume())
    assert found.tables["nodes"]["state"].to_pylist() == ["up", "down"]
    assert found.assumed == ["no header; by their content column 3 is node, column 5 is state, column 4 is gres"]


# ------------------------------------------------------------------ job lists and Kubernetes


def test_a_list_in_the_manner_of_philly(tmp_path):
    text = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,2,132.0,vc1\nbad,1,1,1,x\n1,2\n"
    (tmp_path / "p.csv").write_text(text)
    found = read_dump(tmp_path / "p.csv", Assume())
    row = found.tables["jobs"].to_pylist()[0]
    assert (row["gpus"], row["end_ns"] - row["start_ns"], row["partition"], row["source"]) == (
        2,
        66 * 10**9,
        "vc1",
        "philly",
    )
    assert row["state"] is None
    assert dict(found.counts) == {"wrong number of fields": 1, "no start": 1}


def pod(name: str, *, index: str, phase: str, created: str, end: str | None = None, reason: str = "") -> dict:
    terminated = {"exitCode": 0 if phase == "Succeeded" else 1, "finishedAt": end, "reason": reason}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "ml", "creationTimestamp": created,
            "labels": {"training.kubeflow.org/job-name": "llama", "training.kubeflow.org/replica-index": index,
                       "kueue.x-k8s.io/queue-name": "gold"},
        },
        "spec": {"nodeName": f"node-{index}", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}]},
        "status": {"phase": phase, "startTime": created,
                   "containerStatuses": [{"state": {"terminated": terminated} if end else {"running": {}}}]},
    }  # fmt: skip


def test_pods_of_one_job_are_joined_and_a_second_set_is_a_second_attempt(tmp_path):
    items = [pod(f"a-{i}", index=str(i), phase="Failed", created="2024-01-01T00:00:00Z", end="2024-01-01T01:00:00Z",
                 reason="OOMKilled") for i in range(2)]  # fmt: skip
    items += [pod(f"b-{i}", index=str(i), phase="Running", created="2024-01-01T01:05:00Z") for i in range(2)]
    items += [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}, {"kind": "Pod"}]
    (tmp_path / "k.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    found = read_dump(tmp_path / "k.json", Assume())
    rows = found.tables["jobs"].to_pylist()
    shown = [(r["job"], r["attempt"], r["gpus"], r["num_nodes"], r["cause"], r["account"]) for r in rows]
    assert shown == [("ml/llama", 0, 16, 2, "out_of_memory", "gold"), ("ml/llama", 1, 16, 2, None, "gold")]
    assert len(found.bad) == 2


def test_a_job_object_with_its_workload_knows_when_it_was_admitted(tmp_path):
    item = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "t", "namespace": "ml", "creationTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {
            "parallelism": 4,
            "template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 8}}}]}},
        },
        "status": {
            "startTime": "2024-01-01T00:10:00Z",
            "completionTime": "2024-01-01T02:00:00Z",
            "conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": "2024-01-01T02:00:00Z"}],
        },
    }
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "job-t", "namespace": "ml", "ownerReferences": [{"name": "t"}]},
        "spec": {"queueName": "gold"},
        "status": {
            "conditions": [{"type": "Admitted", "status": "True", "lastTransitionTime": "2024-01-01T00:09:00Z"}]
        },
    }
    (tmp_path / "k.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [item, workload]}))
    row = read_dump(tmp_path / "k.json", Assume()).tables["jobs"].to_pylist()[0]
    assert (row["gpus"], row["cause"], row["account"]) == (32, "completed", "gold")
    assert row["start_ns"] - row["submit_ns"] == 9 * 60 * 10**9


# ------------------------------------------------------------------ counters


def test_prometheus_text_and_values_that_mean_none(tmp_path):
    (tmp_path / "m").write_text(
        "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
        'DCGM_FI_DEV_GPU_TEMP{gpu="3",UUID="GPU-1",Hostname="n1",pod="a\\"b"} 61 1700000000000\n'
        'DCGM_FI_DEV_FB_USED{gpu="3",Hostname="n1"} 9223372036854775794\n'
        'DCGM_FI_DEV_XID_ERRORS{gpu="3",Hostname="n1"} 2147483632\n'
        "something_total 2147483632\n"
        'nan_gauge{gpu="0"} NaN\n'
        'broken{gpu="0} 1\n'
    )
    found = read_dump(tmp_path / "m", Assume(as_of_ns=7))
    rows = found.tables["counters"].to_pylist()
    assert [(r["name"], r["device"], r["host"], r["value"], r["time_ns"]) for r in rows] == [
        ("DCGM_FI_DEV_GPU_TEMP", 3, "n1", 61.0, 1700000000 * 10**9),
        ("something_total", None, None, 2147483632.0, 7),
    ]
    assert rows[0]["series"] == 'pod=a"b'
    assert dict(found.counts) == {"value means none": 3, "labels cannot be read": 1}


def test_nvidia_smi_csv(tmp_path):
    (tmp_path / "s.csv").write_text(
        "timestamp, index, uuid, temperature.gpu, utilization.gpu [%], power.draw [W], ecc.errors.total\n"
        "2024/01/02 03:04:05.250, 0, GPU-1, 45, 97 %, 512.50 W, [N/A]\n"
        "garbage, 1, GPU-2, 45, 97 %, 512.50 W, 0\n"
    )
    found = read_dump(tmp_path / "s.csv", Assume())
    rows = {r["name"]: r["value"] for r in found.tables["counters"].to_pylist()}
    assert rows == {"temperature.gpu": 45.0, "utilization.gpu [%]": 97.0, "power.draw [W]": 512.5}
    assert found.tables["counters"]["time_ns"][0].as_py() == iso_ns("2024-01-02T03:04:05.250+00:00")
    assert dict(found.counts) == {"value means none": 1, "no time": 1}


def test_a_file_that_is_nothing_we_know_says_what_we_know(tmp_path):
    (tmp_path / "notes.md").write_text("# Chronicles\nOn Monday the run crashed.\n")
    (tmp_path / "empty").write_text("")
    dumps = import_dumps([tmp_path, tmp_path / "absent"])
    reasons = [r["reason"] for r in dumps.rejected]
    assert [r.split(";")[0].split(" (")[0] for r in reasons] == [
        "an empty file",
        "not a dump that perfkit knows",
        "No such file or directory",
    ]


# ------------------------------------------------------------------ what hostile bytes once broke


def one(tmp_path, text: str | bytes):
    path = tmp_path / "dump"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return import_dumps([path])


def test_a_job_name_with_the_delimiter_costs_its_row_only(tmp_path):
    header = "JobID|JobName|State|Start|End|AllocTRES\n"
    good = "1|a|COMPLETED|2025-01-01T00:00:00|2025-01-01T01:00:00|gres/gpu=8\n"
    bad = "2|a|b|COMPLETED|2025-01-01T00:00:00|2025-01-01T01:00:00|gres/gpu=8\n"
    dumps = one(tmp_path, header + good + bad + good.replace("1|a", "3|a"))
    assert dumps.tables["jobs"]["job"].to_pylist() == ["1", "3"]
    assert dict(dumps.imported[0].counts) == {"wrong number of fields": 1}


def test_lines_that_end_with_a_delimiter_are_read_whether_the_header_does_or_not(tmp_path):
    row = "1|COMPLETED|2025-01-01T00:00:00|2025-01-01T01:00:00|\n"
    for header in ("JobID|State|Start|End|\n", "JobID|State|Start|End\n"):
        dumps = one(tmp_path, header + row + row.replace("1|C", "2|C"))
        assert dumps.tables["jobs"]["job"].to_pylist() == ["1", "2"]


@pytest.mark.parametrize(
    "text",
    [
        b"Configuration ",
        b"JobId=1 JobState=RUNNING Restarts=x StartTime=2025-01-01T00:00:00",
        b"NodeName=n1 State=IDLE Gres=gpu:a100:99999999999999999999",
        b"NODELIST|GRES\nn1|gpu:8\n",
        b"timestamp,duration,num_gpus",
        b"timestamp,duration,num_gpus\n2017-10-03 00:00:00,1e308,4\n",
        b"timestamp,duration,num_gpus\n2017-10-03 00:00:00,10,1e12\n",
        b"index, utilization.gpu [%], clocks\r.sm [MHz]\n0, 99 %, 3",
        b'# HELP a b\na{gpu="0"} 1 170000000999999999999999999990000\n',
        b'# HELP a b\na{gpu="99999999999999999999"} 1 17\n',
    ],
)
def test_bytes_that_broke_an_importer_once_are_a_file_or_a_reason_now(tmp_path, text):
    dumps = one(tmp_path, text)
    assert len(dumps.imported) + len(dumps.rejected) == 1


def test_a_duration_or_gpu_count_that_is_none_costs_its_row_and_is_not_taken_for_running(tmp_path):
    rows = ["2017-10-03 00:00:00,60,4", "2017-10-03 00:00:00,soon,4", "2017-10-03 00:00:00,60,0.5"]
    dumps = one(tmp_path, "timestamp,duration,num_gpus\n" + "\n".join(rows) + "\n")
    assert len(dumps.tables["jobs"]) == 1
    assert sum(dumps.imported[0].counts.values()) == 2


def test_one_step_and_one_job_are_said_in_the_singular(tmp_path):
    assert any(text.startswith("1 row of job steps") for text in sacct(tmp_path, job(1), job("1.0")).assumed)
    assert any(text.startswith("1 job is listed by its") for text in sacct(tmp_path, job("9.0")).assumed)


@pytest.mark.parametrize("data", [b"\x1f\x8b\x08\0", b'{"traceEvents": []}'])
def test_a_trace_is_for_analyze(tmp_path, data):
    (tmp_path / "t").write_bytes(data)
    [rejected] = import_dumps([tmp_path]).rejected
    assert rejected["reason"].endswith("; `perfkit analyze` reads traces")
