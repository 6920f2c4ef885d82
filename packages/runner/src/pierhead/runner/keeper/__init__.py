"""The helper process: renews leases, and ends builds whose runner or lease is gone."""
