"""The header of a shared table's file: what a process must know before it can use the table."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distrl.errors import ConfigError
from distrl.replay.config import ReplayConfig
from distrl.replay.shared.layout import HEADER_BYTES

_VERSION = "distrl shared table 5"


class Header(NamedTuple):
    """The part of a table's file that its creator writes once.

    Attributes:
      config: the table's initial settings, without a custom sampler: only processes that sample
        need to be able to import that.
      sampler: description of the custom sampler; None: there is none.
      batch_size: unrolls per sample.
      data_bytes: size of the unrolls' data.
      seed: seed of the sampling.
      schedule: "lockstep", "rounds" or "": see `reconfigure.check_schedule`.
    """

    config: ReplayConfig
    sampler: str | None
    batch_size: int
    data_bytes: int
    seed: list[int]
    schedule: str = ""

    def write(self, memory: npt.NDArray[Any]) -> None:
        """Writes the header to the file's bytes, uint8."""
        fields = {
            "version": _VERSION,
            **self._asdict(),
            "config": dataclasses.asdict(self.config),
        }
        text = json.dumps(fields).encode()
        assert len(text) < HEADER_BYTES
        memory[: len(text)] = np.frombuffer(text, np.uint8)

    @classmethod
    def read(cls, memory: npt.NDArray[Any], path: Path) -> "Header":
        """Reads the header from the file's bytes, uint8.

        Raises:
          ConfigError: the file has another format.
        """
        fields = json.loads(bytes(memory[:HEADER_BYTES]).rstrip(b"\0"))
        if fields.pop("version", None) != _VERSION:
            raise ConfigError(
                f"{path} is no {_VERSION}: was it created by another version of this program?"
            )
        return cls(**{**fields, "config": ReplayConfig(**fields["config"])})
