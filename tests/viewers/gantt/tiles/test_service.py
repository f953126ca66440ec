"""What the server answers, against the chart's own columns."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from dptrace.analysis.kernels.names import short_names
from dptrace.analysis.per_gpu.split import Part
from dptrace.core.intervals import covered, union
from dptrace.viewers.gantt.chart import OVERLAPPED, Lane, Role, chart
from dptrace.viewers.gantt.page.data import collective_entries
from dptrace.viewers.gantt.tiles.answers import TILE
from dptrace.viewers.gantt.tiles.service import TileService
from dptrace.viewers.gantt.tiles.store import build
from tests.support.synthetic import training_run
from tests.support.totals import totals

RUN = training_run(6_000, ranks=2)
CHART = chart(RUN)
SERVICE = TileService(build(CHART, collective_entries(CHART)))
END = CHART.end_ns
SHORTS = short_names(CHART.names)


def ask(name: str, **request: object) -> Any:
    return json.loads(SERVICE.answer(name, json.dumps(request).encode())[1])


class Message:
    """Reads an answer of bytes."""

    def __init__(self, name: str, **request: object) -> None:
        data = SERVICE.answer(name, json.dumps(request).encode())[1]
        length = int.from_bytes(data[:4], "little")
        self.head, self._rest = json.loads(data[4 : 4 + length]), data[4 + length :]

    def take(self, kind: str, count: int) -> list[Any]:
        size = np.dtype(kind).itemsize * count
        planes, self._rest = np.frombuffer(self._rest[:size], np.uint8).reshape(-1, count), self._rest[size:]
        return list(np.ascontiguousarray(planes.T).view(kind).ravel().tolist())

    def rows(self, head: dict[str, Any]) -> dict[str, list[Any]]:
        count, time = head["count"], "<f8" if head["wide"] else "<u4"
        start, duration = np.array(self.take(time, count), np.int64), self.take(time, count)
        category, name, stream = self.take("u1", count), self.take("<u4", count), self.take("<u2", count)
        position = np.array(self.take("<u4", count), np.int64)
        found = {
            "start": (head["base"] + np.cumsum(start) - start[:1].sum()).tolist(),
            "duration": duration,
            "category": category,
            "name": name,
            "stream": stream,
            "position": (head["first"] + np.cumsum(position) - position[:1].sum()).tolist(),
        }
        return found | {"extra": [self.take("<f8", count) for _ in range(head["extra"])]}


def number_of(role: Role, track: int = 0) -> int:
    return next(i for i, lane in enumerate(CHART.lanes) if lane.role is role and lane.track == track)


def cover(lane: Lane, category: int, edges: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    mine = lane.category == category
    return covered(union(lane.start_ns[mine], (lane.start_ns + lane.duration_ns)[mine]), edges)


def test_a_view_has_the_shares_of_its_columns_and_its_intervals() -> None:
    """Columns to half a 255th and the drift of one more; intervals of the view and half of it on either side."""
    for low, high in ((-0.1, 1.1), (0.4, 0.42)):
        lanes = [number_of(Role.PHASES), number_of(Role.COMPUTE, 1)]
        edges = low * END + np.arange(101) * ((high - low) * END / 100)
        found = Message("view", start=edges[0], end=edges[-1], width=100, columns=lanes, raw=lanes, shortest=1)
        for head in found.head["columns"]:
            for category in head["categories"]:
                shares = np.diff(cover(CHART.lanes[head["lane"]], category, edges)) / (edges[1] - edges[0])
                assert np.abs(np.array(found.take("u1", 100)) / 255 - shares).max() < 1.01 / 255, (low, high)
        for head in found.head["rows"]:
            lane, margin = CHART.lanes[head["lane"]], (edges[-1] - edges[0]) / 2
            ends = lane.start_ns + lane.duration_ns
            touches = np.flatnonzero((lane.start_ns < edges[-1] + margin) & (ends > edges[0] - margin))
            rows = found.rows(head)
            assert lane.start_ns[touches].tolist() == rows["start"], (low, high)
            assert lane.duration_ns[touches].tolist() == rows["duration"], (low, high)
            assert touches.tolist() == rows["position"], (low, high)
            inside = (lane.start_ns <= edges[-1]) & (ends >= edges[0])
            assert int(inside.sum()) == head["touching"], (low, high)
            if lane.role is Role.COMPUTE:
                assert {str(name): CHART.names[name] for name in rows["name"]} == found.head["names"], (low, high)


def test_tiles_are_shares_of_columns_of_a_power_of_two() -> None:
    """One after the other in the order asked for, with the categories that they hold."""
    lane, level = number_of(Role.COMPUTE), 12
    data = SERVICE.answer("tiles", json.dumps({"level": level, "runs": [[lane, 1, 2]]}).encode())[1]
    for tile in (1, 2):
        categories, data = list(data[1 : 1 + data[0]]), data[1 + data[0] :]
        edges = np.arange(tile * TILE, (tile + 1) * TILE + 1) << level
        for category in categories:
            shares = np.diff(cover(CHART.lanes[lane], category, edges)) / (1 << level)
            assert np.abs(np.frombuffer(data[:TILE], np.uint8) / 255 - shares).max() < 1.01 / 255
            data = data[TILE:]
    assert b"" == data


def test_sums_are_those_of_the_split() -> None:
    """Over all ranks; with the number of intervals."""
    sums, parts = ask("sums", start=0, end=END), [*map(totals, RUN.splits)]
    for part, figure in ((Part.FORWARD, "forward_ns"), (Part.BACKWARD, "backward_ns"), (Part.OTHER, "other_ns")):
        assert sum(total[figure] for total in parts) == sums["parts"][str(int(part))]
    assert sum(total["overlapped_comm_ns"] for total in parts) == sums["overlapped"]
    recorded = [lane for lane in CHART.lanes if lane.role in (Role.COMPUTE, Role.COLLECTIVES, Role.MEMORY)]
    inside = [(lane.start_ns <= END) & (lane.start_ns + lane.duration_ns >= 0) for lane in recorded]
    assert sum(int(one.sum()) for one in inside) == sums["count"]
    steps = [split.figures["exposed_comm_ns"].tolist() for split in RUN.splits]
    assert steps == ask("exposed")


def test_kernels_of_a_range_are_counted_by_name() -> None:
    """Number and time inside the range and the steps, as the chart's columns have them."""
    for low, high in ((-0.1, 1.1), (0.3, 0.9), (0.41, 0.4102)):
        begin, end = round(low * END), round(high * END)
        expected = {name: [0, 0, 0] for name in range(len(CHART.names))}
        for lane in CHART.lanes:
            if lane.role in (Role.COMPUTE, Role.MEMORY):
                bounds = CHART.tracks[lane.track].bounds_ns
                start, stop = lane.start_ns, lane.start_ns + lane.duration_ns
                first, last = max(begin, bounds[0]), min(end, bounds[-1])
                for i in np.flatnonzero((start < last) & (stop > first)):
                    expected[int(lane.name[i])][0] += 1
                    expected[int(lane.name[i])][1] += int(min(stop[i], last) - max(start[i], first))
                    expected[int(lane.name[i])][2] = max(expected[int(lane.name[i])][2], int(lane.duration_ns[i]))
        found = ask("kernels", start=begin, end=end)

        assert {name: sums for name, sums in expected.items() if sums[0]} == {
            row[0]: row[1:] for row in found["rows"]
        }, (low, high)
        assert [sum(sums) for sums in zip(*expected.values(), strict=True)][:2] == found["total"], (low, high)
        assert 0 == found["others"], (low, high)


