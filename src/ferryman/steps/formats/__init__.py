"""What content is, and how text is read out of it: a module a family of formats.

Everything here works on bytes at hand and loads its library when it is called. What cannot be read raises
``Unreadable``, which says why and what to do; ``extract_text`` makes the document's error of it. Other exceptions of a
library mean that the content is broken.
"""
