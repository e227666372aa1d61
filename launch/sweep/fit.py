"""How many trials fit on this machine at a time: its cores, its GPUs, its memory."""

from collections.abc import Callable, Mapping, Sequence

from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.programs.groups import num_services
from distrl.programs.resources import process_environment, visible_gpus
from distrl.runtime.host_resources import free_memory, usable_cores

AUTO = "auto"
_ASSUMED = 1 << 30  # bytes that a trial needs, before one has been seen


def busy_cores(experiment: Experiment, topology: str) -> int:
    """Returns the cores that a trial keeps busy: its actors, inferencers and learners."""
    if topology == "single_process":
        return 1  # actor and learner take turns
    services = num_services(experiment) if topology == "light_env" else 0
    return experiment.actors.largest_num_actors + services + len(experiment.learner_nodes)


class TrialSlots:
    """Room for trials: a slot has its own GPUs.

    Attributes:
      count: the most trials that run at a time.
    """

    def __init__(self, jobs: str, cores: int, gpus: int, *, room: Callable[[], int] | None = None):
        """Args:
        jobs: a number, or "auto".
        cores: cores that a trial keeps busy.
        gpus: GPUs that a trial needs.
        room: returns the bytes of memory that are free.

        Raises:
          ConfigError: `jobs` is neither, or there are too few GPUs for that many.
        """
        visible = visible_gpus()
        if jobs == AUTO:
            self.count = max(1, usable_cores() // cores)
            if gpus:
                self.count = max(1, min(self.count, len(visible) // gpus))
        elif jobs.isdecimal() and int(jobs) > 0:
            self.count = int(jobs)
        else:
            raise ConfigError(f"--jobs={jobs}: expected a number of trials, or {AUTO}")
        if gpus * self.count > len(visible):
            raise ConfigError(
                f"--jobs={self.count}: each trial needs {gpus} GPUs, and this machine shows "
                f"{len(visible)}"
            )
        self._gpus = [visible[k * gpus : (k + 1) * gpus] for k in range(self.count)]
        self._room = (room or free_memory) if jobs == AUTO else None

    def environment(self, slot: int) -> Mapping[str, str]:
        """Returns the environment variables of a slot's trials."""
        gpus = self._gpus[slot]
        if gpus:
            return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        # Or `auto` gives the same GPU to all.
        return {} if self.count == 1 else process_environment(None)

    def has_room(self, used: Sequence[int]) -> bool:
        """Returns whether there is memory for another trial.

        Args:
          used: the most bytes that each trial so far has used; empty: none is running.
        """
        return not used or self._room is None or self._room() >= max(_ASSUMED, *used)
