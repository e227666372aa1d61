"""The subcommands, a row each. Nothing is imported for one before it is called."""

from typing import NamedTuple

NOTHING, A_RUN, RUNS, A_RUN_AND_NODES, A_SHELL = "", "run", "runs", "run and nodes", "shell"
"""What shells complete of a command, beside the flags in its help."""
PATH_FLAGS = {
    "config_file", "credentials", "dir", "experiment", "out", "run_dir", "show", "video",
}  # fmt: skip
"""Flags of any command that name a file or folder."""


class Command(NamedTuple):
    """A subcommand.

    Attributes:
      module: where it is, in distrl.launch; imported when the command is called.
      function: takes the arguments from the command on, and returns the exit status.
      help: its part of `distrl help`. `[flags of COMMAND]` in it stands for these.
      completes: what its arguments are, for shells.
      with_jax: whether it may compile, and so uses JAX's compilation cache.
      ignores_closed_output: whether it continues when nobody reads what it prints.
    """

    module: str
    function: str
    help: str
    completes: str = NOTHING
    with_jax: bool = False
    ignores_closed_output: bool = False


COMMANDS = {
    "train": Command(
        "commands.train",
        "train",
        """usage: distrl train --env=NAME [--agent=NAME] [--topology=NAME] [flags]
       distrl train --experiment=FILE.py[:NAME] [--topology=NAME] [flags]
           Train an experiment.
       distrl train --help
           List all flags, including every setting of the experiment (--config.*).""",
        with_jax=True,
        ignores_closed_output=True,
    ),
    "launch": Command(
        "commands.launch",
        "launch",
        """usage: distrl launch FILE.py:NAME [flags]
           Run a Launchpad program of your own.
       distrl launch --help
           List its flags.""",
        ignores_closed_output=True,
    ),
    "doctor": Command(
        "commands.doctor",
        "doctor",
        """usage: distrl doctor
           Show what is installed, what works here, and what to do about what does not.""",
    ),
    "list": Command(
        "commands.list_runs",
        "list_runs",
        """usage: distrl list [FOLDER]
           List the runs in a folder, runs/ unless given.""",
        completes=A_RUN,
        with_jax=True,
    ),
    "status": Command(
        "commands.status",
        "status",
        """usage: distrl status RUN
           Show the status of a run's nodes, what their time goes to, and the bottleneck.""",
        completes=A_RUN,
    ),
    "top": Command(
        "commands.top",
        "top",
        """usage: distrl top RUN
           Watch a running program; Ctrl-C ends the watching only.""",
        completes=A_RUN,
    ),
    "logs": Command(
        "commands.logs",
        "logs",
        """usage: distrl logs RUN NODE [-f]
           Print a node's log; -f: also what it prints from now on.""",
        completes=A_RUN_AND_NODES,
        with_jax=True,
    ),
    "stop": Command(
        "commands.stop",
        "stop",
        """usage: distrl stop RUN [--timeout=120]
           Make a run save and end, as Ctrl-C does, and wait for that, for at most --timeout
           seconds.""",
        completes=A_RUN,
        with_jax=True,
    ),
    "eval": Command(
        "commands.evaluate",
        "evaluate_run",
        """usage: distrl eval RUN [--which=latest|best] [--episodes=N] [--max_steps=N]
                   [--seed=0] [--sample] [--task=NAME] [--trust]
                   [--env=NAME | --experiment=FILE.py[:NAME]] [--code=current|snapshot]
           Play episodes with a run's policy, 10 unless given, and print the mean and standard
           deviation of their returns; of several agents, each one's mean. --sample: as actors
           do, not greedily; --task: one of several policies; --trust: run the code that its
           files have or name; --code=snapshot: with the code that the run was made with.""",
        completes=A_RUN,
        with_jax=True,
    ),
    "play": Command(
        "commands.play",
        "play_run",
        """usage: distrl play RUN [--watch] [flags of distrl eval]
           Play episodes one after the other, and print each; --watch: in a window or the
           terminal.""",
        completes=A_RUN,
        with_jax=True,
    ),
    "video": Command(
        "commands.video",
        "video",
        """usage: distrl video RUN [--out=FILE.mp4] [--fps=N] [flags of distrl eval]
           Write a film of an episode, or of several: .mp4, .gif, or .png for pictures;
           RUN/video.mp4 unless given.""",
        completes=A_RUN,
        with_jax=True,
    ),
    "report": Command(
        "commands.report",
        "report",
        """usage: distrl report RUN [--out=FILE.html] [--video=FILE.mp4]
           Write a page about a run: curves, throughput, faults, settings, code, video;
           RUN/report.html unless given.""",
        completes=A_RUN,
        with_jax=True,
    ),
    "plot": Command(
        "commands.plot",
        "plot",
        """usage: distrl plot RUN ... [--out=FILE.png] [--x=env_steps] [--y=mean_return]
           Draw learning curves; runs that differ only in their seed are one, with its spread.""",
        completes=RUNS,
        with_jax=True,
    ),
    "compare": Command(
        "commands.compare",
        "compare",
        """usage: distrl compare RUN RUN ...
           Print the settings that differ, and how far each run got.""",
        completes=RUNS,
        with_jax=True,
    ),
    "sweep": Command(
        "sweep.sweep",
        "sweep",
        """usage: distrl sweep [flags of train] [--grid NAME=VALUE,VALUE,...] ...
                    [--random NAME=KIND:LOW:HIGH] ... [--trials=N] [--sweep_seed=N]
                    [--seeds=N] [--jobs=N|auto] [--dir=DIR] [--by=COLUMN]
           Train with each combination of settings and seeds; the same command resumes. NAME is a
           flag of train, such as config.agent.learning_rate or agent. KIND is uniform, log, int
           or logint; --random NAME=VALUE,VALUE,... chooses one. Each of --trials draws is tried
           with all of the grid; --sweep_seed: the root of their random numbers, 0 unless given.
           --seeds: their number, or the seeds themselves with commas.
           --jobs: trials at a time, 1 unless given; auto: as many as fit on this machine.
           --by ranks by a column of metrics.csv, mean_return unless given; -COLUMN: least first;
           POLICY/COLUMN: the column of one policy, instead of the mean over several.
       distrl sweep --dir=DIR
           Resume a sweep.
       distrl sweep --show DIR [--by=COLUMN]
           Print the table of a sweep, with mean and standard deviation over seeds, ranked.""",
        with_jax=True,
        ignores_closed_output=True,
    ),
    "graph": Command(
        "graph.graph",
        "graph",
        """usage: distrl graph [RUN | FILE.py:NAME] [flags of train]
                    [--out=FILE.svg|.png|.pdf|.dot|.txt]
           Draw the program of a run or of an experiment; without --out print it as text.""",
        completes=A_RUN,
        with_jax=True,
    ),
    "actors": Command(
        "commands.actors",
        "actors",
        """usage: distrl actors RUN N
           Scale to N actors (at most `actors.max_actors`).""",
        completes=A_RUN,
    ),
    "stacks": Command(
        "commands.stacks",
        "stacks",
        """usage: distrl stacks RUN [NODE ...]
           Print the Python stacks of a run's nodes.""",
        completes=A_RUN_AND_NODES,
    ),
    "profile": Command(
        "commands.profile",
        "profile",
        """usage: distrl profile RUN NODE [--seconds=5] [--out=FOLDER]
           Write a flame graph (py-spy) and a JAX trace of a running node; a single_process has no
           NODE.""",
        completes=A_RUN_AND_NODES,
        with_jax=True,
    ),
    "tables": Command(
        "commands.tables",
        "tables",
        """usage: distrl tables [NAME|RUN ...]
           Show the replay tables of the programs running on this machine.
       distrl tables NAME|RUN --set SETTING=VALUE
           Change a setting of a replay table while its program runs.""",
    ),
    "completion": Command(
        "commands.completion",
        "completion",
        """usage: distrl completion bash|zsh|fish
           Print a script that completes commands, flags, settings, environments and runs.""",
        completes=A_SHELL,
    ),
    "host-daemon": Command(
        "commands.host_daemon",
        "host_daemon",
        """usage: distrl host-daemon --join=HOST:PORT --credentials=FILE [--name=HOST]
                          [--wait=600] [--tunnel_port=PORT]
           Run this host's nodes for the launcher at HOST:PORT. --name: its name in the launcher's
           --hosts, the host name unless given; --wait: seconds to wait for the launcher;
           --tunnel_port: where the other hosts reach it, any free port unless given.""",
    ),
}

ALIASES = {"agent": "host-daemon"}  # former names, which still work but are not listed
