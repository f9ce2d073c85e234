"""Queries about every document, answered from committed facts, without Spark and without a lock."""

from ferryman.account.families import incomplete_families as incomplete_families
from ferryman.account.queries import StateTables as StateTables
from ferryman.account.queries import activity as activity
from ferryman.account.queries import by_node as by_node
from ferryman.account.queries import cache_counts as cache_counts
from ferryman.account.queries import count_deliveries as count_deliveries
from ferryman.account.queries import deliveries as deliveries
from ferryman.account.queries import has_not_read as has_not_read
from ferryman.account.queries import history as history
from ferryman.account.queries import iter_deliveries as iter_deliveries
from ferryman.account.queries import joined_documents as joined_documents
from ferryman.account.queries import nearest_documents as nearest_documents
from ferryman.account.queries import not_read as not_read
from ferryman.account.queries import outcomes as outcomes
from ferryman.account.queries import outstanding as outstanding
from ferryman.account.queries import pending_reasons as pending_reasons
from ferryman.account.queries import reasons as reasons
from ferryman.account.queries import status as status
from ferryman.account.queries import stopped as stopped
from ferryman.account.queries import tables as tables
from ferryman.account.queries import unread as unread
from ferryman.account.queries import wave_events as wave_events
from ferryman.account.queries import wave_times as wave_times
from ferryman.account.queries import waves as waves
