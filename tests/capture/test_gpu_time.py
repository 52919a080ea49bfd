"""GPU times with a stand-in for torch.cuda: no machine of ours has a GPU, so the order of calls is what is tested."""

from __future__ import annotations

from perfkit.capture.gpu_time import MAX_PENDING, GpuTimes


class Cuda:
    """Events that pass when the test says so; any synchronising call would be an AttributeError."""

    def __init__(self):
        self.clock_ms, self.passed, self.made, self.capturing = 0.0, 0.0, 0, False
        cuda = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing
                cuda.made += 1

            def record(self):
                assert not cuda.capturing
                cuda.clock_ms += 1.5
                self.at = cuda.clock_ms

            def query(self):
                return self.at <= cuda.passed

            def elapsed_time(self, end):
                assert self.query()
                assert end.query()
                return end.at - self.at

        self.Event = Event

    def is_current_stream_capturing(self):
        return self.capturing


class Sink:
    def __init__(self):
        self.rows = []

    def record(self, table, row):
        self.rows.append((table, row))


def row(name):
    return (name, 0, 100, 5, None, 0, 1, None)


def test_a_row_waits_until_its_events_have_passed_and_then_has_its_gpu_time():
    cuda, sink = Cuda(), Sink()
    gpu = GpuTimes(sink, cuda)
    gpu.close(gpu.mark(), row("a"))
    gpu.poll()
    assert sink.rows == []
    cuda.passed = 100
    gpu.poll()
    assert sink.rows == [("spans", ("a", 0, 100, 5, 1_500_000, 0, 1, None))]


def test_events_are_used_again():
    cuda, sink = Cuda(), Sink()
    gpu = GpuTimes(sink, cuda)
    for _ in range(10):
        gpu.close(gpu.mark(), row("a"))
        cuda.passed = cuda.clock_ms
        gpu.poll()
    assert (len(sink.rows), cuda.made) == (10, 2)


def test_nothing_is_recorded_during_a_graph_capture():
    cuda, sink = Cuda(), Sink()
    gpu = GpuTimes(sink, cuda)
    mark = gpu.mark()
    cuda.capturing = True
    assert gpu.mark() is None
    gpu.close(mark, row("ends inside"))
    assert sink.rows == [("spans", row("ends inside"))]


def test_a_device_that_never_gets_there_costs_the_times_and_not_the_rows():
    cuda, sink = Cuda(), Sink()
    gpu = GpuTimes(sink, cuda)
    for n in range(MAX_PENDING + 5):
        mark = gpu.mark()
        if mark is None:
            sink.record("spans", row(str(n)))
        else:
            gpu.close(mark, row(str(n)))
    gpu.close_all()
    assert len(sink.rows) == MAX_PENDING + 5
    assert all(values[4] is None for _, values in sink.rows)


def test_a_number_on_the_gpu_is_copied_without_waiting():
    cuda, sink, got = Cuda(), Sink(), []

    class Tensor:
        def detach(self):
            return self

        def to(self, device, non_blocking):
            assert (device, non_blocking) == ("cpu", True)
            return 2.5

    gpu = GpuTimes(sink, cuda)
    gpu.read_later(Tensor(), got.append)
    gpu.poll()
    assert got == []
    cuda.passed = 100
    gpu.poll()
    assert got == [2.5]
