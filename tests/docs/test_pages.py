"""How blocks, commands and their comments are read from a page."""

import pytest

from tests.support.docs import command_line, pages

PAGE = """Text with `distrl list FOLDER` in it.

<!-- before:
x = 1
-->

```python
y = x
```

- In a list:

  ```sh
  distrl train --env=A \\
      --seed=1  # a comment
  # only a comment
  make test
  ```

<!-- not run: needs a cluster -->

```sh
kubectl get pods
```

<!-- prints: ^\\d$ -->

```text
1
```
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text(PAGE)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "PAGES", ["page.md"])
    return "page.md"


def test_what_a_page_has(page):
    blocks, after, prints = pages.read(page)
    assert [block.language for block in blocks] == ["python", "sh", "sh", "text"]
    assert blocks[1].text.startswith("distrl train")
    assert (blocks[2].not_run, after, prints) == ("needs a cluster", "", [r"^\d$"])
    assert pages.script(page).split() == ["x", "=", "1", "y", "=", "x"]
    assert [words for _, words in pages.commands()] == [
        ["distrl", "train", "--env=A", "--seed=1"],
        ["make", "test"],
        ["distrl", "list", "FOLDER"],
    ]


@pytest.mark.parametrize(
    "line", ["make tset", "make test TEST_ARGS=1", "python benchmarks/solve.py --nothing", "cowsay"]
)
def test_a_wrong_command_is_found(line):
    with pytest.raises(AssertionError):
        command_line.check(line.split(), lambda *_: 0)
    with pytest.raises(AssertionError):
        command_line.check(["distrl", "trian"], lambda *_: 2)
