"""The pages of the site, and what takes pictures for them."""
