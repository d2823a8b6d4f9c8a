"""Notifications: alerts in, incidents kept, people told once, a report every week."""
