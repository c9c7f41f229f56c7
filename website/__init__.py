"""The documentation site: pages of the repository and a reference made from the code.

`python -m website.build` (`make docs`) writes it to build/website/html.
"""
