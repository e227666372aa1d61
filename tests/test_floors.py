"""Imports only go down the three floors: launch -> programs -> distrl, and their rooms.

The sources are parsed, not run, for the rules about names; a fresh interpreter imports the modules
that must work where Launchpad and TensorFlow are not installed.
"""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import rooms
from tools.rooms import FLOORS, ROOT, module_name

# From the top down: a room imports only rooms of later rows.
ROOMS = """
    distrl/__main__ distrl/__init__
    launch/graph launch/sweep
    launch/python
    launch/main
    launch/commands
    launch/runs
    launch/cli
    launch/launcher
    launch/hosts
    launch/local
    launch/run_dir
    launch/supervision
    launch/live
    launch/network launch/launchpad_adapter
    launch/paths launch/launch_types launch/command_table launch/__init__

    programs/multi_machine
    programs/heavy_env programs/light_env programs/single_process
    programs/single_process_task
    programs/single_process_parts
    programs/nodes
    programs/inference_clients programs/replay_clients
    programs/running
    programs/auto programs/costs
    programs/remote
    programs/build
    programs/program
    programs/substrate programs/placement programs/resources
    programs/diagram
    programs/groups programs/learner_kinds programs/learner_processes programs/pools
    programs/topology_rates
    programs/__init__

    distrl/presets
    distrl/experiment
    distrl/experiment_checks
    distrl/multi_agent
    distrl/actor distrl/evaluator distrl/saved_policy distrl/inference
    distrl/snapshot_source
    distrl/policy distrl/policy_streams distrl/rules
    distrl/agents/ddpg distrl/agents/r2d2
    distrl/agents/a2c distrl/agents/dqn distrl/agents/impala distrl/agents/ppo
    distrl/agents/reinforce distrl/agents/sac distrl/agents/td3
    distrl/checkpointing distrl/inferencer distrl/policy_output distrl/population distrl/saved
    distrl/in_place_learner distrl/sharing
    distrl/agents/actor_critic distrl/agents/continuous distrl/agents/prediction
    distrl/agents/q_learning distrl/agents/tunable
    distrl/learner distrl/rounds distrl/task distrl/testing
    distrl/callbacks
    distrl/agents/components distrl/agents/defaults distrl/agents/without_learning
    distrl/gradients distrl/learning
    distrl/transforms distrl/variables
    distrl/agents/compiling
    distrl/agents/structs
    distrl/agents/agent distrl/agents/encoders
    distrl/metrics
    distrl/annealing
    distrl/agents/action_distribution distrl/agents/networks distrl/agents/action_noise
    distrl/replay/served
    distrl/replay/local distrl/replay/reverb distrl/replay/shared
    distrl/replay/remote
    distrl/replay/client distrl/replay/late_rewards distrl/replay/tee
    distrl/envs/rendering
    distrl/lockstep distrl/replay/age_bound distrl/envs/__init__
    distrl/agents/modules distrl/config distrl/envs/suites distrl/replay/buffer
    distrl/agents/losses distrl/agents/exploration
    distrl/agents/schedules distrl/agents/weak_types
    distrl/envs/native distrl/learner_config distrl/replay/episode_unrolls distrl/replay/table
    distrl/budget distrl/learner_group distrl/envs/multi_agent distrl/replay/unrolls
    distrl/envs/time_limit distrl/envs/whole_games
    distrl/envs/python
    distrl/envs/pools
    distrl/agents/settings distrl/envs/adapters
    distrl/envs/pool
    distrl/agents/__init__ distrl/episodes distrl/goal distrl/replay/config
    distrl/replay/insert_priorities distrl/replay/step_rows distrl/replay/step_values
    distrl/replay/stream_columns
    distrl/envs/clipping distrl/envs/pool_config distrl/frame_sockets distrl/replay/memory_check
    distrl/shared_memory
    distrl/runtime
    distrl/agents/optimizers distrl/envs/simulator distrl/random_values
    distrl/same_spaces
    distrl/replay/columns distrl/replay/sampler distrl/seeds distrl/specs
    distrl/envs/minigrid distrl/field_checks distrl/random_keys distrl/replay/__init__
    distrl/replay/stream_index distrl/errors distrl/param_versions distrl/types distrl/version
"""

LONGEST = 330  # lines of a file
VAGUE = {"its", "own", "mine", "found"}  # say nothing of what a variable holds

