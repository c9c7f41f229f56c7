"""Who reads what: the plan of an epoch, leases on its splits, and the stores that keep them."""

from featstore.dispatch.coordinator import Coordinator
from featstore.dispatch.options import Dispatch
from featstore.dispatch.plan import Plan, Split
from featstore.dispatch.stores.server import serve
from featstore.dispatch.terms import Claim, Terms

__all__ = ["Claim", "Coordinator", "Dispatch", "Plan", "Split", "Terms", "serve"]
