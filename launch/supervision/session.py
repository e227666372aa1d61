"""What every launch has, wherever its nodes run: signals, journal, logs, status, supervisor."""

import contextlib
import functools
import os
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import launchpad as lp

from distrl.errors import ConfigError
from distrl.launch import launchpad_adapter
from distrl.launch.supervision.journal import Journal
from distrl.launch.supervision.node import SupervisedNode
from distrl.launch.supervision.node_logs import NodeLog
from distrl.launch.supervision.requests import STACKS, Requests
from distrl.launch.supervision.restart_policy import Limits
from distrl.launch.supervision.result import Result
from distrl.launch.supervision.signals import Signals
from distrl.launch.supervision.status_file import FILE_NAME, StatusFile
from distrl.launch.supervision.supervisor import Supervisor
from distrl.runtime import incarnations


class Session(contextlib.ExitStack):
    """One launch of a program, from its first line to its result. Main thread.

    Args:
      program: not launched before.
      run_dir: gets `logs/`, `status.json` and `result.json`.
      terminal: "current_terminal" shows nodes' output with their names, "output_to_files" does not.
      limits: how long a node may hang; None: the usual ones.
      learner_grace: seconds that the learner has to save when the program is stopped.
      others: names beside the nodes' that have a log.
    """

    def __init__(
        self,
        program: lp.Program,
        run_dir: str | os.PathLike[str],
        terminal: str,
        limits: Limits | None,
        learner_grace: float,
        others: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.nodes = launchpad_adapter.named_nodes(program)
        self._run_dir = pathlib.Path(run_dir)
        self._terminal = terminal
        self._limits = limits or Limits()
        self._learner_grace = learner_grace
        self._others = others
        self.logs: dict[str, NodeLog] = {}
        self.ticks: list[Callable[[], None]] = []  # called about once a second

    def __enter__(self) -> "Session":
        super().__enter__()
        try:
            self._open()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def _open(self) -> None:
        folder = self._run_dir / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        self.enter_context(launchpad_adapter.alarm_kept())
        self.signals = self.enter_context(Signals())
        self.journal = self.enter_context(contextlib.closing(Journal(folder / "supervisor.log")))
        self._status = StatusFile(self._run_dir / FILE_NAME, os.getpid())
        self._requests = Requests(self._run_dir)
        next_life = functools.partial(incarnations.next_life, self._run_dir)
        self.supervisor = self.enter_context(
            contextlib.closing(
                Supervisor(
                    self.signals,
                    self.journal,
                    self._limits,
                    next_life,
                    self._look,
                    self._learner_grace,
                )
            )
        )
        stream = self.journal.out if self._terminal == "current_terminal" else None
        names = [*(node.name for node in self.nodes), *self._others]
        for index, name in enumerate(names):
            log = NodeLog(name, folder / f"{name.replace('/', '-')}.log", stream, index)
            self.logs[name] = self.enter_context(contextlib.closing(log))

    def _look(self, workers: Sequence[SupervisedNode]) -> None:
        try:
            self._status.write(workers)
        except OSError as error:  # a full disk must not take the supervisor down
            self.journal.note(f"no status.json: {error}")
        for group, wanted in self._requests.take():
            if group == STACKS:
                for worker in workers:
                    if worker.alive and worker.name in wanted:
                        worker.show_stacks(also_if_stopped=True)
            else:
                self.supervisor.want(group, wanted)
        for tick in self.ticks:
            tick()

    def run(
        self, workers: Mapping[str, SupervisedNode], active: Mapping[str, int] | None
    ) -> Result:
        """Runs the nodes until the program ends, and says how it did.

        Args:
          workers: of all nodes, by name.
          active: by group, how many of its nodes are started; all, where there is none.
        """
        standby = [
            name
            for group, wanted in (active or {}).items()
            for name in [node.name for node in self.nodes if node.label == group][wanted:]
        ]
        supervisor = self.supervisor
        supervisor.run(list(workers.values()), launchpad_adapter.phases(self.nodes), standby)
        result = Result(
            status=supervisor.status or "failed",
            reason=supervisor.reason,
            exit_code=supervisor.exit_code,
            nodes={name: worker.exit for name, worker in workers.items()},
            failed_node=supervisor.failure.node if supervisor.failure else None,
            hung=supervisor.hung(),
        )
        failed = self.logs.get(result.failed_node) if result.failed_node else None
        tail = failed.tail() if failed is not None else []
        self.journal.report(result, supervisor.failure, tail, failed.path if failed else None)
        result.write(self._run_dir)
        return result


def check_groups(program: lp.Program, what: str, groups: Mapping[str, Any]) -> None:
    """Raises ConfigError where `groups` has one that the program has not."""
    unknown = sorted(set(groups) - set(program.groups))
    if unknown:
        raise ConfigError(
            f"{what} for {', '.join(unknown)}: the program's groups are {', '.join(program.groups)}"
        )
