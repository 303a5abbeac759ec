"""What MkDocs does with links that lead out of `docs/`: the README is the first page, and names of files stay text.

The pages are written to be read in the repository too, where such links lead to the file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, *, config: Any) -> Any:
    """Adds the README as `index.md`."""
    from mkdocs.structure.files import File  # noqa: PLC0415, here only a site is built, where MkDocs is

    files.append(File.generated(config, "index.md", content=(ROOT / "README.md").read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrites links between pages as they stand in the repository to what they are on the site."""
    own = "README.md" if page.file.src_uri == "index.md" else f"docs/{page.file.src_uri}"

    def rewritten(match: re.Match[str]) -> str:
        image, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(own), target))
        if not (ROOT / path).exists():
            return match[0]  # MkDocs says so, and the build fails
        if path == "README.md":
            path = "docs/index.md"
        if not path.startswith("docs/") or (path != "docs/index.md" and (ROOT / path).is_dir()):
            return text if "`" in text else f"{text} (`{path}`)"
        here = posixpath.dirname(page.file.src_uri) or "."
        return f"{image}[{text}]({posixpath.relpath(path.removeprefix('docs/'), here)}{anchor})"

    return _LINK.sub(rewritten, markdown)
