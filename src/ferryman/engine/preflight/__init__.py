"""Executors are checked before they are trusted: does each machine see what the driver sees?"""
