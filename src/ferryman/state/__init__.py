"""State folder of a plan: its layout, its tables and journal, and the rules by which they are written."""
