"""Archives and compressed files of strangers: how they are opened, and what of them may not come out."""
