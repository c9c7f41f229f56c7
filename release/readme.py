"""README.md as a page of its own: what a package index shows of a wheel.

There, links into the repository lead nowhere. With the repository's address they become absolute;
without it their texts stay, and pictures go.
"""

import re

_LINK = re.compile(r"(?P<is_picture>!?)\[(?P<text>[^]]*)\]\((?P<target>[^)\s]+)\)")
_ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:|#", re.IGNORECASE)


def standalone(text: str, repository: str) -> str:
    """The text with no relative links.

    Args:
        text: Markdown whose relative links begin at the root of the repository.
        repository: The address of the repository on a code host that has GitHub's paths, such as
            `https://github.com/owner/name`; empty if it has none.
    """
    root = repository.rstrip("/")

    def replaced(link: re.Match[str]) -> str:
        if _ABSOLUTE.match(link["target"]):
            return link[0]
        if not root:
            return "" if link["is_picture"] else link["text"]
        # `raw` serves a picture, `blob` a page about it. HEAD is the default branch.
        kind = "raw" if link["is_picture"] else "blob"
        return f"{link['is_picture']}[{link['text']}]({root}/{kind}/HEAD/{link['target']})"

    return re.sub(r"\n{3,}", "\n\n", _LINK.sub(replaced, text))


def project_urls(repository: str) -> dict[str, str]:
    """The addresses that the metadata of a wheel names; none without a repository."""
    root = repository.rstrip("/")
    if not root:
        return {}
    return {
        "Repository": root,
        "Documentation": f"{root}/blob/HEAD/docs/tutorial.md",
        "Changelog": f"{root}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{root}/issues",
    }
