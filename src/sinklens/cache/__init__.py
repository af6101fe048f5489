"""Keep fewer keys and values of a cache: orders that score entries, a budget, schedules, and caches cut by them."""
