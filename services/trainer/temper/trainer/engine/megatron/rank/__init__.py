"""What runs in a rank process. Import ``adapter`` and install it before anything else of this package."""
