"""What a browser shows: a page, and the server of this machine that answers it."""