def test_a_list_has_the_first_intervals_in_its_order() -> None:
    """Of those in the range and the steps that are wanted; all count, each in its class of durations."""
    for by in ("name", "rank", "start", "duration"):
        for wanted in ({}, {"kernel": 1}, {"text": "ALL_reduce"}):
            begin, end = END // 3, END // 2
            keys, lengths = [], list[int]()
            for number, lane in enumerate(CHART.lanes):
                if lane.role not in (Role.COMPUTE, Role.COLLECTIVES, Role.MEMORY):
                    continue
                collective, bounds = lane.role is Role.COLLECTIVES, CHART.tracks[lane.track].bounds_ns
                inside = (lane.start_ns < min(end, bounds[-1])) & (
                    lane.start_ns + lane.duration_ns > max(begin, bounds[0])
                )
                for i in np.flatnonzero(inside).tolist():
                    name = int(lane.name[i])
                    if wanted and (collective != ("text" in wanted) or (not collective and name != 1)):
                        continue
                    full = collective_entries(CHART)[name]["kind"] if collective else CHART.names[name]
                    title = full if collective else SHORTS.get(full, full)
                    key = {
                        "name": title,
                        "rank": lane.track,
                        "start": int(lane.start_ns[i]),
                        "duration": int(lane.duration_ns[i]),
                    }
                    keys.append(((number, i), key[by]))
                    lengths.append(int(lane.duration_ns[i]))
            found = ask("calls", start=begin, end=end, by=by, down=True, **wanted)

            assert [min(lengths), max(lengths)] == found["extremes"], (by, wanted)
            assert len(keys) == found["total"] == sum(count for _, count in found["classes"]) > 0, (by, wanted)
            value = dict(keys)
            assert sorted(value.values(), reverse=True)[:200] == [
                value[lane, place] for lane, place in found["places"]
            ], (by, wanted)


