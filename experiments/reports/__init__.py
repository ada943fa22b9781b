"""Reports: arms compared in tables, figures and one page."""
