"""What became of every document: questions, answered from committed facts, without Spark and without a lock."""

from ferryman.account.families import incomplete as incomplete
from ferryman.account.questions import StateTables as StateTables
from ferryman.account.questions import by_node as by_node
from ferryman.account.questions import deliveries as deliveries
from ferryman.account.questions import each_delivery as each_delivery
from ferryman.account.questions import history as history
from ferryman.account.questions import joined_of as joined_of
from ferryman.account.questions import keep_counted as keep_counted
from ferryman.account.questions import left_over as left_over
from ferryman.account.questions import number_of_deliveries as number_of_deliveries
from ferryman.account.questions import reasons as reasons
from ferryman.account.questions import status as status
from ferryman.account.questions import tables as tables
from ferryman.account.questions import unread as unread
from ferryman.account.questions import waves as waves
