"""--perfetto in Perfetto's own format, read with the classes of Perfetto's own Python package."""

import collections
import json
import subprocess
import sys

import pytest

from conftest import PROGRAMS, PYTHON, ROOT, TONNAGE

perfetto_trace_pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
TrackEvent = perfetto_trace_pb2.TrackEvent
CLEARED = perfetto_trace_pb2.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED


class Trace:
    """Tracks, counters and slices, put together as Perfetto's trace processor does it. What that
    would drop is a failure here."""

    def __init__(self, path):
        trace = perfetto_trace_pb2.Trace()
        trace.ParseFromString(path.read_bytes())
        self.packets = len(trace.packet)
        self.tracks, self.counters, self.slices, self.instants = (
            {},
            collections.defaultdict(list),
            [],
            [],
        )
        interned = {
            field: {}
            for field in (
                "event_names",
                "event_categories",
                "debug_annotation_names",
                "debug_annotation_string_values",
            )
        }
        events = []
        for number, packet in enumerate(trace.packet):
            assert packet.trusted_packet_sequence_id == 1
            assert bool(packet.sequence_flags & CLEARED) == (number == 0)
            for field, known in interned.items():
                for entry in getattr(packet.interned_data, field):
                    assert entry.iid and entry.iid not in known
                    known[entry.iid] = (
                        entry.str.decode()
                        if field == "debug_annotation_string_values"
                        else entry.name
                    )
            if packet.HasField("track_descriptor"):
                track = packet.track_descriptor
                assert track.uuid and track.uuid not in self.tracks and track.name
                assert not track.parent_uuid or track.parent_uuid in self.tracks
                self.tracks[track.uuid] = track
            elif packet.HasField("track_event"):
                events.append((packet.timestamp, packet.track_event))
        open_slices = collections.defaultdict(list)
        for time, event in sorted(
            events, key=lambda entry: entry[0]
        ):  # stable, as the trace processor sorts
            track = self.tracks[event.track_uuid]
            assert (event.type == TrackEvent.TYPE_COUNTER) == track.HasField("counter")
            if event.type == TrackEvent.TYPE_COUNTER:
                self.counters[self.path(track.uuid)].append((time, event.counter_value))
            elif event.type == TrackEvent.TYPE_SLICE_END:
                begun, name, category, arguments = open_slices[track.uuid].pop()
                self.slices.append((self.path(track.uuid), name, category, begun, time, arguments))
            else:
                arguments = {}
                for annotation in event.debug_annotations:
                    kind = annotation.WhichOneof("value")
                    value = getattr(annotation, kind)
                    arguments[interned["debug_annotation_names"][annotation.name_iid]] = (
                        interned["debug_annotation_string_values"][value]
                        if kind == "string_value_iid"
                        else value
                    )
                name, category = (
                    interned["event_names"][event.name_iid],
                    interned["event_categories"][event.category_iids[0]],
                )
                if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                    open_slices[track.uuid].append((time, name, category, arguments))
                else:
                    self.instants.append((self.path(track.uuid), name, time, arguments))
        assert not any(open_slices.values())

    def path(self, uuid):
        track = self.tracks[uuid]
        return (self.path(track.parent_uuid) if track.parent_uuid else ()) + (track.name,)

    def of(self, category):
        return [entry for entry in self.slices if entry[2] == category]


@pytest.fixture
def trace_of(tonnage, tmp_path):
    def call(*arguments):
        path = tmp_path / "trace.pftrace"
        said = tonnage("explain", "--brief", *arguments, "--perfetto", path, "--force")
        assert said.code == 0, said.err
        return Trace(path)

    return call


