"""Where a program starts: from scratch or from a checkpoint, which is loaded here."""

import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from distrl.agents.agent import Agent
from distrl.agents.structs import params_struct
from distrl.checkpointing.generations import last_generation
from distrl.checkpointing.params_file import checksum, load_nest, load_params
from distrl.checkpointing.store import (
    LEARNER,
    PARAMS,
    TABLE,
    Checkpoint,
    Checkpoints,
    generation_of,
    number_of,
)
from distrl.errors import ConfigError, SpecError
from distrl.learner import Learner
from distrl.learning.divergence import UpdateCheck, check_saved
from distrl.learning.training_state import TrainingState
from distrl.metrics.reports import SPENT
from distrl.replay.table.info import TableInfo
from distrl.runtime.files import update_json
from distrl.types import Params

RESUMED = "resumed.json"


class ResumePoint(NamedTuple):
    """The point from which a program starts.

    Attributes:
      settings: the program's settings, plain data for the manifests of its checkpoints.
      checkpoint: folder of the checkpoint to resume from; None: start afresh.
      with_table: load the replay table from the checkpoint too, if it has one.
      checkpoints: with several tasks, the folders by task, instead of `checkpoint`.
      generations: with several tasks, the last checkpoint generation in the folder of each that
        had checkpoints before; see the module `generations`.
      last_number: with one task, the last number of a checkpoint that was in its folder before.
      without_table: with several tasks, those that start with an empty table.
    """

    settings: dict[str, Any] = {}  # noqa: RUF012  # never changed
    checkpoint: str | None = None
    with_table: bool = True
    checkpoints: Mapping[str, str] = {}
    generations: Mapping[str, int] = {}
    last_number: int = 0
    without_table: frozenset[str] = frozenset()

    @property
    def last_generation(self) -> int:
        """The last checkpoint generation of earlier programs, with several tasks; 0: none."""
        return max(self.generations.values(), default=0)

    def of_task(self, task: str) -> "ResumePoint":
        """Returns the point from which a task starts."""
        return self._replace(
            checkpoint=self.checkpoints.get(task, self.checkpoint),
            with_table=self.with_table and task not in self.without_table,
            checkpoints={},
            without_table=frozenset(),
        )

    @classmethod
    def latest(cls, run_dir: Path | str, start: "ResumePoint") -> "ResumePoint":
        """Returns where a node restarts while the others keep running.

        That is the latest checkpoint of this program, with its table, or where it started.

        Args:
          run_dir: the run folder, or the folder of one of several tasks.
          start: where the program, or that task, started.

        Raises:
          ConfigError: there are checkpoints, and all are damaged.
        """

        def counts(path: Path) -> bool:  # newer ones that the program did not start from do not
            if str(path) == start.checkpoint:
                return True
            if start.last_generation:
                return generation_of(path) > start.last_generation
            return not 0 < number_of(path) <= start.last_number

        checkpoint = Checkpoints(run_dir).latest(counts=counts)
        if checkpoint is None or str(checkpoint.path) == start.checkpoint:
            return start
        return start._replace(checkpoint=str(checkpoint.path), with_table=True)

    def manifest(self) -> dict[str, Any] | None:
        """Returns the checkpoint's manifest; None if the program starts afresh."""
        if self.checkpoint is None:
            return None
        return Checkpoint.read_manifest(Path(self.checkpoint))

    def table(self) -> Path | None:
        """Returns the folder of the saved replay table; None: start with an empty table."""
        if self.checkpoint is None or not self.with_table:
            return None
        path = Path(self.checkpoint) / TABLE
        return path if path.is_dir() else None


def check_seen(folders: Mapping[str, Path], start: ResumePoint) -> None:
    """Checks that a program does not start afresh beside checkpoints that its launcher missed.

    The launcher looks into its own host's run folder, which the learner's host may not share.

    Args:
      folders: the folders of the tasks of a learner's node, by task.
      start: where the program starts.

    Raises:
      ConfigError: there are checkpoints that the launcher has not seen.
    """
    if start.checkpoint is not None or start.checkpoints:
        return
    for task, folder in folders.items():
        seen = start.generations.get(task, -1)  # by task: a host may have only some of them
        for path in Checkpoints(folder).paths()[-1:]:
            if last_generation(folder) > seen:
                raise ConfigError(
                    f"--run_dir: host {socket.gethostname()}, the learner's, has {path}, which the "
                    f"launcher has not seen: to resume, copy {path.parent} to the same place on "
                    "the launcher's host, or from Python pass ResumePoint(checkpoint=...); to "
                    "start afresh, name a new --run_dir"
                )


