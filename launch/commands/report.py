"""`distrl report RUN`: what is known of a run, as one HTML page."""

import base64
import html
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.live.progress import duration_text
from distrl.launch.run_dir.folder import CONFIG
from distrl.launch.run_dir.snapshot import newest_snapshot, read_about
from distrl.launch.runs import html_page, report_curves
from distrl.launch.runs.arguments import Parser
from distrl.launch.runs.charts import short
from distrl.launch.runs.default_settings import changed_settings
from distrl.launch.runs.rows import reporting_damage, texts
from distrl.launch.runs.run import Run, load_run
from distrl.launch.runs.text_table import number
from distrl.launch.supervision.launcher_process import is_running
from distrl.launch.supervision.result import RESULT_FILE
from distrl.metrics.sinks import METRICS
from distrl.runtime.files import as_utf8, read_dict
from distrl.runtime.working_folder import absolute, shown

_VIDEOS = {".mp4": "video/mp4", ".gif": "image/gif"}
_MOST_VIDEO = 30_000_000  # bytes
_PROGRESS = "progress.json"
_SCORES = ("return", "success_rate")  # the columns of an evaluation
_MOST_ROWS = 20  # evaluations that are shown of a policy
_FIGURES = ("env_steps", "learner_steps", "episodes", "mean_return", "evaluation_return")


def report(arguments: list[str]) -> int:
    """Writes the page.

    Args:
      arguments: the command, the run folder, and flags; see the help.

    Returns:
      The exit status.

    Raises:
      ConfigError: there is no such run or video, or the page cannot be written.
    """
    parser = Parser("report").add("run").add("--out").add("--video")
    values = parser.parse_args(arguments[1:])
    run = load_run(absolute(values.run), command="report")
    out = absolute(values.out) if values.out else run.path / "report.html"
    text = as_utf8(make_report(run, _video(run, values.video)))
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"report: --out={shown(out)}: {error.strerror}") from error
    if run.has_damaged_result:
        print(f"distrl: {run.path / RESULT_FILE} is damaged: the page lacks it", file=sys.stderr)
    print(f"{shown(out)}: {len(text) / 1e6:.1f} MB")
    return 0


def make_report(run: Run, video: Path | None = None) -> str:
    """Returns the page of a run. Args: video: a film to show in it."""
    config, result = run.config, run.result
    charts = report_curves.curves(run)
    return html_page.page(
        f"{run.path.name}: distrl",
        [
            _heading(run, config, result),
            html_page.section("Settings", *_settings(run, config)),
            html_page.section("Curves", _grid(charts.learning), _missing(run)),
            html_page.section("Video", _film(video)),
            html_page.section("Throughput", _grid(charts.throughput), *_bottleneck(run)),
            html_page.section("Evaluations", *_evaluations(run)),
            html_page.section("Faults and restarts", *_faults(run, result)),
            html_page.section("Learner", _grid(charts.learner)),
            html_page.section("Code", *_code(run, config)),
        ],
    )


def _heading(run: Run, config: dict[str, Any], result: dict[str, Any]) -> str:
    experiment = config.get("experiment") or {}
    agent = (config.get("classes") or {}).get("agent", "").removesuffix("Config")
    environment = experiment.get("environment")
    name = environment.get("name") if isinstance(environment, dict) else environment
    seed = experiment.get("seed")
    about = [agent or " and ".join(run.tasks), str(name), str(config.get("topology"))]
    status = "running" if is_running(run.path) else run.status
    kind = {"finished": "good", "failed": "bad"}.get(status, "")
    began = time.localtime((run.path / CONFIG).stat().st_mtime)
    started = f"started {time.strftime('%Y-%m-%d %H:%M', began)}, seed {seed}"
    reason = result.get("reason")
    return (
        f"<header>\n<h1>{html.escape(run.path.name)}</h1>\n"
        + html_page.text(" · ".join(filter(None, about)))
        + html_page.text(status + (f": {reason}" if reason else ""), kind)
        + html_page.text(started, "soft")
        + html_page.figures(_figures(run))
        + "\n</header>"
    )


def _figures(run: Run) -> list[tuple[str, str]]:
    rows = run.last_rows
    figures = []
    for name in _FIGURES:
        known = [row[name] for row in rows if row.get(name, float("nan")) == row.get(name)]
        if known:
            figures.append((name.replace("_", " "), " / ".join(map(number, known))))
    row = rows[0] if rows else {}
    if row.get("seconds", 0) > 0 and "env_steps" in row:
        figures.append(("running time", duration_text(row["seconds"])))
        figures.append(("env steps a second", short(row["env_steps"] / row["seconds"])))
    return figures


def _grid(charts: list[str]) -> str:
    return f'<div class="charts">{"".join(charts)}</div>' if any(charts) else ""


def _missing(run: Run) -> str:
    return "" if run.last_rows else html_page.text("There are no metrics yet.", "soft")


def _video(run: Run, given: str | None) -> Path | None:
    if given is None:
        videos = [path for path in run.path.iterdir() if path.suffix in _VIDEOS]
        small = [path for path in videos if path.stat().st_size <= _MOST_VIDEO]
        return max(small, key=lambda path: path.stat().st_mtime, default=None)
    path = absolute(given)
    if path.suffix not in _VIDEOS or not path.is_file():
        raise ConfigError(f"report: --video={given} is no .mp4 or .gif file")
    if path.stat().st_size > _MOST_VIDEO:
        raise ConfigError(f"report: --video={given} has more than {_MOST_VIDEO / 1e6:.0f} MB")
    return path


