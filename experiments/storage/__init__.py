"""Files and folders that survive a crash, and checks of what is read back."""
