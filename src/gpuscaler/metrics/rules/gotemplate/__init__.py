"""Go's ``text/template``, as far as rules of prometheus-adapter can use it, with its delimiters ``<<`` and ``>>``.

Source: the documentation of Go's packages ``text/template`` and ``fmt``. Rules only use text, lists and maps of text, whole numbers and
booleans, so only these are supported. Unsupported features are rejected by name, and never get another meaning than in Go:
``define``, ``template``, ``block``, ``call``, ``html``, ``js``, ``urlquery``, ``println``, ``nil``, numbers that are not whole and decimal,
characters, printf verbs other than ``%s``, ``%q``, ``%d`` and ``%v``, a range over a number, a byte of a text, a slice of a list.
"""
