"""Where the source of the book lives, for the launch and edit buttons.

The address is looked up when the book is built: ``BOOK_REPOSITORY_URL`` in the environment, or
else ``git remote get-url origin``. Where neither gives a public address that the theme can link
to, the buttons are left out.
"""

import ipaddress
import os
import re
import subprocess
from urllib.parse import urlsplit

SETTING = "BOOK_REPOSITORY_URL"
PRIVATE_ENDINGS = ("localhost", ".local", ".localdomain", ".internal", ".lan", ".home", ".invalid")
KNOWN_TO_THE_THEME = ("github.com", "gitlab.com", "bitbucket.org")


def public_address(remote):
    """Turn a git remote into the address of its web page.

    Parameters
    ----------
    remote : str or None
        ``https://host/owner/name.git``, ``ssh://git@host/owner/name`` or
        ``git@host:owner/name.git``. Credentials and ports for ssh are dropped.

    Returns
    -------
    str or None
        ``https://host/owner/name`` (``http`` stays ``http``); None for a local path, a host in a
        private network, or anything else that readers could not open.
    """
    remote = (remote or "").strip()
    if "://" not in remote:
        short = re.fullmatch(r"(?:[\w.-]+@)([\w.-]+):(?!/)(\S+)", remote)
        if not short:
            return None
        remote = f"ssh://{short[1]}/{short[2]}"
    try:
        parts = urlsplit(remote)
        port = f":{parts.port}" if parts.port and parts.scheme in ("http", "https") else ""
    except ValueError:
        return None
    host = (parts.hostname or "").lower()
    path = parts.path.strip("/").removesuffix(".git").strip("/")
    if parts.scheme not in ("http", "https", "ssh") or not _is_public(host) or "/" not in path:
        return None
    scheme = "http" if parts.scheme == "http" else "https"
    return f"{scheme}://{host}{port}/{path}"


def _is_public(host):
    if "." not in host or host.endswith(PRIVATE_ENDINGS):
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def find_repository(folder, environ):
    """Return the public address of the book's repository, or None.

    Parameters
    ----------
    folder : path
        A folder inside the repository.
    environ : mapping
        Environment variables; a set ``BOOK_REPOSITORY_URL`` wins, an empty one means none.
    """
    if SETTING in environ:
        return public_address(environ[SETTING])
    try:
        git = subprocess.run(
            ["git", "remote", "get-url", "origin"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:  # no git
        return None
    return public_address(git.stdout) if git.returncode == 0 else None


def set_buttons(app, config):
    """Switch the theme's buttons on where there is an address, and off where there is none."""
    address = find_repository(app.srcdir, os.environ)
    linkable = address is not None and urlsplit(address).hostname in KNOWN_TO_THE_THEME
    options = config.html_theme_options
    options["repository_url"] = address if linkable else ""
    options["use_repository_button"] = options["use_edit_page_button"] = linkable
    options["use_issues_button"] = linkable and "bitbucket" not in address
    if not linkable:
        options["launch_buttons"] = {}


def setup(app):
    """Register with Sphinx."""
    app.connect("config-inited", set_buttons)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
