"""How fast and how small it is, each number beside its goal: `nox -s bench`.

A goal is a ratio to something that is measured in the same run wherever that is possible, so that
it holds on any machine. One module is one benchmark: it has `async def measure(folder, say)`.
"""