LAUNCHPAD = {"launchpad", "courier"}
TENSORFLOW = {"tensorflow", "tensorflow_probability", "reverb"}
# These import TensorFlow, by way of TensorFlow Probability, wherever it is installed.
THROUGH_TENSORFLOW = {"rlax", "distrax"}
REVERB_FILES = tuple(
    f"distrl/replay/reverb/{name}.py" for name in ("buffer", "checkpoints", "server", "writer")
)
# `python -m distrl` and `import distrl`: the command and its Python form, whatever floor has them.
ENTRIES = ("distrl/__main__.py", "distrl/__init__.py")
RLAX_FILE = "distrl/agents/losses/rlax_import.py"
NODES = {
    "CacherNode",
    "CourierNode",
    "MultiProcessingColocation",
    "MultiThreadingColocation",
    "PyClassNode",
    "PyNode",
    "ReverbNode",
}


def imports(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the full name of everything that a module of `package` imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            yield node.lineno, importlib.util.resolve_name(name, package) if node.level else name
        elif isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
            called = called.id if isinstance(called, ast.Name) else called
            target = node.args[0]
            if (
                called in ("import_module", "__import__")
                and isinstance(target, ast.Constant)
                and isinstance(target.value, str)
            ):
                yield node.lineno, target.value


def forbidden(path: str, name: str) -> str | None:
    """Says why the file at `path` must not import `name`; None when it may."""
    floor, top = path.split("/", 1)[0], name.split(".", 1)[0]
    if top in ("programs", "launch"):
        return f"{path} imports {name}, which may be another project's; ours is distrl.{name}"
    above = name.split(".")[1] if name.startswith(("distrl.programs", "distrl.launch")) else top
    if path in ENTRIES:
        return None
    if above in FLOORS and FLOORS.index(above) > FLOORS.index(floor):
        return f"{floor}/ imports {name}, which lies above it"
    if floor == "distrl":
        if top in LAUNCHPAD:
            return f"distrl/ imports {name}; Launchpad belongs to programs/ and launch/"
        if top in TENSORFLOW and path not in REVERB_FILES:
            return f"{name} is imported; only {', '.join(REVERB_FILES)} may"
    if top in THROUGH_TENSORFLOW and path != RLAX_FILE:
        return f"{name} is imported, which loads TensorFlow; take it from {RLAX_FILE}"
    return None


def nodes_made(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of every Launchpad node that is constructed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            func = node.func
            name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
            if name in NODES:
                yield node.lineno, name


def broken_rules(path: str, source: str) -> list[str]:
    """Returns one line for each rule that the file breaks."""
    tree = ast.parse(source, filename=path)
    package = (
        module_name(path)
        if path.endswith("/__init__.py")
        else (module_name(path).rpartition(".")[0])
    )
    found = [
        f"{path}:{line}: {why}"
        for line, name in imports(tree, package)
        if (why := forbidden(path, name))
    ]
    if not path.startswith("programs/"):
        found += [
            f"{path}:{line}: {name} is made; only programs/ makes nodes"
            for line, name in nodes_made(tree)
        ]
    return found


def vague_names(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the name of every variable, argument and attribute named by VAGUE."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.id if isinstance(node, ast.Name) else node.attr
        else:
            continue
        if name.strip("_") in VAGUE:
            yield node.lineno, name


def sources() -> list[Path]:
    return [ROOT / path for path in rooms.sources()]


def test_imports_go_down_only():
    assert {path.relative_to(ROOT).parts[0] for path in sources()} == set(FLOORS)
    found = [
        line
        for path in sources()
        for line in broken_rules(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
    ]
    assert not found, "the floors are broken:\n" + "\n".join(found)


def missing(room: str, graph: rooms.Graph, rows: list[list[str]], row_of: dict[str, int]) -> str:
    """Says where in ROOMS a room belongs that is not there."""
    below = [row_of[other] for other in graph[room] if other in row_of]
    above = [row_of[other] for other, others in graph.items() if room in others and other in row_of]
    says = f"{room} is not in ROOMS of tests/test_floors.py: add it to a row"
    if below:
        says += f' above "{" ".join(rows[min(below)])}", the highest that it imports'
    if above:
        says += f', below "{" ".join(rows[max(above)])}", the lowest that imports it'
    return says


def test_rooms_import_only_rooms_below():
    rows = [line.split() for line in ROOMS.splitlines() if line.strip()]
    row_of = {room: number for number, row in enumerate(rows) for room in row}
    graph = rooms.rooms(rooms.files_imported())
    gone = sorted(row_of.keys() - graph.keys())
    assert not gone, f"these are in ROOMS, and do not exist: take them out: {gone}"
    new = [missing(room, graph, rows, row_of) for room in sorted(graph.keys() - row_of.keys())]
    assert not new, "\n".join(new)
    up = [
        f"{room} imports {other}"
        for room, others in graph.items()
        for other in others
        if row_of[other] <= row_of[room]
    ]
    assert not up


def test_a_new_room_is_told_its_place():
    rows = [["top"], ["a", "b"], ["c"], ["d"]]
    row_of = {room: number for number, row in enumerate(rows) for room in row}
    graph = {"top": frozenset({"new"}), "new": frozenset({"d", "c"}), "a": frozenset({"d"})}
    assert missing("new", graph, rows, row_of) == (
        'new is not in ROOMS of tests/test_floors.py: add it to a row above "c", the highest that '
        'it imports, below "top", the lowest that imports it'
    )


def test_no_files_import_each_other_in_a_circle():
    assert rooms.circles(rooms.files_imported()) == []


def test_circles_are_found():
    graph = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"a", "d"})}
    assert rooms.circles({**graph, "d": frozenset()}) == [["a", "b", "c"]]
    with pytest.raises(ValueError, match="circles"):
        rooms.floors(graph)
    assert rooms.floors({"a": frozenset({"b"}), "b": frozenset()}) == [["a"], ["b"]]


def test_no_file_is_much_over_300_lines():
    assert [each for each in rooms.lengths(rooms.sources()) if each[0] > LONGEST] == []


def test_variables_are_named_after_what_they_hold():
    paths = [*sources(), *sorted((ROOT / "tools").glob("*.py"))]
    assert [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in paths
        for line, name in vague_names(path.read_text("utf-8"))
    ] == []


@pytest.mark.parametrize(
    "source",
    [
        "own = 1",
        "found: int",
        "self._own = 1",
        "def f(its): ...",
        "[mine for mine in ()]",
        "(found := 1)",
    ],
)
def test_a_vague_name_is_found(source):
    assert len(list(vague_names(source))) == 1


def test_functions_and_longer_names_are_not_vague():
    assert list(vague_names("def own(): ...\nown_code = 1\nself._own()\nself.found")) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("distrl/actor.py", "from distrl.programs import placement"),
        ("distrl/actor.py", "def f():\n    import distrl.launch.main"),
        ("distrl/envs/pool.py", "import courier"),
        ("distrl/replay/local/buffer.py", "import tensorflow.io as io"),
        ("distrl/replay/local/buffer.py", "import importlib\nimportlib.import_module('reverb')"),
        ("distrl/agents/impala.py", "import rlax"),
        ("programs/light_env.py", "from distrl.launch import main"),
        ("launch/local/launch.py", "import launchpad as lp\nlp.CourierNode(object)"),
        ("launch/local/launch.py", "from launch import main"),
    ],
)
def test_a_broken_rule_is_found(path, source):
    assert len(broken_rules(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("distrl/replay/reverb/buffer.py", "import reverb\nimport tensorflow as tf"),
        ("distrl/replay/__init__.py", "from . import local\nfrom .. import specs"),
        ("distrl/agents/losses/rlax_import.py", "import rlax"),
        ("programs/light_env.py", "import launchpad as lp\nlp.CourierNode(object)"),
        ("launch/main.py", "import launchpad as lp\nfrom distrl.programs import light_env"),
    ],
)
def test_what_is_allowed_is_not_reported(path, source):
    assert broken_rules(path, source) == []


def test_the_parts_load_neither_launchpad_nor_tensorflow():
    modules = [
        module_name(path.relative_to(ROOT).as_posix())
        for path in sources()
        if path.relative_to(ROOT).parts[0] == "distrl"
        and path.relative_to(ROOT).as_posix() not in (*REVERB_FILES, *ENTRIES)
    ]
    if (ROOT / "programs/single_process.py").exists():
        modules.append("distrl.programs.single_process")
    script = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"    loaded = [m for m in {sorted(LAUNCHPAD | TENSORFLOW - {'tensorflow_probability'})!r}"
        " if sys.modules.get(m)]\n"
        "    if loaded:\n"
        "        sys.exit(f'importing {name} loads {loaded}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
