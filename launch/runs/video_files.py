"""Files of moving pictures: .mp4 by ffmpeg, .gif and .png by Pillow."""

import abc
import contextlib
import tempfile
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from distrl.envs.rendering.pictures import Picture
from distrl.errors import ConfigError
from distrl.runtime.traceback_text import one_line
from distrl.runtime.working_folder import absolute

_LEAST_HEIGHT = 256  # pixels: smaller pictures are enlarged by a whole number
_LEAST_GIF_S = 0.02  # between two pictures of a .gif: browsers slow down faster ones


class Film(abc.ABC):
    """A file of pictures of one size."""

    scale = 1

    def begin(self, height: int, width: int, fps: float) -> None:
        """Opens the file. Args: height, width: size of a picture. fps: pictures a second."""
        self.scale = max(1, -(-_LEAST_HEIGHT // height))
        self._begin(height * self.scale, width * self.scale, fps)

    def add(self, picture: Picture) -> None:
        """Adds a picture, uint8 `[H, W, 3]`."""
        self._add(picture.repeat(self.scale, axis=0).repeat(self.scale, axis=1))

    @abc.abstractmethod
    def _begin(self, height: int, width: int, fps: float) -> None: ...

    @abc.abstractmethod
    def _add(self, picture: Picture) -> None: ...

    @abc.abstractmethod
    def close(self) -> None:
        """Completes the file; nothing where it was not opened."""


def open_film(path: Path) -> Film:
    """Returns a file to write to, by its suffix.

    Raises:
      ConfigError: there is no such kind, its folder is missing, or a package is.
    """
    file = absolute(path)
    if not file.parent.is_dir():
        raise ConfigError(f"video: --out={path}: there is no folder {path.parent}")
    if path.suffix == ".mp4":
        return _Mp4(file)
    if path.suffix == ".gif":
        return _Gif(file)
    if path.suffix == ".png":
        return _Pngs(file)
    raise ConfigError(
        f"video: --out={path}: name a .mp4 or a .gif file, or a .png file for numbered pictures"
    )


class _Mp4(Film):
    """H.264, which browsers and slides play."""

    def __init__(self, path: Path):
        try:
            import imageio_ffmpeg

            imageio_ffmpeg.get_ffmpeg_exe()
        except (ImportError, RuntimeError) as error:
            raise ConfigError(
                "video: .mp4 files need ffmpeg: pip install imageio-ffmpeg (distrl's extra "
                "`video`); a .gif needs Pillow alone"
            ) from error
        self._ffmpeg, self._path = imageio_ffmpeg, path
        self._writer: Generator[None, Any, None] | None = None
        self._padding = (0, 0)

    def _begin(self, height: int, width: int, fps: float) -> None:
        self._padding = (height % 2, width % 2)  # H.264 takes even sizes
        self._writer = self._ffmpeg.write_frames(
            str(self._path),
            (width + width % 2, height + height % 2),
            fps=fps,
            macro_block_size=1,
            output_params=["-movflags", "+faststart", "-threads", "1"],
            ffmpeg_log_level="error",
        )
        with warnings.catch_warnings():  # JAX's about forks: ffmpeg's becomes ffmpeg at once
            warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
            self._writer.send(None)

    def _add(self, picture: Picture) -> None:
        assert self._writer is not None
        (bottom, right) = self._padding
        if bottom or right:
            picture = np.pad(picture, ((0, bottom), (0, right), (0, 0)), mode="edge")
        try:
            self._writer.send(np.ascontiguousarray(picture))
        except OSError as error:  # ffmpeg has ended, as on a full disk; the message has its output
            line = one_line(error)[:300]
            raise ConfigError(f"video: --out={self._path}: ffmpeg failed: {line}") from error

    def close(self) -> None:
        """See `Film`."""
        if self._writer is not None:
            self._writer.close()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError(
            "video: .gif and .png files need Pillow: pip install pillow (distrl's extra `video`)"
        ) from error
    return Image


class _Gif(Film):
    """Written at the end, from pictures in a temporary file, so that long films fit in memory."""

    def __init__(self, path: Path):
        self._image, self._path = _pillow(), path
        self._every, self._seen = 1, 0
        self._shape, self._seconds = (0, 0, 3), 0.0
        with self._refusing():
            self._pictures = tempfile.TemporaryFile()  # noqa: SIM115

    def _begin(self, height: int, width: int, fps: float) -> None:
        self._every = max(1, round(_LEAST_GIF_S * fps))
        self._shape, self._seconds = (height, width, 3), self._every / fps

    def _add(self, picture: Picture) -> None:
        if self._seen % self._every == 0:
            with self._refusing():
                self._pictures.write(picture.tobytes())
        self._seen += 1

    def close(self) -> None:
        """See `Film`."""
        with self._refusing(), self._pictures:
            if not self._seen:
                return
            self._pictures.seek(0)
            pictures = self._read()
            first = next(pictures)
            try:
                first.save(
                    self._path,
                    save_all=True,
                    append_images=pictures,
                    duration=max(20, 10 * round(100 * self._seconds)),
                    loop=0,
                )
            except OSError as error:
                raise ConfigError(f"video: --out={self._path}: {error.strerror}") from error

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Raises ConfigError where the temporary file cannot be had: a full disk, say."""
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"video: --out={self._path}: its pictures need a temporary file: {error.strerror}; "
                "TMPDIR may name a folder for it, on another disk"
            ) from error

    def _read(self) -> Iterator[Any]:
        size = int(np.prod(self._shape))
        while len(data := self._pictures.read(size)) == size:  # the last one may lack its end
            yield self._image.fromarray(np.frombuffer(data, np.uint8).reshape(self._shape))


class _Pngs(Film):
    """Pictures of their own: clip-00000.png, clip-00001.png, ..."""

    def __init__(self, path: Path):
        self._image, self._path, self._count = _pillow(), path, 0

    def _begin(self, height: int, width: int, fps: float) -> None:
        pass

    def _add(self, picture: Picture) -> None:
        path = self._path.with_name(f"{self._path.stem}-{self._count:05}.png")
        try:
            self._image.fromarray(picture).save(path)
        except OSError as error:
            raise ConfigError(f"video: --out={path}: {error.strerror}") from error
        self._count += 1

    def close(self) -> None:
        """See `Film`."""
