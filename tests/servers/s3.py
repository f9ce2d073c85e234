"""S3, as moto plays it: an object store with the protocol of Amazon's."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.servers.cache import Missing
from tests.servers.server import Server

_PROGRAM = """
import sys, threading
from moto import server
from moto.s3.responses import S3Response

lock, put_object = threading.Lock(), S3Response.put_object


def put_one_at_a_time(*args, **options):
    with lock:
        return put_object(*args, **options)


S3Response.put_object = put_one_at_a_time
server.main(sys.argv[1:])
"""
"""The server, in which a condition and the write that depends on it are one, as Amazon's are: moto looks first and then
writes, and of two who create one name both may win."""


class S3(Server):
    """Takes any credentials; keeps everything in memory."""

    name = "s3"

    @classmethod
    def install(cls) -> Path:
        for needed in ("moto", "flask", "flask_cors", "s3fs"):
            if find_spec(needed) is None:
                raise Missing(f"{needed} is not installed: make setup")
        return Path(sys.prefix)

    def command(self) -> list[str]:
        return [sys.executable, "-c", _PROGRAM, "-H", "127.0.0.1", "-p", str(self.port)]

    def ready(self) -> bool:
        return self.answers("/moto-api/")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, Any]:
        """For fsspec; a server that is down is told soon."""
        config = {"retries": {"max_attempts": 1}, "connect_timeout": 2}
        return {"key": "k3y-of-tests", "secret": "s3cr3t", "endpoint_url": self.url, "config_kwargs": config}

    def client(self) -> Any:
        """boto3's, which does not go through what is tested."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="k3y-of-tests",
            aws_secret_access_key="s3cr3t",
            region_name="us-east-1",
        )
