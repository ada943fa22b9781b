"""The demo in a browser: a page, and a local server for it."""
