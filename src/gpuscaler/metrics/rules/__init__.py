"""The rules that say which series are which metrics of the API, in prometheus-adapter's language; and the queries that they make.

:mod:`.reading` reads a file, :mod:`.rule` is one rule, :mod:`.discovery` what rules make of the series that there are,
:mod:`.separating` proves which queries serve every object at once, :mod:`.builtin` are the rules that need no file.
"""
