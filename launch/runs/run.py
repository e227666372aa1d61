"""`distrl.load_run`: what a run folder has, for a script or a notebook."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from distrl.checkpointing.store import Checkpoints
from distrl.errors import ConfigError
from distrl.launch.run_dir.config_diff import flat
from distrl.launch.run_dir.folder import CONFIG
from distrl.launch.runs.rows import last_row, read_rows
from distrl.launch.supervision.result import RESULT_FILE
from distrl.metrics.sinks import METRICS
from distrl.runtime.files import TASKS, read_dict, read_json
from distrl.runtime.working_folder import shown

if TYPE_CHECKING:
    import pandas

    from distrl.policy import Policy


class Run:
    """A run's folder. Every attribute is read each time, so that a run in progress can be watched.

    Attributes:
      run_dir: the folder of the whole run.
      path: the folder; of one of several policies, that policy's.
      task: name of the policy; None: the run has one, or this is the whole run.
      trust: see `distrl.load_policy`.
    """

    def __init__(self, path: str | Path, *, trust: bool = False, task: str | None = None):
        """Args:
        path: the run folder.
        trust, task: see above.
        """
        self.run_dir = Path(path)
        self.task = task
        self.trust = trust
        self.path = self.run_dir if task is None else self.run_dir / TASKS / task

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, status={self.status!r})"

    @property
    def tasks(self) -> dict[str, "Run"]:
        """The parts of a run with several policies, by name; empty if it has one."""
        folder = self.run_dir / TASKS
        names = sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []
        return {name: Run(self.run_dir, trust=self.trust, task=name) for name in names}

    @property
    def parts(self) -> list["Run"]:
        """The run itself, or its parts if it has several policies."""
        return list(self.tasks.values()) or [self]

    @property
    def flat_settings(self) -> dict[str, Any]:
        """The settings by dotted names, with the topology, algorithms, and code of functions."""
        config = self.config
        agents = {
            name: cls.removesuffix("Config")
            for name, cls in (config.get("classes") or {}).items()
            if name.rpartition(".")[2] == "agent"
        }
        settings = flat(config.get("experiment") or {}, "")
        functions = config.get("functions") or {}
        code = {f"{name} (code)": digest for name, digest in functions.items()}
        return {"topology": config.get("topology"), **agents, **settings, **code}

    @property
    def last_rows(self) -> list[dict[str, float]]:
        """The newest row of each of `parts` that has one."""
        newest = [last_row(part.path / METRICS) for part in self.parts]
        return [row for row in newest if row is not None]

    @property
    def config(self) -> dict[str, Any]:
        """What `config.json` has: "experiment", with all settings, "topology", "command", ..."""
        path = self.run_dir / CONFIG
        try:
            config = read_json(path) or {}
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if not isinstance(config, dict):
            raise ConfigError(f"{path} cannot be read: it has no settings")
        return config

    @property
    def result(self) -> dict[str, Any]:
        """What `result.json` has: "status", "reason", "exit_code", "saved"; empty: it still runs.

        It is empty as well if the launcher itself was killed, or the file is damaged.
        """
        return read_dict(self.run_dir / RESULT_FILE) or {}

    @property
    def has_damaged_result(self) -> bool:
        """Whether there is a `result.json` that cannot be read."""
        path = self.run_dir / RESULT_FILE
        return path.exists() and read_dict(path) is None

    @property
    def status(self) -> str:
        """How the run ended: "finished", "failed" or "stopped".

        "unfinished" if it has not; "damaged" if its `result.json` cannot be read.
        """
        other = "damaged" if self.has_damaged_result else "unfinished"
        return str(self.result.get("status", other))

    @property
    def rows(self) -> list[dict[str, float]]:
        """The rows of `metrics.csv`: what was known then, by column (docs/metrics.md)."""
        self._check_task()
        return list(read_rows(self.path / METRICS))

    @property
    def metrics(self) -> "pandas.DataFrame":
        """`rows` as a data frame; needs pandas. What is not known is NaN."""
        try:
            import pandas
        except ImportError as error:
            raise ConfigError(
                "Run.metrics needs pandas (pip install 'distrl[pandas]'); Run.rows has the same as "
                "a list"
            ) from error
        return pandas.DataFrame(self.rows)

    @property
    def checkpoints(self) -> list[Path]:
        """The folders of all checkpoints, oldest first; `distrl.load_policy` takes each."""
        self._check_task()
        return Checkpoints(self.path).paths()

    @property
    def policy(self) -> "Policy":
        """The policy of the latest checkpoint; see `distrl.load_policy` for others."""
        from distrl.policy import load_policy

        self._check_task()
        return load_policy(self.path, trust=self.trust)

    def _check_task(self) -> None:
        if self.task is None and self.tasks:
            names = ", ".join(self.tasks)
            raise ConfigError(
                f"{self.path} has several policies: take one of run.tasks, by name: {names}"
            )


def load_run(path: str | Path, *, trust: bool = False, command: str = "load_run") -> Run:
    """See `distrl.load_run`. Args: command: what needs the run, for messages."""
    folder = Path(path)
    try:
        is_run = (folder / CONFIG).exists()
    except PermissionError as error:  # another user's
        raise ConfigError(f"{command}: {shown(folder)} cannot be read: {error.strerror}") from error
    if not is_run:
        raise ConfigError(
            f"{command}: {shown(folder)} is not the folder of a run: it has no {CONFIG}"
        )
    run = Run(folder, trust=trust)
    try:
        run.config  # noqa: B018  # raises if it is damaged
    except ConfigError as error:
        raise ConfigError(f"{command}: {error}") from error
    return run
