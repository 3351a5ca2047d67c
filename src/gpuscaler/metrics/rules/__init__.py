"""Rules that map series to metrics of the API, in prometheus-adapter's language, and the queries that they make.

:mod:`.reading` reads a file, :mod:`.rule` is one rule, :mod:`.discovery` applies rules to the existing series,
:mod:`.separating` proves which queries serve every object at once, :mod:`.builtin` has the rules that need no file.
"""