def check_agent(agent: Agent, checkpoint: Path) -> None:
    """Raises SpecError if the checkpoint is of another agent. Computes nothing."""
    params = check_params(agent, checkpoint)
    state = jax.eval_shape(agent.initial_learner_state, params)
    load_nest(checkpoint / LEARNER, state, "learner state")


def check_params(agent: Agent, folder: Path) -> Params:
    """Returns the shapes of the agent's parameters. Computes nothing.

    Args:
      agent: the agent.
      folder: the folder with the file of parameters.

    Raises:
      SpecError: they are another agent's.
    """
    params = params_struct(agent)
    load_params(folder / PARAMS, params)
    return params


def restore_learner(
    learner: Learner, checkpoint: Path, inserts: int | None = None
) -> dict[str, Any]:
    """Restores the learner's state from a checkpoint.

    Args:
      learner: the learner.
      checkpoint: the checkpoint's folder.
      inserts: unrolls that the table has received, if it was not loaded; if they are fewer than the
        checkpoint's, the table has begun again. None: it was loaded.

    Returns:
      What was restored, under the names of the manifest.

    Raises:
      SpecError: the checkpoint is of another agent, what was loaded is not what was saved, or the
        parameters are not finite.
    """
    manifest = Checkpoint.read_manifest(checkpoint)
    saved = manifest.get("inserts", (manifest["table"] or {}).get("inserts", 0))
    like = learner.state()
    version, params = load_params(checkpoint / PARAMS, like.params)
    agent = load_nest(checkpoint / LEARNER, like.agent, "learner state")
    check_saved(str(checkpoint), params, like.params)
    learner.restore(
        TrainingState(
            version,
            params,
            agent,
            manifest["env_steps"],
            manifest["consumed"],
            manifest["seconds_waiting"],
            # Older checkpoints lack some.
            manifest.get("inserted_steps", manifest["monitor"].get("env_steps_acted", 0)),
            0 if inserts is not None and inserts < saved else saved,
            manifest.get("unrolls_too_old", 0),
            UpdateCheck.new_record(version, manifest.get("updates_skipped", 0)),
        )
    )
    state = learner.unshared_state()
    restored = {
        "version": state.version,
        "env_steps": state.trained_steps,
        "consumed": state.consumed,
        "params_checksum": checksum(state.params),
        "learner_checksum": checksum(state.agent),
    }
    for name, value in restored.items():
        if manifest[name] != value:
            raise SpecError(f"{checkpoint}: {name} was {manifest[name]}, and is {value} now")
    return restored


def monitor_states(start: ResumePoint, tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns the monitors' states to resume from, by task; empty if the program starts afresh.

    All tasks count the same environments, so all continue from the counts of the task that was
    saved last. A learner's counts are those it resumes from: its monitor's may differ.
    """
    states = {}
    for task in tasks:
        manifest = start.of_task(task).manifest()
        if manifest is not None:
            state = states[task] = dict(manifest["monitor"])
            learner = dict(state["learner"])
            if learner.get("learner_steps", 0) > manifest["version"]:
                learner.pop(SPENT, None)  # spent by updates that this checkpoint does not have
            learned = {"learner_steps": manifest["version"], "trained_steps": manifest["env_steps"]}
            state["learner"] = {**learner, **learned}
    for count in ("env_steps_acted", "episodes"):
        most = max((state[count] for state in states.values()), default=0)
        for state in states.values():
            state[count] = most
    return states


def note_resumed(run_dir: Path | str, part: str, facts: dict[str, Any]) -> None:
    """Records in `resumed.json` what a part of a resumed program has loaded."""
    update_json(Path(run_dir) / RESUMED, lambda data: data.update({part: facts}))


def table_counts(info: TableInfo) -> dict[str, int]:
    """Returns a table's counts, as `ReplayAdministration.save` returns them."""
    return {"size": info.size, "inserts": info.inserts, "samples": info.samples}
