"""Certificates for servers of tests: an authority of a folder's own, and what it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path


def authority(folder: Path) -> Path:
    """A new authority; its certificate's file."""
    _openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test authority",
             "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
    return folder / "ca.pem"


def server(folder: Path) -> Path:
    """The key and certificate of a server at 127.0.0.1, in one file, signed by the folder's authority."""
    _openssl(folder, "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-keyout", "server.key",
             "-out", "server.csr")  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    _openssl(folder, "x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
             "-days", "2", "-extfile", "names", "-out", "server.crt")  # fmt: skip
    both = folder / "server.pem"
    both.write_text((folder / "server.key").read_text() + (folder / "server.crt").read_text())
    return both


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
