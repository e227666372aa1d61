"""Measures unit costs of a program's parts, and computes what a program of many hosts needs.

Measures on this machine what a unit of each part's work costs in CPU time; computes with
`scaling_model` how many hosts a rate of environment steps needs and which part saturates first;
compares the model with `distrl train` as far as it fits here, and with a thousand clients.

  python benchmarks/scaling.py --out=benchmarks/scaling.md           all of it, some 10 minutes
  python benchmarks/scaling.py --parts=costs --rounds=3 --seconds=0.2
  python benchmarks/scaling.py --parts=                              the tables, from the JSON file
"""

import argparse
import json
import multiprocessing.forkserver
import os
import resource
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from scaling_model import Costs, HostKind, Plan, limits, needs

HERE = Path(__file__).parent
PARTS = ("costs", "check", "clients")
HOSTS = (
    HostKind("8 cores, 10 Gbit/s", 8, 10.0),
    HostKind("64 cores, 25 Gbit/s", 64, 25.0),
    HostKind("192 cores, 100 Gbit/s", 192, 100.0),
)
RATES = (1e4, 1e5, 1e6)
RUNS = "heavy_env:1,heavy_env:2,heavy_env:4,light_env:2"
CLIENT_SIZES = (1_000, 1_000_000)


def measure(args: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Measures the parts that `args` selects, and adds them to `figures`."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    import scaling_costs
    from scaling_workloads import WORKLOADS, Bench

    from distrl.runtime.host_resources import keep_to_one_core

    multiprocessing.forkserver.ensure_running()  # before this process is pinned to one core
    if "check" in args.parts and "costs" not in args.parts:
        Costs.read(Path(args.json))
    if "costs" in args.parts:
        usable = os.sched_getaffinity(0)
        keep_to_one_core(0)  # as an actor does
        figures["load_at_costs"] = [os.getloadavg()[0]]
        figures["shared"] = scaling_costs.shared(args.rounds, args.seconds)
        figures["workloads"] = {
            env: scaling_costs.measure(env, args.rounds, args.seconds) for env in WORKLOADS
        }
        figures["load_at_costs"].append(os.getloadavg()[0])
        figures["rounds"], figures["seconds"] = args.rounds, args.seconds
        os.sched_setaffinity(0, usable)
        _write(args.json, figures)
    if "check" in args.parts:
        import scaling_check

        costs = Costs.read(Path(args.json))
        runs = [each.partition(":") for each in args.runs.split(",")]
        if args.runs == RUNS:
            figures["check"] = []
        for topology, _, actors in runs:
            run = scaling_check.run("CartPole-v1", topology, int(actors), args.run_seconds)
            run["predicted"] = scaling_check.predicted(costs, run)
            run["load"] = os.getloadavg()[0]
            figures.setdefault("check", []).append(run)
            _write(args.json, figures)
            print(json.dumps(run), flush=True)
    if "clients" in args.parts:
        import scaling_clients

        if hard < 4 * args.clients + 500:
            raise SystemExit(
                f"--clients={args.clients} needs {4 * args.clients + 500} file descriptors in a "
                f"process; the limit is {hard} (ulimit -Hn)"
            )
        figures["clients"] = scaling_clients.parameters(args.clients, CLIENT_SIZES, 2)
        figures["num_clients"] = args.clients
        _write(args.json, figures)
        bench = Bench("CartPole-v1", args.seconds)
        figures["clients"] += scaling_clients.inserts(bench, args.clients, 1)
        figures["load_at_clients"] = os.getloadavg()[0]
        _write(args.json, figures)


def _write(path: str, figures: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(_rounded(figures), indent=1) + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    """Returns the lines of a Markdown table."""
    head = list(head)
    lines = ["", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return [*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows), ""]


def _us(rounds: list[float], scale: float = 1e6) -> str:
    low, middle, high = (f"{scale * f(rounds):.3g}" for f in (min, statistics.median, max))
    return f"{middle} ({low}–{high})"


def unit_costs(figures: dict[str, Any]) -> list[str]:
    """Returns a table of unit costs: median, minimum and maximum over the rounds."""
    works = figures["workloads"]
    rows: list[list[str]] = []
    for name, what, each in (
        ("env_step", "environment step", "step"),
        ("infer", "inference, all rows of an actor", "actor step"),
        ("overhead", "actor: the rest of its step", "actor step"),
        ("write_of_item", "actor: an item into Reverb", "item"),
        ("serve_item_of_item", "Reverb server: an item, in and out", "item"),
        ("read_of_item", "learner: an item out of Reverb", "item"),
        ("learn", "learner: an update", "transition"),
        ("ask", "actor: a request to an inference service", "actor step"),
        ("answer", "inference service: a request", "actor step"),
        ("report", "monitor: an actor's report", "report"),
    ):
        rows.append([what, each, *(_us(works[env][name]) for env in works)])
    for name, what, scale in (
        ("unrolls_per_item", "unrolls per item", 1.0),
        ("unroll_bytes", "bytes of an unroll", 1.0),
        ("compression", "bytes sent for each of them", 1.0),
        ("param_bytes", "bytes of the parameters", 1.0),
    ):
        rows.append([what, "", *(f"{scale * works[env][name]:,.3g}" for env in works)])
    lines = table(["µs of a core", "each", *works], rows)
    shared = figures["shared"]
    rows = []
    for name, what in (
        ("fetch", "reader: a call for new parameters, until it can use them"),
        ("hand_out", "learner or relay: the same call"),
        ("pack", "learner: making a version's bytes"),
    ):
        sizes = shared["at_size"][name]
        rows.append([what, *(_us(rounds) for rounds in sizes.values())])
    lines += table(["µs of a core", *(f"{int(size):,} bytes" for size in sizes)], rows)
    rows = [
        [what, _us(shared[name]["call"]), _us(shared[name]["byte"], 1e9)]
        for name, what in (("tunnel_send", "to send"), ("tunnel_receive", "to receive"))
    ]
    return lines + table(["tunnel, on one host", "µs a message", "s a GB"], rows)


def checked(figures: dict[str, Any]) -> list[str]:
    """Returns a table of the model's costs and rates beside those of `distrl train`."""
    rows = []
    for run in figures["check"]:
        predicted, measured = run["predicted"], run["per_step"]
        per_group = [
            f"{1e6 * predicted[group]:.3g} / {1e6 * measured[group]:.3g}"
            if group in predicted
            else "–"
            for group in ("actor", "inferencer", "replay", "learner", "monitor")
        ]
        rate = run["cores"] / sum(predicted.values())
        rows.append(
            [
                f"{run['topology']}, {run['actors']}",
                *per_group,
                f"{run['cores']:.2f}",
                f"{rate:,.0f} / {run['rate']:,.0f}",
                f"{rate / run['rate']:.2f}",
                f"{run['load']:.1f}",
            ]
        )
    groups = ("actor", "inferencer", "replay", "learner", "monitor")
    head = ["topology, actors", *groups, "cores", "steps/s", "ratio", "load"]
    return table(head, rows)


def thousand(figures: dict[str, Any], costs: Costs) -> list[str]:
    """Returns a table of the cost of a call by one of many clients and by a single client."""
    rows = []
    work = costs.workloads["CartPole-v1"]
    for row in figures["clients"]:
        size = row["size"]
        alone = "–"
        if row["what"] in ("service", "relay"):
            alone = f"{1e6 * costs.hand_out(size):,.0f}"
        elif "insert" in row["what"]:
            alone = f"{1e6 * work.serve_item(size):,.0f}"
        rows.append(
            [
                row["what"],
                f"{size:,}",
                f"{row['seconds']:.2f}",
                row["errors"],
                f"{1e6 * row['server cpu']:,.0f}",
                alone,
                f"{1e6 * row['client tunnel cpu']:,.0f}",
                f"{1e6 * row['server tunnel cpu']:,.0f}",
                *(f"{row[f'{name} memory'] / 1e3:,.0f}" for name in ("server", "server tunnel")),
                *(f"{row[f'{name} descriptors']:.0f}" for name in ("server", "server tunnel")),
            ]
        )
    head = [
        "all at once",
        "bytes",
        "s for all",
        "errors",
        "server, µs",
        "model",
        "client tunnel, µs",
        "server tunnel, µs",
        "server, kB",
        "server tunnel, kB",
        "server, fds",
        "server tunnel, fds",
    ]
    return table(head, rows)


def plans(costs: Costs) -> list[str]:
    """Returns tables of what each rate needs, for each workload and kind of host."""
    lines: list[str] = []
    for env, work in costs.workloads.items():
        for light in (False, True):
            lines += ["", f"{env}, {'light' if light else 'heavy'}:"]
            rows = []
            for host in HOSTS:
                for rate in RATES:
                    # The device is as fast as it must be; its process then needs one core.
                    speed = max(1.0, rate * work.learn)
                    plan = Plan(host, light=light, learner_speed=speed)
                    need = needs(costs, work, plan, rate)
                    rows.append([f"{rate:,.0f}", host.name, *_cells(need)])
            head = ["steps/s", "hosts of", "actors", "hosts", "connections", "learner, cores"]
            head += ["other overloaded parts", "network in, Gbit/s"]
            lines += table(head, rows)
    return lines


def _cells(need: Any) -> list[str]:
    above = [
        f"{part} {load.used:,.{1 if load.used < 10 else 0}f}"
        for part, load in need.loads.items()
        if load.share > 1 and part != "learner: updates"
    ]
    return [
        f"{need.actors:,}",
        f"{need.hosts:,} + 1",
        f"{need.connections:,}",
        f"{need.loads['learner: updates'].used:.3g}",
        ", ".join(above) or "none",
        f"{need.loads['network into the first host'].used:.3g}",
    ]


def first_limits(costs: Costs) -> list[str]:
    """Returns a table of the rates at which the parts saturate.

    For the learner's updates on one core; for the others beside a fast learner.
    """
    columns: dict[str, dict[str, float]] = {}
    for env, work in costs.workloads.items():
        for light in (False, True):
            rates = limits(costs, work, Plan(HOSTS[1], light=light, learner_speed=1e9))
            rates["learner: updates"] = 1 / work.learn
            columns[f"{env}, {'light' if light else 'heavy'}"] = rates
    parts = {part for column in columns.values() for part in column}
    least = {part: min(each.get(part, 1e12) for each in columns.values()) for part in parts}
    rows = []
    for part in sorted(parts, key=lambda part: least[part]):
        cells = []
        for column in columns.values():
            rate = column.get(part)
            first = rate is not None and rate == min(column.values())
            text = (
                "–" if rate is None else "never" if rate > 1e8 else f"{float(f'{rate:.2g}'):,.0f}"
            )
            cells.append(f"**{text}**" if first else text)
        rows.append([part, *cells])
    return table(["saturates at, steps/s", *columns], rows)


def main() -> None:
    """Measures, then prints and writes the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="duration of a measurement in a round"
    )
    parser.add_argument(
        "--run_seconds", type=float, default=10.0, help="duration of a run of the check"
    )
    parser.add_argument("--runs", default=RUNS, help="runs of the check; others are added to it")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--json", default=str(HERE / "scaling.json"), help="file of all figures")
    parser.add_argument("--out", help="a Markdown file for the tables")
    args = parser.parse_args()
    args.parts = [part for part in args.parts.split(",") if part]
    path = Path(args.json)
    figures = json.loads(path.read_text()) if path.exists() else {}
    measure(args, figures) if args.parts else None
    costs = Costs.read(path)
    lines = ["## Unit costs", *unit_costs(figures)]
    if "check" in figures:
        lines += ["## The model and `distrl train`", *checked(figures)]
    if "clients" in figures:
        lines += [f"## {figures['num_clients']:,} clients", *thousand(figures, costs)]
    lines += ["## Which part saturates first", *first_limits(costs)]
    lines += ["## What a rate needs", *plans(costs)]
    print("\n".join(lines))
    if args.out:
        load = " and ".join(f"{each:.0f}" for each in figures["load_at_costs"])
        head = ["# Scaling", ""]
        head += [
            f"Made by `benchmarks/scaling.py` on {os.cpu_count()} cores; load averages before and"
        ]
        head += [f"after the costs were measured: {load}. Costs are medians, with the minimum and"]
        head += [f"maximum of {figures['rounds']} rounds. The parts may be from separate runs."]
        head += ["[docs/scaling.md](../docs/scaling.md) explains the results."]
        Path(args.out).write_text("\n".join([*head, "", *lines]).rstrip() + "\n")


if __name__ == "__main__":
    main()
