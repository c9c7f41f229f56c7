"""Spark SQL templates: for each function that a graph's steps call, the expression that gives the same values.

Spark 4's functions are used; see `sql_call` for what a template takes. A file of this folder has a family of them, and a new
family joins here.
"""

from featstore.spec.sql_call import Template
from featstore.spec.sql_columns import COLUMN_TEMPLATES
from featstore.spec.sql_fitted import FITTED_TEMPLATES
from featstore.spec.sql_lists import LIST_TEMPLATES
from featstore.spec.sql_values import VALUE_TEMPLATES

TEMPLATES: dict[object, Template] = {**COLUMN_TEMPLATES, **VALUE_TEMPLATES, **LIST_TEMPLATES, **FITTED_TEMPLATES}
