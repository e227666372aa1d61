"""Hooks of mkdocs: files of the repository that the pages of docs/ link to are pages as well.

On a page, `../examples/catch.py` is a link that works where the repository is browsed. In the site
it leads to a copy under `project/`, whose own links work, too.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()([^()\s]+)(?=\))")
FENCE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LANGUAGES = {".py": "python", ".ipynb": "json", ".yml": "yaml", ".toml": "toml", "": "text"}


def repository_path(src: str) -> str:
    """Returns the path in the repository of a page's source."""
    if not src.startswith("project/"):
        return f"docs/{src}"
    path = src.removeprefix("project/")
    return path if (ROOT / path).exists() else path.removesuffix(".md")


def site_path(path: str) -> str:
    """Returns the site's source path for a path in the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    is_page = path.endswith((".md", ".png", ".svg"))
    return f"project/{path}" if is_page else f"project/{path}.md"


def targets(text: str, path: str) -> dict[str, str]:
    """Returns the files of the repository that links on a page lead to, by link."""
    by_link = {}
    for link in LINK.findall(FENCE.sub("", text)):
        target = link.partition("#")[0]
        if target and not re.match(r"\w+:", link):
            resolved = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
            if (ROOT / resolved).is_file():
                by_link[link] = resolved
    return by_link


def content(path: str) -> str:
    """Returns a file of the repository as a page."""
    text = (ROOT / path).read_text("utf-8")
    if path.endswith(".md"):
        return text
    language = LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{text}````\n"


def on_files(files: Files, config: Any) -> Files:
    """Adds what the pages link to, and what these link to."""
    todo = [file.src_uri for file in files.documentation_pages()]
    while todo:
        src = todo.pop()
        path = repository_path(src)
        if not path.endswith(".md"):
            continue
        for target in targets((ROOT / path).read_text("utf-8"), path).values():
            uri = site_path(target)
            if uri.startswith("project/") and files.get_file_from_path(uri) is None:
                if uri.endswith(".md"):
                    files.append(File.generated(config, uri, content=content(target)))
                    todo.append(uri)
                else:
                    files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links between files of the repository into links between pages of the site."""
    path, folder = repository_path(page.file.src_uri), posixpath.dirname(page.file.src_uri)
    by_link = targets(markdown, path)

    def link(match: re.Match[str]) -> str:
        if match[0] not in by_link:
            return match[0]
        anchor = match[0].partition("#")[1:]
        return posixpath.relpath(site_path(by_link[match[0]]), folder or ".") + "".join(anchor)

    return LINK.sub(link, markdown)
