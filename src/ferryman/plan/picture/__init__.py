"""Pictures of plans and flows, drawn from their data. A plan that ``check`` refuses is drawn too."""

from ferryman.plan.picture.drawing import BoxCounts, svg
from ferryman.plan.picture.textual import as_json, box_name, mermaid, text

__all__ = ["BoxCounts", "as_json", "box_name", "mermaid", "svg", "text"]
