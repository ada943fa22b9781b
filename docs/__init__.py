"""The pages of the site, and the program that draws their pictures."""
