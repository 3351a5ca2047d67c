"""Requests and answers of AWS's services in their wire formats."""
