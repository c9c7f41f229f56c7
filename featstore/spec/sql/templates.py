"""Spark SQL templates: for each function that a graph's steps call, the expression that gives the
same values.

Spark 4's functions are used; see `sql_call` for what a template takes. A file of this folder has a
family of them, and a new family joins here.
"""

from featstore.spec.sql.call import Template
from featstore.spec.sql.column_sql import COLUMN_TEMPLATES
from featstore.spec.sql.fitted_sql import FITTED_TEMPLATES
from featstore.spec.sql.list_sql import LIST_TEMPLATES
from featstore.spec.sql.value_sql import VALUE_TEMPLATES

TEMPLATES: dict[object, Template] = {
    **COLUMN_TEMPLATES,
    **VALUE_TEMPLATES,
    **LIST_TEMPLATES,
    **FITTED_TEMPLATES,
}
