"""Read files with Apache Tika, in a JVM that py4j talks to; prints what ``read_text`` prints.

python tika_text.py FOLDER JAR …
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

sys.path.insert(0, str(Path(__file__).parent))

from read_text import read_all


def main() -> None:
    folder, jars = Path(sys.argv[1]), sys.argv[2:]
    port, token = launch_gateway(
        classpath=os.pathsep.join(jars), die_on_exit=True, enable_auth=True, javaopts=["-Xmx1g"], jarpath=_py4j(jars)
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    pid = int(gateway.jvm.java.lang.ProcessHandle.current().pid())
    parser = gateway.jvm.org.apache.tika.parser.AutoDetectParser()

    def read(path: Path) -> str:
        jvm = gateway.jvm
        handler = jvm.org.apache.tika.sax.BodyContentHandler(-1)
        metadata = jvm.org.apache.tika.metadata.Metadata()
        metadata.set("resourceName", path.name)
        context = jvm.org.apache.tika.parser.ParseContext()
        context.set(jvm.java.lang.Class.forName("org.apache.tika.parser.Parser"), parser)  # attachments, too
        stream = jvm.org.apache.tika.io.TikaInputStream.get(jvm.java.io.File(str(path)).toPath())
        parser.parse(stream, handler, metadata, context)
        stream.close()
        return str(handler.toString())

    read_all(read, folder, pid)
    gateway.shutdown()


def _py4j(jars: list[str]) -> str:
    return next(jar for jar in jars if Path(jar).name.startswith("py4j"))


if __name__ == "__main__":
    main()
