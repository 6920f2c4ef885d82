"""All SQL of the router: tables, and the operations on them."""
