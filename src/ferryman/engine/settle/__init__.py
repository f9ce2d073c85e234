"""5. Settle: the journal becomes the ledger, and what is done leaves the outbox."""
