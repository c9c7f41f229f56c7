"""A table's report: one HTML file that needs nothing else.

| module | holds |
|---|---|
| report.py | gathers the figures and writes the file |
| contents.py | all that the page says, as JSON types |
| slot_columns.py | the columns of the slot table, and the facts of one slot |
| page.py | the HTML document around the contents |
| page.html, page.css, page.js | its template, its style, and the script that draws it |
"""
