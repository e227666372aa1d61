"""The rows of `metrics.csv`: the newest one, some columns, some of them."""

import itertools

import pytest

from distrl.launch.runs import rows

HEADER = "seconds,env_steps,mean_return"


def write(path, *lines, end="\r\n"):
    path.write_text("".join(f"{line}\r\n" for line in (HEADER, *lines[:-1])) + lines[-1] + end)
    return path


def numbered(count):
    return [f"{n}.5,{n * 10},{n if n % 2 else ''}" for n in range(count)]


def test_the_newest_row_is_read_from_the_end(tmp_path, monkeypatch):
    path = write(tmp_path / "metrics.csv", *numbered(5_000))
    monkeypatch.setattr(rows, "_TAIL", 64)
    parse, read = rows._rows, []
    monkeypatch.setattr(rows, "_rows", lambda lines: parse(read.append(x) or x for x in lines))
    assert rows.last_row(path) == {"seconds": 4999.5, "env_steps": 49990, "mean_return": 4999}
    assert len(read) < 10


@pytest.mark.parametrize("tail", [1, 7, 30, 1 << 16])
def test_it_is_the_last_of_all_rows_wherever_a_block_begins(tmp_path, monkeypatch, tail):
    monkeypatch.setattr(rows, "_TAIL", tail)
    for count in range(1, 12):
        for torn in ("", "77.5,7", "77.5,770,"):  # the second row that is being written is whole
            path = write(tmp_path / "metrics.csv", *numbered(count), torn, end="")
            every = list(rows.read_rows(path))
            assert str(rows.last_row(path)) == str(every[-1])
            assert len(every) == count + (torn == "77.5,770,")


def test_files_without_rows(tmp_path):
    path = tmp_path / "metrics.csv"
    for text in (None, "", HEADER, f"{HEADER}\r\n", f"{HEADER}\r\n1.0,2"):
        if text is not None:
            path.write_text(text)
        assert rows.last_row(path) is None
        assert list(rows.read_rows(path)) == list(rows.texts(path, ["seconds"])) == []
        assert rows.thinned_rows(path, 4) == []


def test_zeros_at_the_end_do_not_count(tmp_path):
    """A file system may leave them after a crash."""
    path = write(tmp_path / "metrics.csv", *numbered(3), "\0" * 40, end="")
    assert [row["env_steps"] for row in rows.read_rows(path)] == [0, 10, 20]
    assert rows.last_row(path)["env_steps"] == rows.thinned_rows(path, 4)[-1]["env_steps"] == 20
    assert len(list(rows.texts(path, ["seconds"]))) == 3


def test_columns_are_read_without_the_others(tmp_path):
    path = write(tmp_path / "metrics.csv", *numbered(3), "9.5,9", end="")
    got = list(rows.texts(path, ("mean_return", "other", "env_steps")))
    assert got == [("", "", "0"), ("1", "", "10"), ("", "", "20")]


def test_a_curve_begins_where_the_run_last_started_from_the_beginning(tmp_path):
    lines = ["1,500,1", "2,900,2", "1,700,3", "2,1100,4", "1,600,", "2,600,6", "3,1000,7"]
    path = write(tmp_path / "metrics.csv", *lines)
    assert list(rows.texts(path, ["env_steps"])) == [("600",), ("600",), ("1000",)]
    assert [row["env_steps"] for row in rows.thinned_rows(path, 8)] == [600, 600, 1000]
    assert len(list(rows.read_rows(path))) == len(lines)  # all that is known
    # An old file, whose `env_steps` are those trained on.
    path.write_text("env_steps,env_steps_acted\n6,2\n5,3\n1,1\n0,2\n")
    assert list(rows.texts(path, ["env_steps"])) == [("1",), ("0",)]


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 10, 16, 17, 18, 500, 513])
def test_rows_are_thinned_at_equal_distances_with_both_ends(tmp_path, count):
    path = write(tmp_path / "metrics.csv", *numbered(count))
    every = list(rows.read_rows(path))
    kept = [int(row["seconds"]) for row in rows.thinned_rows(path, 8)]
    if count <= 8:
        assert kept == list(range(count))
    assert len({b - a for a, b in itertools.pairwise(kept[:-1])}) <= 1
    assert (kept[0], kept[-1]) == (0, count - 1)
    assert min(count, 4) <= len(kept) <= 9
    assert str(rows.thinned_rows(path, count)) == str(every)