def test_busy_is_what_a_category_covers_in_a_range() -> None:
    """To the ns."""
    lane = CHART.lanes[number_of(Role.EXPOSURE)]
    times = np.array([END // 3, END // 2])
    found = ask("busy", lane=number_of(Role.EXPOSURE), start=int(times[0]), end=int(times[1]))

    assert np.diff(cover(lane, OVERLAPPED, times)).tolist() == [found[str(OVERLAPPED)]]


def test_one_interval_is_found_by_its_place_and_by_its_time() -> None:
    """With the further columns of collectives, and its collective."""
    number = number_of(Role.COLLECTIVES, 1)
    lane = CHART.lanes[number]
    found = Message("rows", places=[[number, 5], [number, 2]])
    rows = found.rows(found.head["rows"][0])
    assert [2, 5] == rows["position"]
    assert lane.exposed_ns[[2, 5]].tolist() == rows["extra"][0]
    assert {str(lane.name[2]), str(lane.name[5])} == set(found.head["collectives"])
    place = Message("at", lane=number, time=int(lane.start_ns[7]) + 1, slack=10)
    assert [7] == place.rows(place.head["rows"][0])["position"]
    assert place.head["under"] >= 1


def hits(text: str, role: Role = Role.COMPUTE) -> list[tuple[int, int, int]]:
    """Return start, lane and position of the kernels with a text in their names."""
    lanes = [(i, lane) for i, lane in enumerate(CHART.lanes) if lane.role is role]
    wanted = np.array([text in name for name in CHART.names])
    return sorted(
        (int(lane.start_ns[place]), number, int(place))
        for number, lane in lanes
        for place in np.flatnonzero(wanted[lane.name])
    )


def test_hits_are_counted_and_summed_in_a_range() -> None:
    """Those that touch it, and their time inside it; and the columns that one touches."""
    for low, high in ((-0.1, 1.1), (0.3, 0.5), (0.41, 0.4102)):
        start, end, lane = round(low * END), round(high * END), number_of(Role.COMPUTE)
        found = ask("find", text=" GEMM ", start=start, end=end, width=60, lanes=[lane])
        mine = [(s, int(CHART.lanes[n].duration_ns[p]), CHART.lanes[n].track) for s, n, p in hits("gemm")]
        assert len(mine) == found["count"], (low, high)
        for track, count, time in found["tracks"]:
            inside = [
                (max(s, start), min(s + d, end)) for s, d, t in mine if t == track and s <= end and s + d >= start
            ]
            assert (len(inside), sum(b - a for a, b in inside)) == (count, time), (low, high)
        touched = np.zeros(60, bool)
        size = (end - start) / 60
        for s, d, track in mine:
            if track == 0 and s + d > start and s < end:
                touched[max(0, int((s - start) // size)) : int(-(-(s + d - start) // size))] = True
        columns = np.zeros(60, bool)
        for first, last in found["columns"].get(str(lane), []):
            columns[first:last] = True
        assert touched.tolist() == columns.tolist(), (low, high)


def test_hits_follow_each_other_and_begin_again() -> None:
    """In both directions, with their number."""
    expected, before = hits("gemm"), np.cumsum([0, *(len(lane) for lane in CHART.lanes)])
    start, lane, place = expected[100]
    number = int(before[lane]) + place
    forward = ask("next", text="gemm", start=start, number=number, direction=1)
    back = ask("next", text="gemm", start=start, number=number, direction=-1)
    last = expected[-1]
    around = ask("next", text="gemm", start=last[0], number=int(before[last[1]]) + last[2], direction=1)

    assert {"hit": list(expected[101][1:]), "ordinal": 102} == forward
    assert {"hit": list(expected[99][1:]), "ordinal": 100} == back
    assert {"hit": list(expected[0][1:]), "ordinal": 1} == around
    assert {"hit": None} == ask("next", text="nothing like it", start=0, number=-1, direction=1)


def test_streams_are_the_recorded_intervals_of_a_track() -> None:
    """Each knows where it was recorded, and they are made once."""
    made = ask("streams", track=1)
    recorded = [lane for lane in CHART.lanes if lane.track == 1 and len(lane.stream) and lane.stream.any()]
    ids, counts = np.unique(np.concatenate([lane.stream for lane in recorded]), return_counts=True)
    assert counts.tolist() == [one["count"] for one in made]
    assert len(ids) == len(made)
    assert made == ask("streams", track=1)
    found = Message("view", start=0, end=END, width=9, columns=[], raw=[made[1]["lane"]], shortest=0)
    rows = found.rows(found.head["rows"][0])
    for start, lane, place in zip(rows["start"], *rows["extra"][3:], strict=True):
        assert CHART.lanes[int(lane)].start_ns[int(place)] == start
