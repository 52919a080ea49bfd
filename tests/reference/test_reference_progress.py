from __future__ import annotations

import io

from perfkit.analysis.classify import default_classifier
from perfkit.reference.joblog import JobLog, LogReader, read_log
from perfkit.reference.progress import Progress, render


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_not_known_yet_is_left_out():
    assert render(1, 4, 2.5, None, None) == "[██████··················] step 1/4  loss 2.500"
    assert render(4, 4, 2.5, 1234.0, 0.25).endswith("loss 2.500  1,234 tokens/s  MFU 25.0%")


def test_a_terminal_gets_one_line_that_is_rewritten_and_a_file_a_few_lines():
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        progress = Progress(80, stream)
        for step in range(80):
            progress.show(step, 1.0, 100, None, now=float(step))
        progress.close()
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().count("\r") == 80
    assert file.getvalue().count("\n") == 8
    assert "step 80/80  loss 1.000  100 tokens/s" in file.getvalue()


def test_the_time_of_a_restart_is_not_speed():
    file = io.StringIO()
    progress = Progress(2, file)
    progress.show(0, 1.0, 100, None, now=0.0)
    progress.say("restarted")
    progress.show(1, 1.0, 100, None, now=1000.0)
    assert "tokens/s" not in file.getvalue()


def test_the_log_is_read_as_it_grows_and_half_a_line_waits(tmp_path):
    reader = LogReader(tmp_path)
    assert reader.news() == []
    log = JobLog(tmp_path, 0, 1)
    log.write("step", step=3)
    assert [(row["kind"], row["step"], row["attempt"]) for row in reader.news()] == [("step", 3, 1)]
    path = tmp_path / "job-0.jsonl"
    with path.open("a") as file:
        file.write('{"time_ns": 9, "ki')
    assert reader.news() == []
    assert len(read_log(tmp_path)) == 1
    with path.open("a") as file:
        file.write('nd": "end"}\n')
    assert [row["kind"] for row in reader.news()] == ["end"]
    log.close()


def test_a_collection_that_capture_saw_is_blamed_on_garbage_collection():
    assert default_classifier().match("host", "range", "perfkit.gc") == "gc"
