"""Solr 9: the real server under Jetty's own launcher, one node that stands alone."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

from tests.servers.cache import cached
from tests.servers.java import fetch_jars, java
from tests.servers.server import Server

POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ferryman</groupId><artifactId>solr-server</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.solr</groupId><artifactId>solr-core</artifactId><version>{solr}</version>
      <exclusions>
        <exclusion><groupId>javax.servlet</groupId><artifactId>javax.servlet-api</artifactId></exclusion>
      </exclusions>
    </dependency>
    <!-- Named, or Maven would take Solr's own older ones. -->
    <dependency>
      <groupId>org.eclipse.jetty</groupId><artifactId>jetty-server</artifactId><version>{jetty}</version>
    </dependency>
    <dependency>
      <groupId>org.eclipse.jetty</groupId><artifactId>jetty-webapp</artifactId><version>{jetty}</version>
    </dependency>
  </dependencies>
</project>
"""

WEB: Final = """\
<web-app xmlns="http://xmlns.jcp.org/xml/ns/javaee" version="3.1" metadata-complete="true">
  <listener><listener-class>org.apache.solr.servlet.CoreContainerProvider</listener-class></listener>
  <filter>
    <filter-name>SolrRequestFilter</filter-name>
    <filter-class>org.apache.solr.servlet.SolrDispatchFilter</filter-class>
  </filter>
  <filter-mapping><filter-name>SolrRequestFilter</filter-name><url-pattern>/*</url-pattern></filter-mapping>
</web-app>
"""

JETTY: Final = """\
<!DOCTYPE Configure PUBLIC "-//Jetty//Configure//EN" "https://www.eclipse.org/jetty/configure_10_0.dtd">
<Configure id="Server" class="org.eclipse.jetty.server.Server">
  <Call name="addConnector">
    <Arg>
      <New class="org.eclipse.jetty.server.ServerConnector">
        <Arg name="server"><Ref refid="Server"/></Arg>
        <Set name="host">127.0.0.1</Set>
        <Set name="port"><Property name="jetty.port"/></Set>
      </New>
    </Arg>
  </Call>
  <Set name="handler">
    <New class="org.eclipse.jetty.webapp.WebAppContext">
      <Set name="contextPath">/solr</Set>
      <Set name="war"><Property name="solr.webapp"/></Set>
      <Set name="parentLoaderPriority">true</Set>
    </New>
  </Set>
  <Set name="stopAtShutdown">true</Set>
</Configure>
"""

SCHEMA: Final = """\
<schema name="documents" version="1.6">
  <uniqueKey>id</uniqueKey>
  <fieldType name="string" class="solr.StrField" docValues="true"/>
  <fieldType name="long" class="solr.LongPointField" docValues="true"/>
  <fieldType name="double" class="solr.DoublePointField" docValues="true"/>
  <fieldType name="boolean" class="solr.BoolField"/>
  <fieldType name="text" class="solr.TextField" positionIncrementGap="100">
    <analyzer><tokenizer class="solr.StandardTokenizerFactory"/><filter class="solr.LowerCaseFilterFactory"/></analyzer>
  </fieldType>
  <field name="id" type="string" indexed="true" stored="true" required="true"/>
  <field name="_version_" type="long" indexed="true" stored="true"/>
  <field name="_root_" type="string" indexed="true" stored="false"/>
  <field name="text" type="text" indexed="true" stored="true"/>
  <field name="title" type="text" indexed="true" stored="true" multiValued="true"/>
  <field name="year" type="long" indexed="true" stored="true"/>
  <field name="words" type="long" indexed="true" stored="true"/>
  <field name="uri" type="string" indexed="true" stored="true"/>
  <field name="name" type="string" indexed="true" stored="true"/>
  <field name="size" type="long" indexed="true" stored="true"/>
  <field name="modified" type="string" indexed="true" stored="true"/>
  <field name="mime" type="string" indexed="true" stored="true"/>
  <dynamicField name="*_s" type="string" indexed="true" stored="true"/>
  <dynamicField name="*_l" type="long" indexed="true" stored="true"/>
  <dynamicField name="*_b" type="boolean" indexed="true" stored="true"/>
</schema>
"""

