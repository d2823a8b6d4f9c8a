"""Records that a service could not take in: set aside, so that everything behind them goes on.

A service puts a record aside as one file; a person looks at it and, once the service can read it, hands it back
(`megatronapp quarantine list | show | replay`). The service takes handed-back records up by itself.
"""

from megatronapp.core.quarantine.folder import Entry, Quarantine, Released, entries, entry, release

__all__ = ["Entry", "Quarantine", "Released", "entries", "entry", "release"]