def _film(path: Path | None) -> str:
    if path is None:
        return ""
    kind = _VIDEOS[path.suffix]
    data = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    name = html.escape(path.name)
    if kind.startswith("image"):
        return f'<img src="{data}" alt="{name}">'
    return f'<video controls muted loop autoplay src="{data}" title="{name}"></video>'


def _bottleneck(run: Run) -> list[str]:
    """Returns what the nodes spent their time on, where the run folder says so."""
    parts = []
    for part in run.parts:
        progress = read_dict(part.path / _PROGRESS) or {}
        prefix = f"{part.task}: " if part.task else ""
        if isinstance(progress.get("bottleneck"), str):
            parts.append(html_page.text(prefix + progress["bottleneck"]))
        nodes = progress.get("nodes")
        if not isinstance(nodes, dict):
            continue
        shares = {name: each for name, each in nodes.items() if isinstance(each, dict)}
        states = list(dict.fromkeys(s for each in shares.values() for s in each if each[s]))
        head = ["node", *(state.replace("_", " ") for state in states)]
        rows = [
            [name, *(f"{100 * each[s]:.0f} %" if each.get(s) else "" for s in states)]
            for name, each in shares.items()
        ]
        parts.append(html_page.table(head, rows))
    return parts


def _evaluations(run: Run) -> list[str]:
    rows: list[list[str]] = []
    total = 0
    for part in run.parts:
        part_rows, count = _evaluations_of(part)
        rows += part_rows[-_MOST_ROWS:]
        total += count
    line = f"{total} evaluations; the last {len(rows)} in {METRICS}:"
    if len(run.parts) > 1:
        line = f"{total} evaluations; of each policy the last in {METRICS}, {_MOST_ROWS} at most:"
    head = ["policy", "env steps", *(name.replace("_", " ") for name in _SCORES)]
    tables = html_page.table(head, rows)
    best = []
    for part in run.parts:
        known = read_dict(part.path / "checkpoints" / "best.json")
        if known:
            words = ", ".join(f"{key} {value}" for key, value in known.items())
            best.append(html_page.text(f"best checkpoint: {words}", "soft"))
    return [*([html_page.text(line, "soft")] if total > len(rows) else []), tables, *best]


def _evaluations_of(part: Run) -> tuple[list[list[str]], int]:
    """Returns the table's rows of a policy, and the number of its evaluations."""
    rows: list[list[str]] = []
    columns = ("env_steps", "evaluations", *(f"evaluation_{name}" for name in _SCORES))
    before: list[str] = []
    number_before = ""
    path = part.path / METRICS
    with reporting_damage(path):
        for steps, evaluations, *score in texts(path, columns):
            if score[0] in ("", "nan"):
                continue
            # Runs of older versions have scores alone.
            if score != before or (number_before and evaluations != number_before):
                figures = [number(float(text or "nan")).replace("nan", "") for text in score]
                rows.append([part.task or "", f"{float(steps):,.0f}", *figures])
            before, number_before = score, evaluations
        return rows, max(len(rows), int(float(number_before or 0)))


def _faults(run: Run, result: dict[str, Any]) -> list[str]:
    parts = []
    nodes = result.get("nodes") or {}
    rows = [
        [name, str(len(node.get("causes") or ())), str(node.get("state")),
         "; ".join(map(str, node.get("causes") or ())) or str(node.get("error") or "")]
        for name, node in nodes.items()
        if node.get("causes") or node.get("state") in ("failed", "killed")
    ]  # fmt: skip
    if result.get("failed_node"):
        parts.append(html_page.text(f"{result['failed_node']} failed first.", "bad"))
    parts.append(html_page.table(["node", "restarts", "end", "why"], rows))
    # All policies count the same environments.
    counts = (
        ("env_restarts", "environments rebuilt", max),
        ("updates_skipped", "updates skipped", sum),
    )
    for name, what, of_policies in counts:
        count = of_policies([0, *(row[name] for row in run.last_rows if row.get(name, 0) > 0)])
        if count:
            parts.append(html_page.text(f"{what}: {count:,.0f}"))
    if not any(parts):
        parts.append(html_page.text("None." if result else "None are known while it runs.", "soft"))
    return parts


def _settings(run: Run, config: dict[str, Any]) -> list[str]:
    changed, than = changed_settings(config)
    everything = [[name, _value(value)] for name, value in run.flat_settings.items()]
    rows = [[name, _value(value), _value(usual)] for name, value, usual in changed]
    return [
        html_page.text(
            f"These differ from {than}:" if rows else f"None differs from {than}.", "soft"
        ),
        html_page.table(["setting", "value", "otherwise"], rows),
        _folded("All settings", everything),
    ]


def _folded(title: str, rows: list[list[str]]) -> str:
    return html_page.folded(f"{title} ({len(rows)})", html_page.table(["name", "value"], rows))


def _value(value: Any) -> str:
    return "-" if value is None else str(value)


def _code(run: Run, config: dict[str, Any]) -> list[str]:
    command = config.get("command") or []
    words = [str(word) for word in command]
    rows = []
    for name, revision in (config.get("code") or {}).items():
        if revision:
            state = {True: "with changes", False: "", None: "perhaps with changes"}
            rows.append([name, str(revision.get("commit")), state.get(revision.get("dirty"), "")])
    snapshot = newest_snapshot(run.path)
    about = {} if snapshot is None else read_about(snapshot)
    packages = about.get("packages") or config.get("versions") or {}
    where = f"Its snapshot: {snapshot}" if snapshot else "There is no snapshot of the code."
    return [
        html_page.code(" ".join(["distrl train", *map(shlex.quote, words[1:])])),
        html_page.table(["code of", "revision", ""], rows),
        html_page.text(where, "soft"),
        _folded("Packages", [[name, str(version)] for name, version in packages.items()]),
    ]
