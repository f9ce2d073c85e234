"""What the moves cannot see: tables of names, contracts."""
import re, sys
from pathlib import Path
root=Path(sys.argv[1])
def edit(path,*pairs):
    p=root/path; s=p.read_text()
    for a,b in pairs:
        assert a in s,(path,a); s=s.replace(a,b)
    p.write_text(s)
edit('src/ferryman/__init__.py',('"operations.questions"','"operations"'),('"operations.fsck"','"operations"'),('"engine.preview.preview"','"engine.preview"'),('"operations.resolve"','"operations"'),('"operations.retry"','"operations"'),('"operations.run"','"operations"'))
edit('src/ferryman/sources/__init__.py',('"Changes": "changes", "Jobs": "jobs", "Queue": "queue", "Sql": "sql"','"Changes": "sources.changes", "Jobs": "intake.source", "Queue": "sources.queue", "Sql": "sources.sql"'),('f"ferryman.sources.{_HEAVY[name]}"','f"ferryman.{_HEAVY[name]}"'))
edit('src/ferryman/destinations/__init__.py',
 ('    "Directory": "directory",\n    "JobIdentifiers": "job_identifiers",\n    "OpenSearch": "opensearch",\n    "Queue": "queue",\n    "Solr": "solr",\n    "Sql": "sql",\n    "Webhook": "webhook",\n',
  '    "Directory": "destinations.files",\n    "JobIdentifiers": "intake.destination",\n    "JsonLines": "destinations.files",\n    "OpenSearch": "destinations.opensearch",\n    "Queue": "destinations.queue",\n    "Solr": "destinations.solr",\n    "Sql": "destinations.sql",\n    "Webhook": "destinations.webhook",\n'),
 ('f"ferryman.destinations.{_HEAVY[name]}"','f"ferryman.{_HEAVY[name]}"'),
 ('from ferryman.destinations.files import JsonLines\n',''),
 ('from ferryman.destinations.files import Directory\n','from ferryman.destinations.files import Directory, JsonLines\n'))
edit('pyproject.toml',('''    "(cli)",
    "(demo)",
    "(service)",
    "(operations)",
''','''    "cli",
    "intake",
    "operations",
'''),('''    "(engine)",
    "(notify)",
    "(account) | (observe)",
    "(state)",
    "(plan)",
    "(sources) | (steps) | (routers) | (destinations)",
    "(intake) | (queues)",
    "(records)",
    "(storage) | (document) | (databases)",
    "reach",
    "(errors) | outages | durations | needs | places",
    "net | archives",
    "(limits)",
    "(crash)",
''','''    "engine",
    "notify",
    "account | observe",
    "state",
    "plan",
    "sources | steps | routers | destinations",
    "queues",
    "records",
    "storage | document",
    "net",
    "errors",
    "limits",
    "crash",
'''),('# In parentheses: may be absent.\n',''))
(root/'src/ferryman/net/__init__.py').write_text('"""The outside world: URLs, HTTP, what strangers\' URLs may reach, databases by URL, faults, paths, archives."""\n')

edit('src/ferryman/steps/formats/__init__.py',('"sheets.','"office.'))
p=root/'CONTRIBUTING.md'; s=p.read_text(); i=s.index('| layer | what it is |'); j=s.index('The packages of the engine follow')
s=s[:i]+"""| layer | what it is |
|---|---|
| `cli` | the commands |
| `intake` | the intake queue of batches and jobs, with the source and the destination that a plan reads and writes it by; its stores; `intake.service` serves it: one consumer per state, with a plan in between ([reference](docs/reference/intake-service.md)) |
| `operations` | what an operator asks for: run, retry, resolve, fsck, and the questions |
| `engine` | waves on Spark; the only part that imports `pyspark` |
| `notify` | notifications of failures |
| `account`, `observe` | answers what became of every document; progress and logs of a run |
| `state` | the state folder: its tables, the journal, queued commands, and the rules by which they are written |
| `plan` | the plan, as frozen data |
| `sources`, `steps`, `routers`, `destinations` | the ports to the outside, with the built-in ones; ready-made steps |
| `queues` | durable queues: messages, tailers, what keeps them small |
| `records` | the shapes of what is stored: statuses, columns, events, families. No I/O |
| `storage`, `document` | durable files and tables; documents |
| `net` | the outside world: URLs, HTTP, what strangers' URLs may reach, databases by URL, which errors are of the connection, what relative paths are relative to, archives |
| `errors` | errors, grouped by what is done next |
| `limits` | every limit with its unit and reason; durations |
| `crash` | the crash points, at which tests kill a process |
| `testing` | for tests of users' own parts: conformance suites, a runner without Spark |

"""+s[j:]
p.write_text(s)
