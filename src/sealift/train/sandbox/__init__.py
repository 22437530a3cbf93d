"""What keeps a recipe in: namespaces, Landlock, seccomp, limits. Linux; no torch."""
