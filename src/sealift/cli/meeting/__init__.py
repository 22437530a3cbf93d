"""``sealift host`` and ``sealift join INVITATION``: a meeting, and then its job."""
