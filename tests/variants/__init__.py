"""Answers to try the checks on: right in unlike ways, trivially wrong, wrong in new ways."""
