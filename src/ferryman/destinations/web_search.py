"""Search in an index of OpenSearch or a collection of Solr, by its URL."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from ferryman.destinations.opensearch import OpenSearch
from ferryman.destinations.queries import Hit, parse_query
from ferryman.destinations.solr import Solr
from ferryman.errors import DeliveryError, PlanError, UsageError
from ferryman.net import urls


def search(url: str, text: str, limit: int = 10, *, mark: tuple[str, str] = ("", "")) -> list[Hit]:
    """Return the best hits first. Words are found as in a database; accents, if the fields' analyzers fold them.

    Args:
        url: ``http://localhost:9200/plays`` or ``http://localhost:8983/solr/plays``; ``${NAME}`` in it is filled in
            from the environment.
        mark: what is put before and after each found word in a snippet.

    Raises:
        UsageError: the URL names no index, the server does not answer, or refuses.
    """
    query = parse_query(text)
    server, _, index = url.rstrip("/").rpartition("/")
    try:
        if "/solr/" in urlsplit(url).path:
            destination: OpenSearch | Solr = Solr(url)
        elif urlsplit(server).netloc:
            destination = OpenSearch(server, unquote(index))
        else:
            raise UsageError(f"{urls.strip_secrets(url)}: name the index, too: http://localhost:9200/plays.")
        return destination.search(query, limit, mark) if query and limit > 0 else []
    except PlanError as e:
        raise UsageError("\n".join(e.findings)) from None
    except (DeliveryError, ConnectionError) as e:
        raise UsageError(str(e)) from e
