"""Queries about every document, answered from committed facts, without Spark and without a lock."""

from ferryman.account.families import incomplete_families as incomplete_families
from ferryman.account.questions import StateTables as StateTables
from ferryman.account.questions import by_node as by_node
from ferryman.account.questions import cache_counts as cache_counts
from ferryman.account.questions import count_deliveries as count_deliveries
from ferryman.account.questions import deliveries as deliveries
from ferryman.account.questions import history as history
from ferryman.account.questions import iter_deliveries as iter_deliveries
from ferryman.account.questions import joined_documents as joined_documents
from ferryman.account.questions import outstanding as outstanding
from ferryman.account.questions import reasons as reasons
from ferryman.account.questions import status as status
from ferryman.account.questions import tables as tables
from ferryman.account.questions import unread as unread
from ferryman.account.questions import waves as waves
