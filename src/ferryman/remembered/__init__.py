"""Answers of paid calls, kept so that a step is called once for each distinct input and version."""

from ferryman.remembered.policy import Remember as Remember
