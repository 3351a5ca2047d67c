"""Requests and answers of AWS's services as they are on the wire."""
