"""The browser that shows the page, if this machine has one."""

from __future__ import annotations

import shutil

BROWSERS = ("chromium", "chromium-headless-shell", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
