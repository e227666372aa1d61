"""The settings of a launch, wherever its nodes run."""

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path

from distrl.launch.supervision.restart_policy import HangLimits, RestartPolicy


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """How a program is supervised, and what is written of it.

    Attributes:
      run_dir: the run folder, created if necessary; gets `logs/`, `status.json` and `result.json`.
      terminal: "current_terminal" shows nodes' output with their names, "live" the program's status
        below it, if stdout is a terminal; "output_to_files" neither.
      stop_grace: by group, seconds that its nodes have to end when the program is stopped; see
        `StopSequence` for other groups. After a node's failure, those that save have it, and others
        2 s less.
      restart_policies: by group, when its nodes are restarted; nodes of other groups never are.
      limits: how long nodes may hang.
      active: by group, how many of its nodes are started; `distrl actors` starts others. All nodes
        of groups that are not in it.
      log_limit: bytes of each log; see `LogFile`.
      saves: whether the program's learner saves checkpoints and `params.npz` in `run_dir` on this
        machine: the program has then not finished without both.
      may_return: groups whose nodes may end by themselves; None: those that may by
        `distrl.programs.groups`, and groups of the user's own.
    """

    run_dir: Path
    terminal: str = "current_terminal"
    stop_grace: Mapping[str, float] = dataclasses.field(default_factory=dict)
    restart_policies: Mapping[str, RestartPolicy] = dataclasses.field(default_factory=dict)
    limits: HangLimits = HangLimits()
    active: Mapping[str, int] = dataclasses.field(default_factory=dict)
    log_limit: int | None = None
    saves: bool = False
    may_return: Collection[str] | None = None

    def restart_policy(self, group: str) -> RestartPolicy:
        """Returns the restart policy of a group's nodes."""
        return self.restart_policies.get(group, RestartPolicy())
