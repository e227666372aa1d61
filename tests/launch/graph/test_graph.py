"""`distrl graph`: what is in the picture, and where it lies."""

import collections
import json
import xml.etree.ElementTree

import pytest

from distrl.errors import ConfigError
from distrl.launch.graph import drawing
from distrl.launch.graph.layout import lay_out, layers
from distrl.launch.run_dir.config_diff import describe
from distrl.presets import experiment
from distrl.programs.diagram import Flow, diagram_of, diagram_of_one_process
from distrl.programs.groups import FLOWS, GROUPS

LIGHT = (
    ("learner", "replay"), ("learner", "monitor"), ("evaluator", "learner"),
    ("evaluator", "monitor"), ("inferencer", "learner"), ("actor", "replay"),
    ("actor", "monitor"), ("actor", "inferencer"), ("inferencer", "monitor"),
    ("replay", "monitor"),
)  # fmt: skip
COUNTS = {"actor": 3, "inferencer": 2, "evaluator": 1, "learner": 1, "monitor": 1, "replay": 1}


@pytest.fixture(scope="module")
def cartpole():
    return experiment("CartPole-v1")


@pytest.fixture
def light(cartpole):
    return diagram_of(cartpole, "light_env", COUNTS, LIGHT)


def test_flows_name_groups_that_there_are():
    assert {label for link in FLOWS for label in link} <= GROUPS.keys()


def test_layers_are_callers_above_those_that_they_call():
    assert layers(list(COUNTS), LIGHT) == {
        "actor": 0, "inferencer": 1, "evaluator": 1, "learner": 2, "replay": 3, "monitor": 4,
    }  # fmt: skip
    assert set(layers(["a", "b"], [("a", "b"), ("b", "a")])) == {"a", "b"}  # a circle ends


def test_boxes_do_not_overlap_and_lines_end_at_their_boxes(light):
    layout = lay_out(light)
    boxes = {placed.box.group: placed for placed in layout.boxes}
    for a in layout.boxes:
        assert a.x > 0 and a.x + a.width < layout.width and a.y + a.height < layout.height
        for b in layout.boxes:
            apart = a.x + a.width <= b.x or b.x + b.width <= a.x
            assert a is b or apart or a.y + a.height <= b.y or b.y + b.height <= a.y
    assert len(layout.flows) == len(light.flows)
    for placed in layout.flows:
        for (x, y), group in (
            (placed.points[0], placed.flow.source),
            (placed.points[-1], placed.flow.target),
        ):
            box = boxes[group]
            assert box.x <= x <= box.x + box.width and y in (box.y, box.y + box.height)
    inner = [point for placed in layout.flows for point in placed.points[1:-1]]
    assert inner  # lines that pass a layer do so beside its boxes
    for x, y in inner:
        assert not any(b.x < x < b.x + b.width and b.y < y < b.y + b.height for b in layout.boxes)


def test_the_pictures_name_everything(light, tmp_path):
    draw = {suffix: tmp_path / f"program{suffix}" for suffix in (".svg", ".dot", ".txt")}
    for path in draw.values():
        drawing.draw(light, path)
        assert path.stat().st_size > 500
    words = [
        element.text
        for element in xml.etree.ElementTree.parse(draw[".svg"]).iter()
        if element.tag.endswith("}text")
    ]
    counted = collections.Counter(words)
    assert counted["actor × 3"] == counted["observations"] == counted["trajectories"] == 1
    assert counted["parameters"] == 2 and counted["reports"] == 5
    assert 'inferencer -> actor [label="actions"' in draw[".dot"].read_text()
    lines = draw[".txt"].read_text().splitlines()
    assert "actor -> replay        trajectories" in lines
    assert "actor × 3       32 environments each" in lines
    with pytest.raises(ConfigError, match=r"^graph: --out=.*\.gif: name a \.svg, "):
        drawing.draw(light, tmp_path / "program.gif")
    with pytest.raises(ConfigError, match="No such file or directory"):
        drawing.draw(light, tmp_path / "nowhere" / "program.svg")


@pytest.mark.full  # matplotlib looks for fonts
def test_images(light, tmp_path):
    pytest.importorskip("matplotlib")
    drawing.draw(light, tmp_path / "program.png")
    assert (tmp_path / "program.png").read_bytes().startswith(b"\x89PNG")


def test_one_process_has_the_same_parts(cartpole):
    diagram = diagram_of_one_process(cartpole)
    assert diagram.in_one_process
    assert Flow("replay", "learner", "batches of trajectories", False) in diagram.flows
    assert [box.title for box in diagram.boxes] == [
        "actor", "inferencer", "replay", "learner", "monitor",
    ]  # fmt: skip
    assert diagram.boxes[0].lines == (f"all {cartpole.actors.num_streams} environments",)
    assert "stroke-dasharray" in drawing.svg(lay_out(diagram))


def test_hosts_are_named(cartpole):
    hosts = {"learner/0": "a", "actor/0": "b", "actor/1": "b", "actor/2": "c"}
    diagram = diagram_of(cartpole, "multi_machine", COUNTS, LIGHT, hosts)
    lines = {box.group: box.lines[-1:] for box in diagram.boxes}
    assert lines["learner"] == ("on a",) and lines["actor"] == ("on b (2), c (1)",)


def test_the_graph_of_a_run(status_of, tmp_path, capsys, cartpole):
    run = tmp_path / "run"
    run.mkdir()
    config = {"command": ["distrl train", "--run_dir=run"], "topology": "single_process"}
    described = json.loads(json.dumps(describe(cartpole)))
    (run / "config.json").write_text(json.dumps({**config, **described}))
    assert status_of("graph", "run", "--out=run.svg") == 0
    assert capsys.readouterr().out == "run.svg: CartPole-v1 in single_process\n"
    assert (tmp_path / "run.svg").exists()
    described["experiment"]["environment"]["name"] = "Own"
    (run / "config.json").write_text(json.dumps({**config, **described}))
    assert status_of("graph", "run") == 2
    assert "was made by a program of yours; name it, as in" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize(
    ("flags", "calls"),
    [
        (["--topology=light_env", "--config.evaluator.num_evaluators=1"], set(LIGHT)),
        (
            ["--topology=heavy_env", "--config.learner.num_gradient_workers=1"],
            {
                ("actor", "learner"), ("actor", "replay"), ("actor", "monitor"),
                ("learner", "replay"), ("learner", "monitor"), ("learner", "gradient_worker"),
                ("replay", "monitor"), ("gradient_worker", "monitor"),
            },
        ),
        (
            ["--hosts=a,b"],
            {
                ("actor", "relay"), ("actor", "replay"), ("actor", "monitor"),
                ("relay", "learner"), ("learner", "replay"), ("learner", "monitor"),
                ("replay", "monitor"), ("relay", "monitor"),
            },
        ),
    ],
)  # fmt: skip
def test_the_links_are_those_of_the_program(status_of, tmp_path, capsys, flags, calls):
    assert status_of("graph", *flags, "--out=program.txt") == 0
    lines = (tmp_path / "program.txt").read_text().splitlines()
    arrows = {tuple(line.split("  ")[0].split(" -> ")) for line in lines if " -> " in line}
    expected = set()
    for caller, called in calls:
        there, back = FLOWS[caller, called]
        expected |= {(caller, called)} if there else set()
        expected |= {(called, caller)} if back else set()
    assert arrows == expected
