"""Requests, answers and errors of Azure Resource Manager: routes, pages, spellings of ids."""
