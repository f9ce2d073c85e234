"""``Sql``: a destination in a relational database.

``destination`` is the class itself, ``layout`` its table, ``dialect`` the port to what each kind of database does in
its own way, with two implementations: ``sqlite`` and ``postgresql``.
"""

from ferryman.destinations.sql.destination import Sql

__all__ = ["Sql"]
