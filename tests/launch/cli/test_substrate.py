"""What nodes are made of: what only one substrate has is refused in one line."""

import pytest

from distrl.errors import ConfigError
from distrl.programs import substrate


def pretend(monkeypatch, *installed):
    monkeypatch.setattr(
        substrate.importlib.util, "find_spec", lambda name: object() if name in installed else None
    )


@pytest.mark.parametrize(
    ("asked", "installed", "taken"),
    [
        ("auto", ("launchpad", "reverb", "grpc"), "launchpad"),
        ("auto", ("grpc",), "builtin"),
        ("auto", ("launchpad", "grpc"), "builtin"),
        ("builtin", ("launchpad", "reverb", "grpc"), "builtin"),
        ("launchpad", ("launchpad", "reverb"), "launchpad"),
    ],
)
def test_auto_takes_launchpad_where_it_is_installed(monkeypatch, asked, installed, taken):
    pretend(monkeypatch, *installed)
    assert substrate.resolve(asked) == taken


@pytest.mark.parametrize(
    ("asked", "installed", "said"),
    [
        ("launchpad", ("grpc",), "launchpad and reverb is not installed"),
        ("builtin", ("launchpad", "reverb"), "pip install grpcio"),
        ("auto", (), "--topology=single_process needs neither"),
        ("ray", (), "take auto, launchpad, builtin"),
    ],
)
def test_what_is_not_installed_is_refused(monkeypatch, asked, installed, said):
    pretend(monkeypatch, *installed)
    with pytest.raises(ConfigError, match=said):
        substrate.resolve(asked)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("--topology=heavy_env", "--config.replay.backend=reverb"),
            "take replay.backend=auto",
        ),
        (("--topology=light_env", "--config.inference.transport=courier"), "transport=auto"),
        (
            ("--topology=multi_machine", "--hosts=a,b", "--config.replay.backend=reverb"),
            "replay.backend=reverb needs Launchpad",
        ),
    ],
)
def test_what_the_builtin_substrate_lacks_is_refused(status_of, tmp_path, capsys, flags, said):
    pytest.importorskip("grpc")
    assert status_of("train", "--substrate=builtin", *flags) == 2
    out, err = capsys.readouterr()
    assert err.startswith("distrl: ") and err.count("\n") == 1
    assert said in err
    assert out == ""
    assert not list(tmp_path.iterdir())  # no run folder
