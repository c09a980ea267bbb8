"""Handles sends: checks the messages of producers, and stores them in the commit log."""
