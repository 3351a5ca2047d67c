"""Go's ``text/template``, as far as rules of prometheus-adapter use it, with its delimiters ``<<`` and ``>>``.

Source: the documentation of Go's packages ``text/template`` and ``fmt``. What is left out (``define``, ``template``, ``block``, ``call``,
``html``, ``js``, ``urlquery``, methods, complex numbers) is refused when a template is read, by name.
"""
