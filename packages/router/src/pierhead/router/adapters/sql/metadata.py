"""The one collection of the router's tables. All names begin with `router_`."""

import sqlalchemy as sa

METADATA = sa.MetaData()
