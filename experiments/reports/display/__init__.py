"""Tables and figures of a report: what they show, and how they are drawn."""
