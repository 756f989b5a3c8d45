"""Package metadata that hatchling computes: the README with absolute links, which PyPI needs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s]+)(?=\))")
_IMAGE = re.compile(r'((?:src|srcset)=")(?![a-z]+:)([^"]+)(?=")')


def absolute(readme: str, source: str, tag: str) -> str:
    """Let links and images lead to the files of a tag of the repository at `source`."""
    readme = _IMAGE.sub(rf"\1{source}/raw/{tag}/\2", readme)
    return _LINK.sub(rf"\1{source}/blob/{tag}/\2", readme)


class ReadmeHook(MetadataHookInterface):
    """Sets `readme` from README.md, with links to the tag of the version."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text()
        text = absolute(text, metadata["urls"]["Source"], f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
