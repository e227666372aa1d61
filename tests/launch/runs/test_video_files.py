"""Files of moving pictures have every picture; what is missing is one line."""

import sys
import tempfile

import numpy as np
import pytest

from distrl.errors import ConfigError
from distrl.launch.runs.video_files import open_film
from tests.support.full_disk import no_file_above

COLORS = (0, 120, 250)


def write(path, pictures, fps=10.0):
    film = open_film(path)
    film.begin(*pictures[0].shape[:2], fps)
    for picture in pictures:
        film.add(picture)
    film.close()


def plain_pictures(height, width):
    return [np.full((height, width, 3), color, np.uint8) for color in COLORS]


def test_a_gif_and_pngs(tmp_path):
    image = pytest.importorskip("PIL.Image")
    write(tmp_path / "a.gif", plain_pictures(100, 40))
    with image.open(tmp_path / "a.gif") as gif:
        assert (gif.n_frames, gif.size, gif.info["duration"]) == (3, (120, 300), 100)
        for k, color in enumerate(COLORS):
            gif.seek(k)
            assert gif.convert("RGB").getpixel((5, 5)) == (color,) * 3
    write(tmp_path / "b.gif", plain_pictures(300, 40), fps=200.0)  # faster than browsers draw
    with image.open(tmp_path / "b.gif") as gif:
        assert getattr(gif, "n_frames", 1) == 1
    write(tmp_path / "c.png", plain_pictures(300, 40))
    names = sorted(path.name for path in tmp_path.glob("c-*.png"))
    assert names == ["c-00000.png", "c-00001.png", "c-00002.png"]
    with image.open(tmp_path / "c-00001.png") as png:
        assert png.size == (40, 300) and png.getpixel((0, 0)) == (120, 120, 120)


def test_an_mp4_of_odd_sizes(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    write(tmp_path / "a.mp4", plain_pictures(301, 33))
    frames = ffmpeg.read_frames(str(tmp_path / "a.mp4"))
    about = next(frames)
    assert (about["size"], about["fps"]) == ((34, 302), 10.0)
    means = [np.frombuffer(frame, np.uint8).mean() for frame in frames]
    np.testing.assert_allclose(means, COLORS, atol=6)


def test_a_gif_without_a_folder_for_its_pictures(tmp_path, monkeypatch):
    pytest.importorskip("PIL")
    monkeypatch.setattr(tempfile, "tempdir", None)  # as in a new process
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    write(tmp_path / "a.gif", plain_pictures(100, 40))
    assert (tmp_path / "a.gif").stat().st_size
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))  # and no other
    message = r"^video: --out=.*/b\.gif: its pictures need a temporary file: No such file or "
    with pytest.raises(ConfigError, match=message):
        open_film(tmp_path / "b.gif")


def test_a_gif_whose_pictures_the_disk_lacks_room_for(tmp_path):
    image = pytest.importorskip("PIL.Image")
    message = r"^video: --out=.*/a\.gif: its pictures need a temporary file: File too large; TMPDIR"
    film = open_film(tmp_path / "a.gif")
    film.begin(300, 40, 10.0)
    with no_file_above(50_000):
        film.add(np.zeros((300, 40, 3), np.uint8))  # 36,000 bytes
        with pytest.raises(ConfigError, match=message):
            for picture in plain_pictures(300, 40):
                film.add(picture)
    film.close()
    with image.open(tmp_path / "a.gif") as gif:
        assert gif.size == (40, 300)  # what there was room for


def test_bad_files(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"name a \.mp4 or a \.gif file, or a \.png"):
        open_film(tmp_path / "a.avi")
    with pytest.raises(ConfigError, match="there is no folder"):
        open_film(tmp_path / "nowhere" / "a.mp4")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match=r"need ffmpeg: pip install imageio-ffmpeg"):
        open_film(tmp_path / "a.mp4")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ConfigError, match="need Pillow: pip install pillow"):
        open_film(tmp_path / "a.gif")
