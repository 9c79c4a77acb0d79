"""Where scene points are, in each micro image that sees them, measured on raw pixels."""
