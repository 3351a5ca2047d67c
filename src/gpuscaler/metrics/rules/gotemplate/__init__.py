"""Go's ``text/template``, as far as rules of prometheus-adapter can use it, with its delimiters ``<<`` and ``>>``.

Source: the documentation of Go's packages ``text/template`` and ``fmt``. What a rule works with is text, lists and maps of text, whole
numbers and truth values, so nothing else is here. What is left out is refused by name, and never means something else than to Go:
``define``, ``template``, ``block``, ``call``, ``html``, ``js``, ``urlquery``, ``println``, ``nil``, numbers that are not whole and decimal,
characters, printf of more than ``%s``, ``%q``, ``%d`` and ``%v``, a range over a number, a byte of a text, a slice of a list.
"""
