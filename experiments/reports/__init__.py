"""Reports: arms of runs compared, as tables, figures and one page."""
