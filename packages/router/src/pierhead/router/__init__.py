"""Hands builds to runners and keeps what they return."""
