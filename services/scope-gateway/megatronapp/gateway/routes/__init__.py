"""The REST API, the event stream and the page; one file a subject."""
