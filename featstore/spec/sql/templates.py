"""The Spark SQL template of each function that a graph's steps call.

A template returns an expression of Spark 4 with the same values; `call` describes its arguments.
Each file of this folder has the templates of one family of operators. Add new families here.
"""

from featstore.spec.sql.call import Template
from featstore.spec.sql.column_sql import COLUMN_TEMPLATES
from featstore.spec.sql.list_sql import LIST_TEMPLATES
from featstore.spec.sql.value_sql import VALUE_TEMPLATES

TEMPLATES: dict[object, Template] = {
    **COLUMN_TEMPLATES,
    **VALUE_TEMPLATES,
    **LIST_TEMPLATES,
}
