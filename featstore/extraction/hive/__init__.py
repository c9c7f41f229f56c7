"""Tables in a Hive metastore: `locations.py` says, and links, what it sees; `registration.py` tells
it so.
"""
