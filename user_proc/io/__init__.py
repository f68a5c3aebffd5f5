"""Raw device control as a Windows program sees it."""