def test_a_run(run, tonnage, trace_of, tmp_path):
    record, chrome = tmp_path / "run.tonnage", tmp_path / "run.json"
    result = run(
        PYTHON,
        PROGRAMS / "explain_cases.py",
        "healthy",
        tmp_path / "s.pickle",
        "python",
        gpu="RTX 3060",
        options=["--record", record],
    )
    assert result.code == 0, result.err
    trace = trace_of(record)
    counter = {path[-1]: values for path, values in trace.counters.items()}
    device = result.device
    for name in ("allocated", "reserved", "device"):
        assert max(value for _, value in counter[name]) == device[f"peak_{name}"]["bytes"]
    assert {path[-2] for path in trace.counters if path[-1] == "parameters"} == {
        "allocated by category"
    }
    # Counters hold until they change: at any time the categories add up to what is allocated.
    changes = sorted(
        (time, path[-1], value)
        for path, values in trace.counters.items()
        if path[-2] == "allocated by category" or path[-1] == "allocated"
        for time, value in values
    )
    state, at = {}, None
    for time, name, value in changes:
        if at is not None and time != at:
            assert (
                sum(size for key, size in state.items() if key != "allocated") == state["allocated"]
            ), at
        state[name], at = value, time
    assert len(trace.of("block")) == device["allocations"]
    assert {"step 1", "step 10"} <= {name for _, name, *_ in trace.of("step")} and {
        "forward",
        "backward",
        "optimizer",
    } <= {name.split()[0] for _, name, *_ in trace.of("phase")}
    block = max(trace.of("block"), key=lambda entry: entry[5]["block_bytes"])
    assert (
        block[5]["address"]
        and "explain_cases.py" in block[5]["stack"]
        and block[0][-1] == block[1]
        and block[0][-2] == "blocks"
    )
    # Chrome's format says the same.
    assert tonnage("explain", record, "--brief", "--perfetto", chrome).code == 0
    events = json.loads(chrome.read_text())["traceEvents"]
    assert len([event for event in events if event["ph"] == "b"]) == len(trace.of("block")) + len(
        trace.of("segment")
    )


def test_a_failure_and_facts(trace_of):
    trace = trace_of(ROOT / "tests/data/snapshots/oom_fragment.pickle.xz")
    (failure,) = [entry for entry in trace.instants if entry[0][-1] == "out of memory"]
    assert (
        failure[1].startswith("out of memory: ")
        and failure[3]["requested_bytes"] > 0
        and failure[3]["stack"]
    )
    (about,) = [entry for entry in trace.instants if entry[0] == ("about this trace",)]
    assert about[3]["made_by"] == "tonnage" and about[3]["source"].endswith(
        "oom_fragment.pickle.xz"
    )


def test_several_sources_are_apart(trace_of):
    trace = trace_of(
        *(
            ROOT / f"tests/data/snapshots/{name}.pickle.xz"
            for name in ("leak_loss", "streams_expandable")
        )
    )
    tops = [path for path in {trace.path(uuid) for uuid in trace.tracks} if len(path) == 1]
    assert (
        len(
            [
                uuid
                for uuid, track in trace.tracks.items()
                if not track.parent_uuid and track.name.startswith("GPU 0")
            ]
        )
        == 2
    ), tops


SNAPSHOT = """
import pickle, sys
frames = [{"name": "train", "filename": "/home/u/train.py", "line": 3}]
trace = []
def add(action, offset, size, time):
    trace.append({"action": action, "addr": (1 << 40) + offset, "size": size, "stream": 0,
                  "frames": frames, "time_us": time})
add("segment_alloc", 0, 1 << 30, 0)
for number in range(int(sys.argv[2])):
    offset = number % 1000 * 1024
    if number >= 1000:
        add("free_requested", offset, 1024, number)
        add("free_completed", offset, 1024, number)
    add("alloc", offset, 1024, number)
snapshot = {"segments": [], "device_traces": [trace], "allocator_settings": {}}
pickle.dump(snapshot, open(sys.argv[1], "wb"))
"""


def test_a_million_events_are_all_written_and_take_no_more_memory(tmp_path):
    snapshot, trace = tmp_path / "many.pickle", tmp_path / "many.pftrace"
    subprocess.run([sys.executable, "-c", SNAPSHOT, snapshot, "334000"], check=True, timeout=300)
    watch = (
        "import resource, subprocess, sys; "
        "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode; "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
    )

    def peak_kb(*more):
        done = subprocess.run(
            [sys.executable, "-c", watch, TONNAGE, "explain", "--brief", snapshot, *more],
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    without = peak_kb()
    assert peak_kb("--perfetto", trace) < without + 64 * 1024
    read = perfetto_trace_pb2.Trace()
    read.ParseFromString(trace.read_bytes())
    kinds = collections.Counter(packet.track_event.type for packet in read.packet)
    assert (
        kinds[TrackEvent.TYPE_SLICE_BEGIN] == kinds[TrackEvent.TYPE_SLICE_END] == 334000 + 1
    )  # and the segment
