"""Which host runs which node, before anything starts."""

import dataclasses
import re

import pytest

from distrl import envs, presets
from distrl.agents.a2c import A2CConfig
from distrl.agents.tunable import Tunable
from distrl.config import CheckpointConfig, InferenceConfig
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.launch.cli.machine_flags import LAUNCHERS
from distrl.population import Population
from distrl.programs.placement import (
    Host,
    asks_on_one_host,
    check_addresses,
    parse_hosts,
    place,
    write_hosts,
)
from tests.support.commands import ROOT, SUBSTRATES
from tests.support.experiments import agents


def experiment(num_actors=2, **changes):
    made = presets.experiment("CartPole-v1", "impala")
    actors = dataclasses.replace(made.actors, num_actors=num_actors, num_envs=4)
    return dataclasses.replace(made, actors=actors, **changes)


def test_hosts_are_read(tmp_path):
    hosts = parse_hosts("h1:gpus=1, h2:cores=8:memory_gb=1.5,h3:address=10.0.0.3")
    assert hosts == (
        Host("h1", gpus=1),
        Host("h2", cores=8, memory_gb=1.5),
        Host("h3", address="10.0.0.3"),
    )
    assert [host.reached_at for host in hosts] == ["h1", "h2", "10.0.0.3"]
    path = tmp_path / "hosts"
    path.write_text("# the cluster\nh1 gpus=1\n\nh2 cores=8   memory_gb=1.5 # new\n")
    assert parse_hosts(f"@{path}") == hosts[:2]


def test_an_address_of_ipv6_is_in_brackets():
    text = "h1:address=[fd00::1]:cores=8,h2:address=[::2]"
    hosts = parse_hosts(text)
    assert hosts == (Host("h1", address="fd00::1", cores=8), Host("h2", address="::2"))
    assert write_hosts(hosts) == text


