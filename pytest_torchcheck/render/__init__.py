"""Findings as text and pages: terminal, HTML; JSON is ``Report.to_json``."""
