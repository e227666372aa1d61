"""The parts of every launch, wherever its nodes run: signals, journal, logs, status, supervisor."""

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from distrl.checkpointing.saved import Saved
from distrl.errors import ConfigError
from distrl.launch import launchpad_adapter
from distrl.launch.launch_types import LIVE
from distrl.launch.supervision.housekeeping import Housekeeping
from distrl.launch.supervision.journal import LOG_FILE, NAME, Journal
from distrl.launch.supervision.launch_options import LaunchOptions
from distrl.launch.supervision.node import SupervisedNode
from distrl.launch.supervision.node_logs import NodeLog
from distrl.launch.supervision.requests import STACKS, Requests
from distrl.launch.supervision.result import Result
from distrl.launch.supervision.signals import Signals
from distrl.launch.supervision.status_file import FILE_NAME, StatusFile
from distrl.launch.supervision.stop_sequence import saves
from distrl.launch.supervision.supervisor import Supervisor
from distrl.metrics.progress_line import is_progress_line
from distrl.programs.groups import group_of
from distrl.programs.substrate import AnyProgram
from distrl.runtime.files import make_private_folder
from distrl.runtime.lives import next_life

if TYPE_CHECKING:
    from distrl.launch.live.view import View


class Session(contextlib.ExitStack):
    """One launch of a program, from its first log line to its result. Main thread only.

    Args:
      program: the program, not launched before.
      options: the launch's options.
      other_logs: names, beside those of the nodes, that have a log.

    Attributes:
      nodes: the program's nodes.
      logs: by name, of the nodes and of `other_logs`.
      ticks: functions that are called about once a second.
      signals, journal, housekeeping, supervisor: the launch's, while the session is entered.
    """

    def __init__(
        self, program: AnyProgram, options: LaunchOptions, other_logs: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.nodes = launchpad_adapter.named_nodes(program)
        self.logs: dict[str, NodeLog] = {}
        self.ticks: list[Callable[[], None]] = []
        self._options = options
        self._run_dir = options.run_dir
        self._other_logs = other_logs
        self._began = False
        self._view: View | None = None
        self._saved_before = Saved.read(options.run_dir)

    def __enter__(self) -> "Session":
        super().__enter__()
        try:
            self._open()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        """Closes everything. What cannot be closed is shown, and does not change the result.

        Raises:
          ConfigError: instead of an OSError before the first node was started.
        """
        try:
            super().__exit__(kind, error, trace)
        except OSError as failure:
            print(f"{NAME}: cleaning up: {failure}", file=sys.stderr, flush=True)
        if isinstance(error, OSError) and not self._began:
            raise ConfigError(f"{self._run_dir}: cannot start the program: {error}") from error
        return False

    def _open(self) -> None:
        options = self._options
        folder = self._run_dir / "logs"
        make_private_folder(self._run_dir)
        folder.mkdir(exist_ok=True)
        self.enter_context(launchpad_adapter.preserve_alarm())
        self.signals = self.enter_context(Signals())
        journal = Journal(folder / LOG_FILE, options.log_limit)
        self.journal = self.enter_context(contextlib.closing(journal))
        self._status = StatusFile(self._run_dir / FILE_NAME)
        self._requests = Requests(self._run_dir, self.journal.say)
        self._requests.drop()
        self.housekeeping = Housekeeping(self.journal)
        supervisor = Supervisor(
            self.signals,
            self.journal,
            options.limits,
            functools.partial(next_life, self._run_dir, say=self.journal.say),
            self._on_tick,
            options.stop_grace,
        )
        self.supervisor = self.enter_context(contextlib.closing(supervisor))
        stream = self.journal.out if options.terminal != "output_to_files" else None
        hidden: Callable[[str], bool] = lambda line: False  # noqa: E731
        if options.terminal == LIVE and self.journal.out.is_terminal:
            from distrl.launch.live.view import View  # brings rich

            view = self._view = View(self._run_dir)
            # On other hosts, the figures may be in a folder that is not seen here.
            hidden = lambda line: view.has_figures and is_progress_line(line)  # noqa: E731
        names = [*(node.name for node in self.nodes), *self._other_logs]
        for index, name in enumerate(names):
            path = folder / f"{name.replace('/', '-')}.log"
            log = NodeLog(name, path, stream, index, options.log_limit, hidden)
            self.logs[name] = self.enter_context(contextlib.closing(log))

    def tick(self) -> None:
        """Calls `ticks`; what the operating system refuses is shown, and tried again next time."""
        for index, tick in enumerate(self.ticks):
            self.housekeeping.attempt(f"keeping connection {index}", tick)

    def _on_tick(self, nodes: Sequence[SupervisedNode]) -> None:
        attempt = self.housekeeping.attempt
        if self._status.is_due:
            attempt(f"writing {FILE_NAME}", functools.partial(self._status.write, nodes))
        if self._view is not None:
            out = self.journal.out
            out.show_footer(self._view.lines(self._status.current(), *out.footer_size))
        attempt("reading requests", functools.partial(self._take_requests, nodes))
        self.tick()

    def _take_requests(self, nodes: Sequence[SupervisedNode]) -> None:
        for group, wanted in self._requests.take():
            if group == STACKS:
                for node in nodes:
                    if node.alive and node.name in wanted:
                        node.show_stacks(also_if_stopped=True)
            else:
                self.supervisor.scale(group, wanted)

    def run(self, nodes: Mapping[str, SupervisedNode]) -> Result:
        """Runs the nodes until the program ends, reports and writes the result, and returns it.

        Args:
          nodes: all nodes of the program, by name.
        """
        standby = [
            name
            for group, wanted in self._options.active.items()
            for name in [node.name for node in self.nodes if node.label == group][wanted:]
        ]
        may_return = self._options.may_return
        for node in nodes.values():
            row = group_of(node.label)
            node.may_return = row.may_return if may_return is None else node.label in may_return
        self._began = True
        supervisor = self.supervisor
        supervisor.run(list(nodes.values()), launchpad_adapter.phases(self.nodes), standby)
        self.journal.out.show_footer(())
        outcome = supervisor.outcome
        assert outcome is not None  # `run` returns no earlier
        failure = outcome.failure
        result = Result(
            status=outcome.status,
            reason=outcome.reason,
            exit_code=outcome.exit_code,
            nodes={name: node.exit for name, node in nodes.items()},
            failed_node=failure.node if failure and failure.node in nodes else None,
            hung=supervisor.hung(),
        )
        saved = Saved.read(self._run_dir)
        known = self._options.saves or saved != Saved()
        if known:
            result.saved = saved.as_dict()
        problem = "" if result.status == "failed" else self._end_problem(nodes, result, saved)
        if problem:
            result = result.with_problem(problem)
        result = result.write(self._run_dir)
        lost: dict[str, list[str]] = {}
        for name, node in nodes.items():
            if node.unavailable_reason is not None:
                lost.setdefault(node.host, []).append(name)
        failed_log = self.logs.get(failure.node) if failure else None
        self.journal.report(
            result,
            failure,
            failed_log.tail() if failed_log is not None else [],
            failed_log.path if failed_log is not None else self.journal.path,
            saved.describe(self._saved_before) if known else "",
            lost,
        )
        return result

    def _end_problem(
        self, nodes: Mapping[str, SupervisedNode], result: Result, saved: Saved
    ) -> str:
        """Returns which node did not save, or failed, at the program's end, and why; "" if none."""
        new = saved.is_new(self._saved_before)
        what = "failed while it ended" if new else "did not save everything"
        savers = {name: node.exit for name, node in nodes.items() if saves(node)}
        for name, exit_ in savers.items():
            if exit_.state not in ("ended", "not started"):
                how = exit_.error or (f"{exit_.state} by {exit_.signal}" if exit_.signal else "")
                return f"{name} {what}: {how or exit_.state}"
        if self._options.saves and result.status == "finished" and not new:
            return "its learner ended without saving everything"
        return ""


def check_options(program: AnyProgram, options: LaunchOptions) -> None:
    """Raises ConfigError if the options name a group that the program does not have."""
    for what in ("stop_grace", "restart_policies", "active"):
        check_groups(program, what, getattr(options, what))
    check_groups(program, "may_return", dict.fromkeys(options.may_return or ()))


def check_groups(program: AnyProgram, what: str, groups: Mapping[str, Any]) -> None:
    """Raises ConfigError if `groups` has a key that is no group of the program."""
    unknown = sorted(set(groups) - set(program.groups))
    if unknown:
        raise ConfigError(
            f"{what} for {', '.join(unknown)}: the program's groups are {', '.join(program.groups)}"
        )
