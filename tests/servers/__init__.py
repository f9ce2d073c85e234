"""Real servers for tests and for people: `python -m tests.servers` (`make servers`) starts them and prints their URLs.

A server is a module of this folder with one subclass of ``Server`` in it; being there is all it takes to be found.
What to write, by the example of a server that is one binary::

    class Postgres(Server):
        name = "postgres"  # for `python -m tests.servers postgres` and server("postgres")
        stop_signal = signal.SIGINT  # where SIGTERM is not what stops it soon and in order

        @classmethod
        def install(cls) -> Path:  # once a machine: download, unpack. Raise Missing(why) where that cannot be
            return cached("postgres-16.2", lambda folder: ...)  # fills `folder`, under a lock, whole or not at all

        def layout(self) -> None: ...  # once a server: configuration and data under self.folder
        def command(self) -> list[str]: ...  # what is started; self.home is what install() returned
        def ready(self) -> bool: ...  # asked until True; a process that ended meanwhile is an error with its log
        @property
        def url(self) -> str: ...  # for whom it is started, and printed

``self.folder`` is an empty folder, ``self.port`` a free port of 127.0.0.1 (``self.another_port()`` for more). After
``stop()`` or ``kill()``, ``start()`` brings the same server back, with its data, at the same port.

In tests, ``server("postgres")`` (a fixture of tests/conftest.py) is a running server. It is started at the first use,
once a worker of pytest-xdist: two workers share nothing, so that a test may stop or kill its server, as long as it
leaves it running. Tests use tables, indices, cores of their own. A module has its fixture for it::

    @pytest.fixture(scope="module")
    def postgres(server: Callable[[str], Any]) -> Postgres:
        return server("postgres")

A server that cannot be had here (``Missing``: no Java, no download) skips the test with the reason, and fails it where
the environment variable CI is set: there, nothing may be left out unseen.
"""
