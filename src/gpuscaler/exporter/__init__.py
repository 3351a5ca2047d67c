"""The exporter of one node: what each GPU does, measured through its driver, and for which pod."""
