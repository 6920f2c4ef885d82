"""The API over HTTP: parse, authenticate, call the use case, render. No rule is here."""
