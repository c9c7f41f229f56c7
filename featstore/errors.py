"""What users catch: every error of featstore, under the name that users import it by."""

from featstore.base.errors import *  # noqa: F403
