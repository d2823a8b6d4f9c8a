"""One file a verdict. A rule looks at a View and yields Suspicions; it keeps no state and does no I/O."""