CONFIG: Final = """\
<config>
  <luceneMatchVersion>9.12</luceneMatchVersion>
  <directoryFactory name="DirectoryFactory" class="solr.NRTCachingDirectoryFactory"/>
  <updateHandler class="solr.DirectUpdateHandler2">
    <updateLog/>
    <autoCommit><maxTime>15000</maxTime><openSearcher>false</openSearcher></autoCommit>
  </updateHandler>
  <requestHandler name="/select" class="solr.SearchHandler">
    <lst name="defaults"><str name="df">text</str></lst>
  </requestHandler>
  {chain}
</config>
"""

VERSIONS: Final = """\
<updateRequestProcessorChain name="versions" default="true">
    <processor class="solr.DocBasedVersionConstraintsProcessorFactory">
      <str name="versionField">ferryman_sequence_l</str>
      <str name="deleteVersionParam">ferryman_sequence</str>
      <bool name="ignoreOldUpdates">false</bool>
    </processor>
    <processor class="solr.RunUpdateProcessorFactory"/>
  </updateRequestProcessorChain>"""


LOG_ACTIVE: Final = 3
"""State of a transaction log that has been read to its end."""


class SolrServer(Server):
    """Its collections are cores. There are two kinds of them: ``plain``, and ``versions``, which compares the field
    ``ferryman_sequence_l``."""

    name = "solr"
    usual_port = 8983
    version = "9.10.1"
    jetty = "10.0.26"
    delete_parameter = "ferryman_sequence"
    """By which a delete tells its sequence to a collection of the kind ``versions``."""

    @classmethod
    def install(cls) -> Path:
        java()
        return cached(f"solr-{cls.version}", cls._fill)

    @classmethod
    def _fill(cls, folder: Path) -> None:
        fetch_jars(folder, POM.format(solr=cls.version, jetty=cls.jetty))

    def layout(self) -> None:
        for name, text in {
            "webapp/WEB-INF/web.xml": WEB,
            "jetty.xml": JETTY,
            "home/solr.xml": "<solr/>",
            "home/configsets/plain/conf/managed-schema.xml": SCHEMA,
            "home/configsets/plain/conf/solrconfig.xml": CONFIG.format(chain=""),
            "home/configsets/versions/conf/managed-schema.xml": SCHEMA,
            "home/configsets/versions/conf/solrconfig.xml": CONFIG.format(chain=VERSIONS),
        }.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        for name in ("logs", "tmp"):
            (self.folder / name).mkdir()

    def command(self) -> list[str]:
        return [
            java(), "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djetty.port={self.port}",
            f"-Dsolr.webapp={self.folder}/webapp", f"-Dsolr.solr.home={self.folder}/home",
            f"-Dsolr.log.dir={self.folder}/logs", f"-Dsolr.install.dir={self.folder}",
            f"-Djava.io.tmpdir={self.folder}/tmp", "-cp", f"{self.home}/lib/*",
            "org.eclipse.jetty.xml.XmlConfiguration", f"{self.folder}/jetty.xml",
        ]  # fmt: skip

    def ready(self) -> bool:
        return self.answers("/admin/info/system")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/solr"

    def collection(self, name: str, kind: str = "plain") -> str:
        """The URL of a new, empty collection (of the one that is there, if there is one)."""
        status = self.get("/admin/cores", action="STATUS", core=name)["status"][name]
        if not status:
            self.get("/admin/cores", action="CREATE", name=name, configSet=kind)
        return f"{self.url}/{name}"

    def get(self, path: str, **parameters: Any) -> Any:
        """An answer as JSON."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        with urllib.request.urlopen(f"{self.url}{path}?{query}", timeout=300) as answer:
            return json.load(answer)

    def documents(self, name: str, **parameters: Any) -> list[dict[str, Any]]:
        """Everything that can be found now, after a commit. (One that is still reading its log takes no commit.)"""
        give_up = time.monotonic() + self.start_s
        while self.get("/admin/metrics", key=f"solr.core.{name}:TLOG.state")["metrics"] != {
            f"solr.core.{name}:TLOG.state": LOG_ACTIVE
        }:
            assert time.monotonic() < give_up, f"{name} is still reading its log"
            time.sleep(0.05)
        self.get(f"/{name}/update", commit="true")
        found = self.get(f"/{name}/select", q="*:*", rows=1_000_000, **parameters)
        documents: list[dict[str, Any]] = found["response"]["docs"]
        return documents