def test_hosts_are_read_as_they_were_written():
    settings = [field.name for field in dataclasses.fields(Host) if field.name != "name"]
    values = {"address": "10.0.0.3", "memory_gb": 0.1}
    hosts = tuple(
        Host(f"h{index}", **{name: values.get(name, index) for name in settings[: index + 1]})
        for index in range(len(settings))
    )
    assert write_hosts(hosts[:2]) == "h0:address=10.0.0.3,h1:address=10.0.0.3:cores=1"
    assert parse_hosts(write_hosts(hosts)) == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "name the machines, the learner's first"),
        ("h1,h1", r"h1 is named twice; name each host once: [^=]*$"),  # ssh knows no other names
        ("h1:core=3", r"'core=3' of h1: expected one of address=, cores=, gpus="),
        ("h1:cores=many", "cores of h1: 'many' is not a number"),
        (
            "h1:cores=-1",
            "h1: cores, gpus, memory_gb, replay, gradient_workers, learners must be 0 or more",
        ),
        ("h1:memory_gb=inf", "h1: .* must be 0 or more, and finite"),
        ("h1:memory_gb=nan", "h1: .* must be 0 or more, and finite"),
        ("h1:replay=one", "replay of h1: 'one' is not a number"),
        ("user@h1", "host 'user@h1': expected a host name"),
        ("h1 -oProxyCommand=x", "expected a host name"),
        ("@nowhere", "nowhere: No such file"),
    ],
)
def test_hosts_that_cannot_be(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_hosts(text)


def test_the_first_host_learns_and_the_others_act():
    placement = place(experiment(5), parse_hosts("h1,h2,h3"), light=False)
    assert placement.on("h1") == ["replay/0", "monitor/0", "learner/0"]
    assert placement.on("h2") == ["relay/0", "actor/0", "actor/2", "actor/4"]
    assert placement.on("h3") == ["relay/1", "actor/1", "actor/3"]
    table = placement.table({"learner/0": 1})
    assert table.splitlines()[3].split() == ["learner/0", "h1", "h1", "1", "GPU"]


def test_actors_go_where_cores_are():
    placement = place(experiment(6), parse_hosts("h1,h2:cores=2,h3:cores=4"), light=False)
    on = {host: sum(n.startswith("actor/") for n in placement.on(host)) for host in ("h2", "h3")}
    assert on == {"h2": 2, "h3": 4}


def test_a_host_without_nodes_is_named():
    placement = place(experiment(2), parse_hosts("h1,h2:cores=1,h3:cores=8,h4:cores=1"), light=True)
    assert [host.name for host in placement.used] == ["h1", "h3"]
    assert placement.table({}).splitlines()[-1] == (
        "no nodes on h2, h4: raise --config.actors.num_actors"
    )


@pytest.mark.parametrize("address", ["localhost", "127.0.1.1", "::1"])
def test_a_host_that_others_call_has_an_address_of_its_own(address):
    here, there = Host("h1", address), Host("h2")
    with pytest.raises(ConfigError, match=f"h2 would look for h1 at {address}, which is h2 itself"):
        check_addresses(place(experiment(), [here, there], light=False))
    check_addresses(place(experiment(), [there, here], light=False))  # no one calls its actors
    check_addresses(place(experiment(), [here, Host("h2", address)], light=False))
    check_addresses(place(experiment(1), [here, Host("h2", address), Host("h3")], light=False))


def test_a_shard_is_called_by_other_hosts():
    made = experiment()
    replay = dataclasses.replace(made.replay, num_shards=2, backend="served")
    checkpoint = CheckpointConfig(replay=False)
    made = dataclasses.replace(made, replay=replay, checkpoint=checkpoint)
    hosts = [Host("h1", replay=1), Host("localhost", replay=1)]
    with pytest.raises(ConfigError, match="h1 would look for localhost at localhost"):
        check_addresses(place(made, hosts, light=False))


def test_one_host_has_all_and_needs_no_relay():
    placement = place(experiment(), parse_hosts("h1"), light=False)
    assert set(placement.nodes.values()) == {"h1"}
    assert not [node for node in placement.nodes if node.startswith("relay/")]


def test_gradient_workers_go_where_they_are_declared():
    made = experiment()
    made = dataclasses.replace(
        made, learner=dataclasses.replace(made.learner, num_gradient_workers=3)
    )
    alone = place(made, parse_hosts("h1,h2"), light=False)
    assert [name for name in alone.on("h1") if name.startswith("gradient")] == [
        f"gradient_worker/{index}" for index in range(3)
    ]
    hosts = parse_hosts("h1,h2:gradient_workers=2,h3:gradient_workers=1")
    spread = place(made, hosts, light=True)
    assert [spread.nodes[f"gradient_worker/{index}"] for index in range(3)] == ["h2", "h2", "h3"]
    message = r"h2:gradient_workers=1 are 1, and learner\.num_gradient_workers=3"
    with pytest.raises(ConfigError, match=message):
        place(made, parse_hosts("h1,h2:gradient_workers=1"), light=False)


def test_inferencers_are_beside_the_learner():
    placement = place(experiment(), parse_hosts("h1,h2"), light=True)
    assert placement.nodes["inferencer/0"] == "h1" and placement.nodes["actor/1"] == "h2"
    assert "relay/0" not in placement.nodes


def test_actors_that_share_no_memory_with_the_inferencers():
    made = experiment(inference=InferenceConfig(transport="shared_memory"))
    assert asks_on_one_host(place(made, parse_hosts("h1"), light=True))
    with pytest.raises(ConfigError, match=r"actor/0 is on h2, and the inferencers are on h1; lea"):
        place(made, parse_hosts("h1,h2"), light=True)
    assert not asks_on_one_host(place(experiment(), parse_hosts("h1,h2"), light=True))
    with pytest.raises(ConfigError, match=r"one of auto, courier, shared_memory; got 'shm'"):
        InferenceConfig(transport="shm")


def test_gpus_that_are_not_there():
    made = experiment()
    wants = dataclasses.replace(made, learner=dataclasses.replace(made.learner, num_gpus=1))
    with pytest.raises(
        ConfigError, match=r"declare 1 GPUs, but their host h1 has 0: write --hosts"
    ):
        place(wants, parse_hosts("h1,h2:gpus=8"), light=False)


def sharded(save, num_shards=2):
    made = experiment(4)
    return dataclasses.replace(
        made,
        replay=dataclasses.replace(made.replay, num_shards=num_shards, backend="reverb"),
        checkpoint=dataclasses.replace(made.checkpoint, replay=save),
    )


def test_shards_are_beside_the_learner_unless_hosts_say_otherwise():
    def shards(hosts, save=False):
        nodes = place(sharded(save), parse_hosts(hosts), light=False).nodes
        return [nodes[f"replay/{index}"] for index in range(2)]

    assert shards("h1,h2,h3", save=True) == ["h1", "h1"]
    assert shards("h1:replay=2,h2,h3", save=True) == ["h1", "h1"]
    assert shards("h1,h2:replay=1,h3:replay=1") == ["h2", "h3"]
    assert shards("h1:replay=1,h2,h3:replay=1") == ["h1", "h3"]
    placement = place(sharded(False), parse_hosts("h1,h2:replay=2"), light=True)
    assert placement.table({}).splitlines()[1].split() == ["replay/0", "h2", "h2", "cpu"]


@pytest.mark.parametrize(
    ("hosts", "save", "message"),
    [
        ("h1,h2:replay=1", False, r"h2:replay=1 are 1, and replay.num_shards=2$"),
        ("h1:replay=1,h2:replay=2", False, r"h1:replay=1 \+ h2:replay=2 are 3, and"),
        ("h1,h2:replay=2", True, r"on h2 cannot be saved: .* on h1; add --config.checkpoint.repl"),
    ],
)
def test_shards_that_cannot_be_placed(hosts, save, message):
    with pytest.raises(ConfigError, match=message):
        place(sharded(save), parse_hosts(hosts), light=False)


def test_nodes_of_several_policies():
    made = agents.experiment("auto")
    heavy = place(made, parse_hosts("h1,h2,h3"), light=False)
    assert heavy.on("h1") == ["replay/0", "replay/1", "monitor/0", "learner/0", "learner/1"]
    assert heavy.on("h2") == ["relay/0", "relay/1", "actor/0"]
    assert heavy.on("h3") == ["relay/2", "relay/3", "actor/1"]
    light = place(made, parse_hosts("h1,h2"), light=True)
    assert [node for node in light.on("h1") if node.startswith("infer")] == [
        "inferencer/0",
        "inferencer/1",
    ]
    assert light.on("h2") == ["actor/0", "actor/1"]
    in_turn = place(dataclasses.replace(made, learners="one"), parse_hosts("h1"), light=False)
    assert [node for node in in_turn.nodes if node.startswith("learner")] == ["learner/0"]


def nodes_of(program):
    return {
        f"{label}/{index}" for label, group in program.groups.items() for index in range(len(group))
    }


@pytest.mark.parametrize("substrate", SUBSTRATES)
@pytest.mark.parametrize("light", [False, True])
def test_a_population_is_compared_on_the_first_host(tmp_path, light, substrate):
    from distrl.programs.multi_machine import multi_machine, over_network

    agent = Tunable(A2CConfig(), {"learning_rate": (1e-4, 1e-2)})
    made = Experiment(
        envs.Copies(envs.make("CartPole-v1"), 2),
        policies={"m0": agent, "m1": agent},
        policy_of={"0": "m0", "1": "m1"},
        population=Population(),
    )
    made = over_network(made, substrate)
    placement = place(made, parse_hosts("h1,h2"), light)
    assert placement.nodes["population/0"] == "h1"
    program = multi_machine(made, str(tmp_path), placement=placement, substrate=substrate)
    assert nodes_of(program) == set(placement.nodes)


@pytest.mark.parametrize("substrate", SUBSTRATES)
@pytest.mark.parametrize("light", [False, True])
def test_the_program_has_the_nodes_that_were_placed(tmp_path, light, substrate):
    from distrl.programs.multi_machine import multi_machine, over_network

    with pytest.raises(ConfigError, match=r"policies\.outer\.replay\.backend=shared_memory"):
        over_network(agents.experiment(), substrate)
    made = over_network(agents.experiment("auto"), substrate)
    (backend,) = {task.replay.backend for task in made.tasks.values()}
    assert backend == {"launchpad": "reverb", "builtin": "served"}[substrate]
    evaluator = dataclasses.replace(made.evaluator, num_evaluators=1)
    made = dataclasses.replace(made, evaluator=evaluator)
    placement = place(made, parse_hosts("h1,h2,h3"), light)
    program = multi_machine(made, str(tmp_path), placement=placement, substrate=substrate)
    assert nodes_of(program) == set(placement.nodes)


def several(**changes):
    return dataclasses.replace(agents.experiment("auto"), **changes)


WITHOUT_TABLE = {"checkpoint": CheckpointConfig(replay=False)}


def test_learners_are_placed_where_hosts_declare_them():
    hosts = parse_hosts("h1,h2:learners=1,h3:learners=1")
    placement = place(several(**WITHOUT_TABLE), hosts, light=False)
    assert [placement.nodes[f"learner/{index}"] for index in range(2)] == ["h2", "h3"]


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("h1:learners=3,h2", r"h1:learners=3 are 3, and the program has 2 learners: outer, inner"),
        ("h1:learners=1,h2:learners=1", "tables of learners on h2 cannot be saved"),
    ],
)
def test_learners_that_cannot_be_placed(hosts, message):
    with pytest.raises(ConfigError, match=message):
        place(several(), parse_hosts(hosts), light=False)


def test_one_learner_stays_on_the_first_host():
    with pytest.raises(ConfigError, match="would move the one learner from h1"):
        place(experiment(), parse_hosts("h1,h2:learners=1"), light=False)


def test_the_settings_of_hosts_and_the_ways_to_start_them_are_documented():
    page = (ROOT / "docs" / "machines.md").read_text("utf-8")
    table = page.partition("\n## Where nodes run\n")[2].partition("\n\nAll nodes")[0]
    settings = [field.name for field in dataclasses.fields(Host) if field.name != "name"]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == settings
    assert set(re.findall(r"\| \[(\w+)\]\(#", page)) == set(LAUNCHERS)


def test_actors_are_distributed_in_proportion_to_cores():
    """As docs/machines.md says: a quarter of them on b, the rest on c."""
    placement = place(experiment(8), parse_hosts("a,b:cores=16,c:cores=48"), light=False)
    actors = [host for node, host in placement.nodes.items() if node.startswith("actor/")]
    assert (actors.count("b"), actors.count("c")) == (2, 6)
