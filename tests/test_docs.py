"""The documentation names only files, modules and pages that exist."""

import itertools
import re
from pathlib import Path

import pytest

from distrl.launch.command_table import COMMANDS
from distrl.programs.groups import GROUPS
from tools.rooms import FLOORS, files_imported

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
FOLDERS = ("launch", "programs", "distrl", "tests", "docs", "benchmarks", "examples", "tools")
FOLDERS += ("requirements", ".ci", ".github")

LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
# With a folder, or a brace list such as programs/{heavy_env,light_env}.py; not part of a URL.
FILE = re.compile(
    rf"(?<![\w/.:-])((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./{{}},-]*[\w/}}])", re.ASCII
)
MODULE = re.compile(r"(?<![\w./-])distrl(?:\.[A-Za-z_]\w*)+")
IMPORT = re.compile(r"from (distrl[\w.]*) import ([\w, ]+)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
SETTING = re.compile(r"--config\.([a-z_.]+[a-z_])")
FLAG = re.compile(r"(?<![\w-])--([a-z_]+)(?=[=\s`),])")
OTHER_FLAGS = {  # of the benchmarks, tests, `distrl` before a command, and other programs
    *("megabytes", "readers", "steps", "versions"),  # publication.py, long_run.py
    "cases", "clock", "long", "machines", "minutes", "only", "out", "parts",
    "report", "rounds", "scale", "seconds", "seeds",
    "by", "dir", "grid", "jobs", "random", "show", "sweep_seed", "trials",  # of distrl sweep
    "help", "logdir", "only_check_args", "set", "version", "lp_termination_notice_secs",
    "num_producers", "which", "episodes", "trust", "x", "y",
    "code", "envs", "fps", "kinds", "max_steps", "peer", "sample", "task", "video", "watch",
    "array", "exclude", "exclusive", "force", "gpus", "ipc", "nodelist", "nodes", "python", "time",
    "share", "target", "timeout", "xla_force_host_platform_device_count",
}  # fmt: skip
MOVED = "### Moved"  # a section of the changelog that names what is gone


def text_of(page: str) -> str:
    text = (ROOT / page).read_text("utf-8")
    if MOVED in text:
        start = text.index(MOVED)
        text = text[:start] + text[text.index("\n### ", start + 1) :]
    return text


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = HEADING.findall(FENCE.sub("", path.read_text("utf-8")))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def alternatives(name: str) -> list[str]:
    """Expands one brace list."""
    head, brace, rest = name.partition("{")
    middle, _, tail = rest.partition("}")
    return [head + each + tail for each in middle.split(",")] if brace else [name]


def is_module(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one, without importing it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.exists():
            attributes = parts[length:]
            return not attributes or bool(
                re.search(rf"\b{attributes[0]}\b", file.read_text("utf-8"))
            )
    return False


def broken(page: str) -> list[str]:
    """Returns a line for each name or link on a page that leads nowhere."""
    text, lines = text_of(page), []
    for link in LINK.findall(text):
        if re.match(r"\w+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (ROOT / page).parent / target if target else ROOT / page
        if not path.exists():
            lines.append(f"link to {link}")
        elif anchor and anchor not in anchors(path):
            lines.append(f"link to {link}: no such heading")
    lines += [
        f"file {name}"
        for match in FILE.findall(text)
        for name in alternatives(match)
        if not (ROOT / name).exists()
    ]
    names = MODULE.findall(text)
    for module, imported in IMPORT.findall(text):
        names += [f"{module}.{name.strip()}" for name in imported.split(",")]
    return lines + [f"module {name}" for name in names if not is_module(name)]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_exists(page):
    assert broken(page) == []


ARCHITECTURE = "docs/architecture.md"


def test_a_file_that_is_named_alone_lies_beside_the_one_before_it():
    for line in text_of(ARCHITECTURE).splitlines():
        folder = Path()
        for name in re.findall(r"`([\w/]+\.py)`", line):
            folder = Path(name).parent if "/" in name else folder
            assert (ROOT / folder / Path(name).name).exists(), line


def test_the_table_of_packages_has_every_folder():
    packages = set(re.findall(r"^\| `(\w+/\w+)/` \|", text_of(ARCHITECTURE), re.MULTILINE))
    folders = {"/".join(path.split("/")[:2]) for path in files_imported() if path.count("/") > 1}
    assert folders == packages


def drawn_arrows():
    """Yields the arrows between files or folders that the page draws."""
    page = text_of(ARCHITECTURE)
    drawing = page[page.index('An arrow means "imports"') :].split("```")[1]
    floor = ""
    for line in drawing.splitlines()[1:]:
        words = line.split(maxsplit=1)
        if words[:1] and words[0].rstrip("/") in FLOORS:
            floor, line = words
        folder, colon, parts = line.strip().rpartition(": ")
        steps = [
            [floor + (f"{folder}/" if colon else "") + name for name in part.split(", ")]
            for part in parts.split(" -> ")
            if part != "all"
        ]
        for above, below in itertools.pairwise(steps):
            for pair in itertools.product(above, below):
                if not any(name.endswith("...") for name in pair):
                    yield pair


def test_every_arrow_that_is_drawn_is_an_import():
    imported = files_imported()

    def part_of(path, name):
        return path == name or path.startswith(f"{name}/")

    arrows = list(drawn_arrows())
    assert len(arrows) > 40
    for above, below in arrows:
        assert any(
            part_of(path, above) and any(part_of(other, below) for other in others)
            for path, others in imported.items()
        ), f"{above} -> {below}"


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    docs = ROOT / "docs"
    pages = {path.relative_to(docs).as_posix() for path in docs.glob("**/*.md")} - {"index.md"}
    assert pages <= set(LINK.findall(index))


def test_every_example_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    files = {f"../examples/{path.name}" for path in (ROOT / "examples").glob("*.*")}
    assert len(files) > 5
    assert files <= set(LINK.findall(index))


def test_every_page_is_in_the_navigation_of_the_site():
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    navigation = re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", config, re.MULTILINE)
    docs = ROOT / "docs"
    assert sorted(navigation) == sorted(
        p.relative_to(docs).as_posix() for p in docs.glob("**/*.md")
    )


def test_every_algorithm_is_described():
    text = (ROOT / "docs" / "train.md").read_text("utf-8")
    algorithms = {
        path.stem
        for path in (ROOT / "distrl" / "agents").glob("*.py")
        if "    def make(self" in (source := path.read_text("utf-8")) and "Protocol" not in source
    }
    assert {"impala", "ppo", "dqn"} < algorithms
    assert {name for name in algorithms if f"`{name}`" not in text} == set()


def sources(*folders: str) -> str:
    return "\n".join(
        path.read_text("utf-8") for name in folders for path in (ROOT / name).rglob("*.py")
    )


def test_every_setting_and_flag_exists():
    text = "\n".join(map(text_of, PAGES))
    own = "\n".join(block for page in PAGES for block in FENCE.findall(text_of(page)))
    fields = set(re.findall(r"^    (\w+): ", sources("distrl") + own, re.MULTILINE))
    transforms = set(re.findall(r'^    name = "(\w+)"', sources("distrl/transforms"), re.MULTILINE))
    source = (ROOT / "distrl" / "agents" / "components.py").read_text("utf-8")
    components = set(re.findall(r'"(\w+)"', source))
    names = {name for path in SETTING.findall(text) for name in path.split(".")}
    assert names - fields - transforms - components == set()
    defined = set(re.findall(r'DEFINE_\w+\((?:\s*#.*)?\s*"(\w+)"', sources("launch")))
    assert {"env", "topology", "run_dir"} <= defined
    assert set(FLAG.findall(text)) - defined - OTHER_FLAGS == set()


def test_every_group_of_nodes_is_in_the_table():
    text = (ROOT / "docs" / "topologies.md").read_text("utf-8")
    table = text.partition("\n## The nodes\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(GROUPS)


def test_every_command_is_described():
    text = "\n".join(map(text_of, PAGES))
    for command in COMMANDS:
        assert f"distrl {command}" in text


@pytest.mark.parametrize(
    "line",
    [
        "[page](nowhere.md)",
        "[page](README.md#no-such-heading)",
        "see `programs/nowhere.py`",
        "see `programs/{heavy_env,nowhere}.py`",
        "`distrl.nowhere.Agent`",
        "`distrl.agents.agent.Nobody`",
        "    from distrl.experiment import Experiment, Nobody",
    ],
)
def test_a_wrong_name_is_found(line, tmp_path, monkeypatch):
    for name in ("README.md", "programs", "distrl"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "page.md").write_text(line)
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert len(broken("page.md")) == 1
