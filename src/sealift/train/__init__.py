"""One loop, several plans; puts the accelerator together. Imports torch where it trains."""
