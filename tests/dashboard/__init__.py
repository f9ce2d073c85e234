"""The dashboard: its pages over real states, who may see them, what an operator does from them, in a browser."""
