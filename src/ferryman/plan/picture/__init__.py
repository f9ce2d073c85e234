"""A plan as a picture, drawn from its data, so that it cannot lie. A plan that ``check`` refuses is drawn too."""

from ferryman.plan.picture.data import as_json
from ferryman.plan.picture.drawing import BoxCounts, svg
from ferryman.plan.picture.flowchart import mermaid
from ferryman.plan.picture.joined import box_name
from ferryman.plan.picture.tree import text

__all__ = ["BoxCounts", "as_json", "box_name", "mermaid", "svg", "text"]
