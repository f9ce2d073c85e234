"""OpenSearch 2 with its plugin k-NN, as Maven Central has it: without native libraries, so with Lucene's vectors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tests.servers.cache import cached
from tests.servers.java import PLUGIN, java, run_maven, unzip_artifact
from tests.servers.opensearch import OpenSearchServer

PAINLESS: Final = ("lang-painless", "opensearch-scripting-painless-spi", "antlr4-runtime", "asm")
"""Beginnings of the names of the jars that the module lang-painless consists of."""

POM: Final = """\
<project>
  <modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>servers</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.opensearch.plugin</groupId><artifactId>lang-painless</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"""

DESCRIPTOR: Final = """\
description=An easy, safe and fast scripting language for OpenSearch
version={version}
name=lang-painless
classname=org.opensearch.painless.PainlessPlugin
java.version=11
opensearch.version={version}
extended.plugins=
has.native.controller=false
"""

POLICY: Final = """\
grant {
  permission java.lang.RuntimePermission "createClassLoader";
  permission java.lang.RuntimePermission "getClassLoader";
};
"""


class OpenSearchKnn(OpenSearchServer):
    """The one version of the server for which Maven Central has the plugin."""

    name = "opensearch-knn"
    version = "2.19.1"

    @classmethod
    def install(cls) -> Path:
        java()
        return cached(f"opensearch-knn-{cls.version}", cls._fill)

    @classmethod
    def _fill(cls, folder: Path) -> None:
        unzip_artifact(f"org.opensearch.distribution.integ-test-zip:opensearch:{cls.version}:zip", folder)
        plugin = folder / "plugins" / "opensearch-knn"
        plugin.mkdir(parents=True)
        unzip_artifact(f"org.opensearch.plugin:opensearch-knn:{cls.version}.0:zip", plugin)
        module = folder / "modules" / "lang-painless"
        module.mkdir()
        (module / "plugin-descriptor.properties").write_text(DESCRIPTOR.format(version=cls.version))
        (module / "plugin-security.policy").write_text(POLICY)
        scratch = folder / "scratch"
        scratch.mkdir()
        (scratch / "pom.xml").write_text(POM.format(version=cls.version))
        dependencies = f"{PLUGIN}:copy-dependencies"
        run_maven(dependencies, "-DincludeScope=runtime", f"-DoutputDirectory={scratch}", folder=scratch)
        for jar in scratch.glob("*.jar"):
            if jar.name.startswith(PAINLESS):
                jar.rename(module / jar.name)
        shutil.rmtree(scratch)
