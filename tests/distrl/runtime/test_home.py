"""The user's home folder."""

import os

import pytest

from distrl.errors import ConfigError
from distrl.runtime import home


def test_a_home_folder_is_put_in_the_place_of_its_sign(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert home.expanded("~", "x") == "/home/me"
    assert home.expanded("~/a/", "x") == "/home/me/a/"
    assert home.expanded("a/~", "x") == "a/~"
    assert str(home.cache_folder()) == "/home/me/.cache/distrl"


def test_a_home_folder_that_is_not_known_is_refused(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", str)  # no HOME, and no entry of the user
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(ConfigError, match=r"^--out: ~/a: the home folder ~ is not known; give"):
        home.expanded("~/a", "--out")
    with pytest.raises(ConfigError, match=r"^the cache: "):
        home.cache_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert str(home.cache_folder()) == "/var/cache/distrl"
