"""Measures what the agents learn: the runs of `learning_tasks.py`, and their pages.

Each run is `distrl train` as a user starts it, with a budget of environment steps or a goal. A
note of it is appended to `benchmarks/learning.jsonl` when it ends; a run with a note is not done
again, and one that was cut continues from its checkpoint:

  python benchmarks/learning.py --only=HalfCheetah-v4/ppo,Hopper-v4 --jobs=2
  python benchmarks/learning.py --only=CartPole-v1 --topology=heavy_env --seeds=0,1
  python benchmarks/learning.py --jobs=3 --cores=5  # on a machine with 16 cores and a GPU
  python benchmarks/learning.py --show  # what there is to do

Ctrl-C, or SIGTERM, has the runs save and end. `--report` runs nothing: it writes the pages in
`docs/results/`, and the tables of `docs/results.md`, from the notes.
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from learning_tasks import TASKS, Task

from distrl.goal import MISSED
from distrl.launch.runs.rows import texts
from distrl.metrics.sinks import METRICS

ROOT = Path(__file__).resolve().parents[1]
NOTES = ROOT / "benchmarks" / "learning.jsonl"
CURVE_POINTS = 60  # kept for each run
WINDOW = 100  # episodes that a score is the mean of
EVALUATE = """
import json, sys, distrl
found = distrl.evaluate(sys.argv[1], episodes=int(sys.argv[2]), seed=10_000)
print(json.dumps([round(found.mean, 2), round(found.std, 2), len(found.returns)]))
"""


class Note(NamedTuple):
    """What is kept of a run.

    Attributes:
      task, agent, variant, topology, seed: which run; the topology perhaps with a backend of the
        replay, "heavy_env, reverb".
      command: flags of `distrl train`, without seed and folder.
      goal: mean return that it was to reach; None: it had a budget.
      budget: environment steps; None: it had a goal.
      reached: whether it ended as it should: at its goal, or with its budget spent.
      steps, seconds: environment steps, and seconds from the set-up of the process, without its
        imports, to the end, over all lives; in older notes with imports.
      score: mean return of the last 100 training episodes, with exploration.
      greedy: mean and standard deviation of the returns of the policy that was learned, without
        exploration, and the number of these episodes; None: not played.
      curve: seconds, environment steps, and mean return of the last 100 training episodes.
      code: revision of distrl, "+" if files differed from it; None: not known.
      versions: of Python and the packages.
    """

    task: str
    agent: str
    variant: str
    topology: str
    seed: int
    command: str
    goal: float | None
    budget: int | None
    reached: bool
    steps: int
    seconds: float
    score: float
    greedy: tuple[float, float, int] | None
    curve: list[tuple[float, int, float]]
    code: str | None
    versions: dict[str, str]

    @property
    def key(self) -> tuple[Any, ...]:
        """What names the run; a run with another budget or goal is another run."""
        return (*self[:5], self.goal, self.budget)


class Job(NamedTuple):
    """A run to do."""

    task: Task
    seed: int

    @property
    def key(self) -> tuple[Any, ...]:
        """As `Note.key`."""
        task = self.task
        names = (task.name, task.agent, task.variant, task.topology, self.seed)
        return (*names, task.goal, task.steps)

    @property
    def folder(self) -> str:
        """Name of its run folder."""
        names = [str(part).replace(", ", "-") for part in self.key if part not in ("", None)]
        return "_".join(names)


def read_notes() -> dict[tuple[Any, ...], Note]:
    """Returns the newest note of each run, by key."""
    if not NOTES.exists():
        return {}
    notes = (Note(**json.loads(line)) for line in NOTES.read_text().splitlines())
    return {note.key: note for note in notes}


def note_of(job: Job, folder: Path, evaluated: str) -> Note:
    """Returns the note of a run that has ended. Args: evaluated: what EVALUATE printed, or ""."""
    config = json.loads((folder / "config.json").read_text())
    result = json.loads((folder / "result.json").read_text())
    rows = texts(folder / METRICS, ("seconds", "env_steps", "mean_return"))
    curve = [(float(at), int(steps), round(float(mean), 2)) for at, steps, mean in rows if mean]
    if not curve:
        raise SystemExit(f"{folder}: no episode has ended: {result['reason']}")
    last, every = curve[-1], -(-len(curve) // CURVE_POINTS)
    code = (config["code"] or {}).get("distrl") or {}
    commit = code.get("commit")
    task = job.task
    return Note(
        *job.key[:5], " ".join(task.flags()), task.goal, task.steps, result["exit_code"] == 0,
        last[1], round(last[0], 1), last[2], tuple(json.loads(evaluated)) if evaluated else None,
        [*curve[:-1:every], last], commit and commit[:12] + "+" * bool(code.get("dirty")),
        config["versions"],
    )  # fmt: skip


class Runner:
    """Does jobs, and stops them when it is told to."""

    def __init__(self, runs: Path, episodes: int):
        """Args: runs: folder of the run folders. episodes: played greedily after each run."""
        self._runs = runs
        self._episodes = episodes
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._children: set[subprocess.Popen[bytes]] = set()

    def stop(self, *_: Any) -> None:
        """Has all runs save and end, and starts no more."""
        self._stop.set()
        for child in list(self._children):
            child.send_signal(signal.SIGTERM)

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def run(self, job: Job, cores: set[int]) -> Note | None:
        """Does a job, pinned to `cores` if there are any. Returns None if it was stopped."""
        folder = self._runs / job.folder
        if self.stopped:
            return None
        if not (folder / "result.json").exists() or not self._ended(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            flags = [*job.task.flags(), f"--seed={job.seed}", f"--run_dir={folder}"]
            with open(f"{folder}.log", "ab") as log:
                self._call(["-m", "distrl", "train", *flags], cores, log)
        if self.stopped:
            return None
        if not self._ended(folder):
            raise SystemExit(f"{job.folder} failed: see {folder}.log")
        evaluated = ""
        if self._episodes:
            with open(f"{folder}.eval", "wb") as file:
                command = ["-c", EVALUATE, str(folder), str(self._episodes)]
                if self._call(command, cores, file) != 0:
                    if self.stopped:
                        return None
                    raise SystemExit(f"{job.folder}: its policy could not be evaluated")
            evaluated = Path(f"{folder}.eval").read_text().splitlines()[-1]
        note = note_of(job, folder, evaluated)
        with self._lock, open(NOTES, "a") as file:
            file.write(json.dumps(note._asdict()) + "\n")
        shutil.rmtree(folder)
        for suffix in (".log", ".eval"):
            Path(f"{folder}{suffix}").unlink(missing_ok=True)
        return note

    def _ended(self, folder: Path) -> bool:
        """Whether a run has ended by itself: with its budget spent, or at its goal, or without."""
        path = folder / "result.json"
        if not path.exists():
            return False
        result = json.loads(path.read_text())
        missed = result["exit_code"] == 1 and MISSED in result["reason"]
        return missed or result["exit_code"] == 0

    def _call(self, command: list[str], cores: set[int], output: Any) -> int:
        path = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
        child = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            stdout=output,
            stderr=subprocess.STDOUT if "train" in command else None,
            start_new_session=True,  # Ctrl-C reaches them through `stop` only
        )
        if cores:
            os.sched_setaffinity(child.pid, cores)
        with self._lock:
            self._children.add(child)
        if self.stopped:
            child.send_signal(signal.SIGTERM)
        try:
            return child.wait()
        finally:
            with self._lock:
                self._children.discard(child)


def jobs_of(only: str, topology: str | None, seeds: list[int] | None) -> list[Job]:
    """Returns the selected jobs, first all of the first seed.

    Args:
      only: comma-separated parts of TASK/AGENT/VARIANT/TOPOLOGY; "": all.
      topology: run them under this one, not their own; None: their own.
      seeds: those; None: each task's own number, from 0 on.
    """
    tasks = list(TASKS)
    if topology is not None:
        tasks = [task._replace(topology=topology) for task in TASKS]
    names = [f"{task.name}/{task.agent}/{task.variant}/{task.topology}" for task in tasks]
    chosen = [
        task
        for task, name in zip(tasks, names, strict=True)
        if any(part in name for part in only.split(","))
    ]
    most = max((task.seeds for task in chosen), default=0)
    numbers = range(most) if seeds is None else seeds
    jobs = [
        Job(task, seed)
        for seed in numbers
        for task in chosen
        if seeds is not None or seed < task.seeds
    ]
    # A task may be there under several topologies, with other numbers of seeds.
    return list({job.key: job for job in jobs}.values())


def main() -> int:
    """Runs the selected jobs, or writes the pages. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="comma-separated parts of TASK/AGENT/VARIANT/TOPOLOGY"
    )
    parser.add_argument("--seeds", help="comma-separated; each task's own unless given")
    parser.add_argument("--topology", help="instead of the tasks' own")
    parser.add_argument("--jobs", type=int, default=1, help="concurrent runs")
    parser.add_argument("--cores", type=int, default=1, help="of each run of one process")
    parser.add_argument("--episodes", type=int, default=20, help="played greedily after a run")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "learning")
    parser.add_argument("--show", action="store_true", help="list the runs, and which are done")
    parser.add_argument("--report", action="store_true", help="write the pages")
    args = parser.parse_args()
    notes = read_notes()
    if args.report:
        from learning_pages import write_pages

        write_pages(list(notes.values()))
        return 0
    seeds = None if args.seeds is None else [int(seed) for seed in args.seeds.split(",")]
    jobs = jobs_of(args.only, args.topology, seeds)
    if args.show:
        for job in jobs:
            begun = (args.runs / job.folder).exists()
            print("done" if job.key in notes else "cut " if begun else "    ", job.folder)
        return 0
    runner = Runner(args.runs, args.episodes)
    signal.signal(signal.SIGINT, runner.stop)
    signal.signal(signal.SIGTERM, runner.stop)
    cores = sorted(os.sched_getaffinity(0))
    parts = [set(cores[at : at + args.cores]) for at in range(0, len(cores), args.cores)]
    free = list(range(args.jobs))

    def one(job: Job) -> None:
        slot = free.pop()
        try:
            alone = job.task.topology == "single_process"
            note = runner.run(job, parts[slot % len(parts)] if alone else set())
        finally:
            free.append(slot)
        if note is not None:
            greedy = "" if note.greedy is None else f", greedy {note.greedy[0]:.1f}"
            print(
                f"{job.folder}: {note.score:.1f}{greedy}, {note.steps:,} steps, "
                f"{note.seconds:.0f} s",
                flush=True,
            )

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        futures = [pool.submit(one, job) for job in jobs if job.key not in notes]
        while not all(future.done() for future in futures):  # signals come between the waits
            concurrent.futures.wait(futures, timeout=0.5)
    for future in futures:
        future.result()
    return 128 + signal.SIGINT if runner.stopped else 0


if __name__ == "__main__":
    sys.exit(main())
